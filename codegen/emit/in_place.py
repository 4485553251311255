"""Parameters of a kernel that may be one buffer: a thread reads only elements it writes later itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.codegen.emit.launch import late_params
from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Block, Func, Op, Value
from tilewright.ir.types import ScalarType


@dataclass(frozen=True)
class _Access:
    """An op that takes a parameter, the loops and conditions around it, and its place in each block."""

    op: Op
    around: tuple[Op, ...]
    path: tuple[int, ...]


def in_place_pairs(func: Func) -> tuple[tuple[int, int], ...]:
    """Positions (read, written) of parameters of a thread-level kernel that may be one and the same buffer.

    Both have the same type. The written one is stored to by one op, unconditionally, as often as it has
    elements: since a kernel defines its results wholly, each element is written once. Every op that takes
    the read one loads at the same index in a loop nest of the same extents, before that store in program
    order: so a thread reads just the elements that it writes, and each before it writes it.

    Only parameters of which the emitted text does not promise that they are apart qualify: those that are
    read after a wait for other launches (`tilewright.codegen.emit.launch`).
    """
    late = late_params(func)
    accesses: dict[Value, list[_Access]] = {v: [] for v in func.params if v in late}
    for access in _accesses(func.body, (), ()):
        for value in dict.fromkeys(access.op.operands):
            if value in accesses:
                accesses[value].append(access)
    pairs = []
    for written, stores in accesses.items():
        if len(stores) != 1 or not _writes_each_element_once(func, stores[0], written):
            continue
        for read, loads in accesses.items():
            same_type = read is not written and read.type == written.type
            if same_type and loads and all(_reads_what_it_overwrites(load, stores[0]) for load in loads):
                pairs.append((func.params.index(read), func.params.index(written)))
    return tuple(sorted(pairs))


def _accesses(block: Block, around: tuple[Op, ...], path: tuple[int, ...]) -> Iterator[_Access]:
    for index, op in enumerate(block.ops):
        yield _Access(op, around, (*path, index))
        if op.body is not None:
            yield from _accesses(op.body, (*around, op), (*path, index))


def _writes_each_element_once(func: Func, store: _Access, buffer: Value) -> bool:
    op = store.op
    if op.name != "thread.store" or op.operands[1] is not buffer or op.operands[0] is buffer or op["mask"]:
        return False
    if any(scope.name != "thread.loop" for scope in store.around):
        return False
    grid, block, value = func["grid"], func["block"], op.operands[0].type
    assert isinstance(grid, tuple)
    assert isinstance(block, int)
    assert isinstance(value, ScalarType)
    threads = math.prod(g for g in grid if isinstance(g, int)) * block
    times = math.prod(scope.integer("extent") for scope in store.around)
    return threads * times * value.lanes == math.prod(buffer.tensor.shape)


def _reads_what_it_overwrites(load: _Access, store: _Access) -> bool:
    op = load.op
    if op.name != "thread.load" or op["mask"] or load.path >= store.path:
        return False
    value = store.op.operands[0].type
    if not isinstance(value, ScalarType) or op["lanes"] != value.lanes:
        return False
    if len(load.around) != len(store.around):
        return False
    if any(scope.name != "thread.loop" for scope in load.around):
        return False
    if [s.integer("extent") for s in load.around] != [s.integer("extent") for s in store.around]:
        return False
    return _index(load) == _index(store)


def _index(access: _Access) -> tuple[Expr, ...]:
    """The index expressions with loop variables named by depth."""
    names: dict[str, Expr] = {_variable(s): Sym(f"loop.{i}") for i, s in enumerate(access.around)}
    at = access.op["at"]
    assert isinstance(at, tuple)
    return tuple(substitute(e, names) for e in at)  # type: ignore[arg-type]


def _variable(loop: Op) -> str:
    variable = loop["var"]
    assert isinstance(variable, Sym)
    return variable.name
