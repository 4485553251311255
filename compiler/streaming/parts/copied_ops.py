"""Copies of ops for a module of their own, which counts its constants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir import Op, Value


def copied_ops(ops: Iterable[Op], renamed: dict[Value, Value]) -> tuple[list[Op], list[str]]:
    """Copies of ops that read what `renamed` says, and the names of their constants, which become c0, c1, ...

    renamed: a value of the copies per value that the ops read from outside; their results are added to it.
    """
    body, names = list[Op](), list[str]()
    for op in ops:
        results = tuple(Value(v.type) for v in op.results)
        operands = tuple(renamed[v] for v in op.operands)
        if op.name == "graph.constant":
            names.append(str(op["name"]))
            op = op.with_attrs(name=f"c{len(names) - 1}")
        renamed |= dict(zip(op.results, results, strict=True))
        body.append(replace(op, operands=operands, results=results))
    return body, names
