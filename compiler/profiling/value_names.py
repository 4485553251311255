"""Names of a kernel's values, which the printed IR does not keep: a saved file states them beside it.

Code generation calls variables as values are called, so a file's kernel is emitted again only with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.ir import Block, Func, UnsupportedError, Value
from tilewright.ir.nodes import walk


def value_names(func: Func) -> list[str]:
    """The names of all values, in the order of their definitions."""
    return [v.hint for v in _defined(func.body)]


def with_value_names(func: Func, names: Sequence[str]) -> Func:
    """The function with its values called `names`; raises UnsupportedError for another number of them."""
    values = list(_defined(func.body))
    if len(names) != len(values):
        raise UnsupportedError(f"expected names of {len(values)} values in @{func.name}, got {len(names)}")
    named = {v: Value(v.type, name) for v, name in zip(values, names, strict=True)}

    def renamed(block: Block) -> Block:
        ops = tuple(
            replace(
                op,
                operands=tuple(named[v] for v in op.operands),
                results=tuple(named[v] for v in op.results),
                body=None if op.body is None else renamed(op.body),
            )
            for op in block.ops
        )
        return Block(tuple(named[v] for v in block.params), ops)

    return func.with_body(renamed(func.body))


def _defined(body: Block) -> Iterator[Value]:
    yield from body.params
    for op in walk(body):
        yield from op.results
        if op.body is not None:
            yield from op.body.params
