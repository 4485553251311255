"""Correlation of two images and morphological dilation: windows over both operands."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.correlation import DILATION_LAYOUTS, correlation_of
from tilewright.ir.graph_ops.operands import lowest
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    elementwise,
    lowering,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.shaping import reshaped
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, window_reads
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.dilation2d")
def dilation2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The largest sum of an element and its tap; padding reads 0."""
    attrs = op.attributes
    data, weight = x
    t = result_type(op)
    acc = accumulated(t)
    layout = attrs["data_layout"]
    kernel_layout = DILATION_LAYOUTS[layout]
    extent = dict(zip(kernel_layout, weight.tensor.shape, strict=True))
    names = {"N": "n", "C": "c", **OUTPUTS}
    par = {names[d]: n for d, n in zip(layout, t.shape, strict=True)}
    where: dict[str, Expr] = {"N": Sym("n"), "C": Sym("c"), **window_reads(attrs, "HW")}
    taps: dict[str, Expr] = {"I": Sym("c"), "H": Sym(TAPS["H"]), "W": Sym(TAPS["W"])}
    reads = [tuple(where[d] for d in layout), tuple(taps[d] for d in kernel_layout)]
    red = {TAPS[d]: extent[d] for d in "HW"}

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        shifted = i.cast(p[0], acc.dtype) + i.cast(p[1], acc.dtype)
        return shifted.max(p[2])

    outside: float | int = 0.0 if isinstance(lowest(t.dtype), float) else 0
    largest = reduced(
        b, "tensor.window", [data, weight], acc, par, red, reads, body,
        init=lowest(t.dtype), fill=(outside, None),
    )  # fmt: skip
    return [converted(b, largest, t)]


@lowering("graph.correlation")
def correlation(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Sums over channels and taps for every pair of displacements, which then become one dimension."""
    attrs = op.attributes
    t = result_type(op)
    a = x[0].tensor
    g = correlation_of(a, x[1].tensor, attrs)
    far, step, move = attrs["max_displacement"], attrs["stride1"], attrs["stride2"]
    par = {"n": a.shape[0], "down": g.displacements, "right": g.displacements, "y": g.rows, "x": g.columns}
    red = {"c": a.shape[1], "r": g.kernel, "s": g.kernel}
    acc = TensorType(accumulated(t).dtype, tuple(par.values()))
    still: list[Expr] = [Sym("n"), Sym("c")]
    moved: list[Expr] = [Sym("n"), Sym("c")]
    for out, tap, shift, before in zip("yx", "rs", ("down", "right"), attrs["padding"][:2], strict=True):
        place = Sym(out) * step + Sym(tap)
        still.append(_shifted(place, far - before))
        displaced = place + Sym(shift) * move
        moved.append(_shifted(displaced, far - before - g.reach * move))

    def difference(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        apart = i.cast(p[0], acc.dtype) - i.cast(p[1], acc.dtype)
        return abs(apart) + p[2]

    body = multiply_add if attrs["is_multiply"] else difference
    reads = [tuple(still), tuple(moved)]
    sums = reduced(b, "tensor.window", x, acc, par, red, reads, body, fill=(0.0, 0.0))
    count = g.kernel * g.kernel * a.shape[1]

    def mean(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0] / count, t.dtype)

    means = elementwise(b, [sums], TensorType(t.dtype, acc.shape), mean)
    return [reshaped(b, means, t)]


def _shifted(e: Expr, by: int) -> Expr:
    return e + by if by >= 0 else e - -by
