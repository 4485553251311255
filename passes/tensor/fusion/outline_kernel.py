"""Makes a kernel function of the ops that run as one kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tilewright.ir import Block, Func, Level, Op, Value
from tilewright.ir.tensor.ops import dims
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import rename_dims


def outline(
    ops: Sequence[Op], anchor: Op, outputs: Sequence[Value], name: str, resolve: Callable[[Value], Value]
) -> tuple[Func, list[Value]]:
    """The kernel function of `ops`, which returns `outputs`, and the values of @main it is called with.

    anchor: the op that shapes the kernel. resolve: the value whose buffer holds a value (see views).
    """
    params: dict[Value, Value] = {}  # value as read (possibly a view) -> parameter
    inside = {r for op in ops for r in op.results}
    body: list[Op] = []
    for op in ops:
        operands = []
        for v in op.operands:
            if v not in inside and v not in params:
                params[v] = Value(v.type, v.hint or resolve(v).hint)
            operands.append(v if v in inside else params[v])
        body.append(op.with_operands(tuple(operands)))
    if anchor.name != "tensor.reduce":
        body = _common_dims(body, anchor)
    body.append(Op("tensor.return", tuple(outputs)))
    types = tuple(v.type for v in outputs)
    block = Block(tuple(params.values()), tuple(body))
    return Func(Level.TENSOR, name, block, types), [resolve(v) for v in params]


def _common_dims(ops: list[Op], anchor: Op) -> list[Op]:
    """Name the parallel dimensions of every epilogue map like the anchor's, so that one tile serves all."""
    names = list(dims(anchor, "par"))
    shape = tuple(dims(anchor, "par").values())
    out = []
    for op in ops:
        par = dims(op, "par")
        if op.name == "tensor.map" and op.operands and tuple(par.values()) == shape and list(par) != names:
            op = rename_dims(op, dict(zip(par, names, strict=True)))
        out.append(op)
    return out


def kernel_name(ops: Sequence[Op], taken: set[str]) -> str:
    """A readable, unused name from the origins of the ops."""
    words: list[str] = []
    for op in ops:
        origin = op.loc.partition("#")[0].split(":")[-1].split(".")[-1] or op.name.partition(".")[2]
        word = re.sub(r"[^A-Za-z0-9_]", "_", origin)
        if not words or words[-1] != word:
            words.append(word)
    stem = "_".join(dict.fromkeys(words))[:48].strip("_") or "kernel"
    if not stem[0].isalpha():
        stem = "k_" + stem
    name = numbered(stem, taken)
    taken.add(name)
    return name
