"""Deformable convolution: places from offsets, four gathers between which to interpolate, a contraction."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.deformable_convolution import deformable_convolution_of
from tilewright.ir.graph_ops.layouts import Window
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    looked_up,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS
from tilewright.passes.lower.scalars import Scalar, Scalars

#: dimensions of everything that is known per tap of every window
_POINT = ("r", "s", "y", "x")


@lowering("graph.deformable_conv2d")
def deformable_convolution(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A contraction of the kernel with the pixels between which every displaced tap falls."""
    attrs = op.attributes
    data, offset, weight = x
    g, per_part = deformable_convolution_of(data.tensor, offset.tensor, weight.tensor, attrs)
    layout, kernel_layout = attrs["data_layout"], attrs["kernel_layout"]
    taps = _taps(b, data, offset, layout, g.windows, attrs["deformable_groups"], per_part)
    result = accumulated(result_type(op))
    names = {"N": "n", "C": "k", **OUTPUTS}
    par = {names[d]: n for d, n in zip(layout, result.shape, strict=True)}
    red = {"c": g.channels, "r": g.windows[0].kernel, "s": g.windows[1].kernel}
    group = Sym("k") // g.filters if g.groups > 1 else 0
    channel = group * g.channels + Sym("c")
    kernel: dict[str, Expr] = {"O": Sym("k"), "I": Sym("c"), **{d: Sym(TAPS[d]) for d in "HW"}}
    reads = [(Sym("n"), channel, *map(Sym, _POINT)), tuple(kernel[d] for d in kernel_layout)]
    sums = reduced(b, "tensor.contract", [taps, weight], result, par, red, reads, multiply_add)
    return [converted(b, sums, result_type(op))]


def _taps(
    b: Builder, data: Value, offset: Value, layout: str, along: Sequence[Window], parts: int, per_part: int
) -> Value:
    """The elements that every tap of every window reads: [n, c, r, s, y, x]."""
    rows, columns = along
    points = dict(zip(_POINT, (rows.kernel, columns.kernel, rows.count, columns.count), strict=True))
    samples = data.tensor.shape[layout.index("N")]
    par = {"n": samples, "g": parts, **points}
    places = [_places(b, offset, layout, par, w, axis) for axis, w in enumerate(along)]
    acc = places[0].tensor.dtype
    floors = [_floors(b, v, par) for v in places]
    domain = {"n": samples, "c": parts * per_part, **points}
    at_part = (Sym("n"), Sym("c") // max(1, per_part), *map(Sym, _POINT))
    corners = [
        _corner(b, data, layout, floors, domain, at_part, down, right) for down in (0, 1) for right in (0, 1)
    ]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        one = i.const(1.0, acc)
        inside = i.const(True, "bool")
        shares = []
        for place, w in zip(p[4:], along, strict=True):
            after = place - place.floor()
            shares.append((one - after, after))
            begun = place >= 0.0
            ended = place < float(w.size)
            inside = inside & (begun & ended)
        total = i.const(0.0, acc)
        for k, corner in enumerate(p[:4]):
            share = shares[0][k // 2] * shares[1][k % 2]
            total = i.cast(corner, acc).fma(share, total)
        return inside.select(total, 0.0)

    whole = tuple(map(Sym, domain))
    t = TensorType(acc, tuple(domain.values()))
    return mapped(b, [*corners, *places], t, domain, [*[whole] * 4, at_part, at_part], body)


def _places(b: Builder, offset: Value, layout: str, par: dict[str, int], w: Window, axis: int) -> Value:
    """The places of every tap along one axis, real numbers from -1 (before x) to the size (behind x)."""
    t = TensorType(accumulated(offset.tensor).dtype, tuple(par.values()))
    tap = Sym("g") * par["r"] + Sym("r")
    tap = tap * par["s"] + Sym("s")
    read: dict[str, Expr] = {
        "N": Sym("n"), "C": tap * 2 + axis, "H": Sym("y"), "W": Sym("x")
    }  # fmt: skip
    out, along = ("y", "r") if axis == 0 else ("x", "s")
    start = Sym(out) * w.stride + Sym(along) * w.dilation

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        place = i.cast(p[0], t.dtype) + i.index(start - w.before, t.dtype)
        place = place.max(-1.0)
        return place.min(float(w.size))

    return mapped(b, [offset], t, par, [tuple(read[d] for d in layout)], body)


def _floors(b: Builder, places: Value, par: dict[str, int]) -> Value:
    t = TensorType("i32", places.tensor.shape)
    return mapped(b, [places], t, par, [tuple(map(Sym, par))], lambda i, p: i.cast(p[0].floor(), "i32"))


def _corner(
    b: Builder, data: Value, layout: str, floors: Sequence[Value], domain: dict[str, int],
    at_part: tuple[Expr, ...], down: int, right: int,
) -> Value:  # fmt: skip
    """One of the four pixels around every place; pixels outside x are 0."""
    at: dict[str, Expr] = {
        "N": Sym("n"), "C": Sym("c"), "H": Sym("i0") + down, "W": Sym("i1") + right
    }  # fmt: skip
    return looked_up(b, data, floors, domain, (at_part, at_part), [at[d] for d in layout], "fill")
