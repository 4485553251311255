"""Reads through copies: transposes, slices and broadcasts become index expressions of their readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir import BinOp, Expr, Func, Level, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.nodes import Attr
from tilewright.ir.simplify import Ranges, interval, simplify
from tilewright.ir.tensor.ops import STRUCTURED, dims, fills, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import is_padded_copy, is_view


@register_pass(Level.TENSOR)
def forward_copies(func: Func, ctx: PassContext) -> Func:
    """Let ops read the source of a copy instead of the copy.

    rewrite:  %t = tensor.map(%x, reads = [[j, i]]) {yield}; %y = tensor.map(%t, reads = [[a, b]])
              -->   %y = tensor.map(%x, reads = [[b, a]])

    Views (copies that keep the row-major order) stay: they cost nothing at a kernel boundary. A copy with a
    value outside its source, as of a constant pad, gives that value to the maps that read through it. An op
    that gives its own value where it leaves a copy reads through it if that is where it leaves the source.
    Dead copies are left to `dce`.
    """
    copies: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        forwarded = _forward(op, copies) if op.name in STRUCTURED else op
        ops.append(forwarded)
        if is_padded_copy(forwarded) and not is_view(forwarded):
            copies[forwarded.result] = forwarded
    return func.with_body(func.body.with_ops(tuple(ops)))


def _forward(op: Op, copies: dict[Value, Op]) -> Op:
    operands, indices, values_outside = list(op.operands), [tuple(r) for r in reads(op)], list(fills(op))
    for i, value in enumerate(op.operands):
        if value not in copies:
            continue
        copy = copies[value]
        (outside,) = fills(copy)
        if values_outside[i] is not None and (
            outside is not None or not _same_bounds(copy, indices[i], ranges_of(op))
        ):
            continue
        if outside is not None and op.name != "tensor.map":
            continue
        env = dict(zip(dims(copy, "par"), indices[i], strict=True))
        at = tuple(simplify(substitute(e, env), ranges_of(op)) for e in reads(copy)[0])
        if op.name != "tensor.map" and not all(map(_affine, at)):
            continue
        operands[i], indices[i] = copy.operands[0], at
        values_outside[i] = outside if values_outside[i] is None else values_outside[i]
    changed = op.with_operands(tuple(operands))
    if changed is op:
        return op
    attrs: dict[str, Attr] = {"reads": tuple(indices)}
    if any(fill is not None for fill in values_outside):
        attrs["fill"] = tuple(values_outside)
    return replace(changed.with_attrs(**attrs), results=op.results)


def _same_bounds(copy: Op, at: Sequence[Expr], ranges: Ranges) -> bool:
    """Return whether reads at index `at` leave the copy exactly where they leave its source.

    True where dimensions that they leave are dimensions of the source in full, as those of an image are whose
    channels are sliced.
    """
    spans = [interval(e, ranges) for e in at]
    extents = dims(copy, "par")
    leaving = {
        d: n for (d, n), (low, high) in zip(extents.items(), spans, strict=True) if low < 0 or high >= n
    }
    source = list(zip(reads(copy)[0], copy.operands[0].tensor.shape, strict=True))
    whole = [e.name for e, n in source if isinstance(e, Sym) and leaving.get(e.name) == n]
    mentioned = [d for e, _ in source for d in symbols(e) if d in leaving]
    return sorted(whole) == sorted(mentioned) == sorted(leaving)


def _affine(e: Expr) -> bool:
    if isinstance(e, BinOp):
        if e.op not in "+-*":
            return False
        constant = isinstance(e.lhs, int) or isinstance(e.rhs, int)
        return (e.op != "*" or constant) and _affine(e.lhs) and _affine(e.rhs)
    return isinstance(e, int | Sym)
