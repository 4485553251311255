"""Pooling: windows, and reductions over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import binary, maximum, minimum
from tilewright.ir.graph_ops.operands import lowest, zero
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    Body,
    accumulated,
    dim_names,
    elementwise,
    lowering,
    mapped,
    reduced,
    result_type,
)

_NAMES = {"N": "n", "C": "c", "H": "y", "W": "x"}


def _add(i: Builder, p: Sequence[Value]) -> Value:
    return i.value("scalar.add", i.cast(p[0], p[1].type.dtype), p[1])


def _max(i: Builder, p: Sequence[Value]) -> Value:
    return i.value("scalar.max", p[0], p[1])


def _pool(
    b: Builder, op: Op, x: Sequence[Value], t: TensorType, body: Body, init: float | int | bool
) -> Value:
    """The window reduction of a pooling op to type `t`; what lies outside the image counts as `init`."""
    attrs: dict[str, Any] = dict(op.attrs)
    layout = attrs["layout"]
    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    red = dict(zip(("r", "s"), attrs["pool_size"], strict=True))
    where: dict[str, Expr] = {"N": Sym("n"), "C": Sym("c")}
    for axis, (out, tap) in enumerate((("y", "r"), ("x", "s"))):
        start = binary("*", Sym(out), attrs["strides"][axis])
        reach = binary("+", start, binary("*", Sym(tap), attrs["dilation"][axis]))
        where["HW"[axis]] = binary("-", reach, attrs["padding"][axis])
    reads = [tuple(where[d] for d in layout)]
    return reduced(b, "tensor.window", x, t, par, red, reads, body, init=init, fill=(init,))


@lowering("graph.max_pool2d")
def max_pool2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The largest element of each window."""
    return [_pool(b, op, x, result_type(op), _max, lowest(x[0].tensor.dtype))]


@lowering("graph.avg_pool2d")
def avg_pool2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum of each window over the number of elements that count."""
    attrs: dict[str, Any] = dict(op.attrs)
    layout, t = attrs["layout"], result_type(op)
    held = accumulated(t)
    sums = _pool(b, op, x, held, _add, zero(t.dtype))
    division = "scalar.div" if t.dtype in FLOATS else "scalar.truncdiv"
    shape = dict(zip(layout, x[0].tensor.shape, strict=True))
    names = dim_names(t.rank)
    at = {d: Sym(n) for d, n in zip(layout, names, strict=True)}
    top, left, bottom, right = attrs["padding"]
    ends = {"H": (top, bottom), "W": (left, right)}

    def counted(axis: int) -> Expr:
        """Taps of one axis inside the image (or the padded image)."""
        d = "HW"[axis]
        before, after = ends[d]
        window, dilation = attrs["pool_size"][axis], attrs["dilation"][axis]
        start = binary("-", binary("*", at[d], attrs["strides"][axis]), before)
        low, high = (-before, shape[d] + after) if attrs["count_include_pad"] else (0, shape[d])
        # taps t with low <= start + t * dilation < high
        first = maximum(0, binary("//", binary("+", binary("-", low, start), dilation - 1), dilation))
        last = minimum(window, binary("//", binary("+", binary("-", high, start), dilation - 1), dilation))
        return binary("-", last, first)

    count = binary("*", counted(0), counted(1))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        taps = i.value("scalar.max", i.index(count, "i32"), i.const(1, "i32"))
        return i.cast(i.value(division, p[0], i.cast(taps, held.dtype)), t.dtype)

    par = dict(zip(names, t.shape, strict=True))
    return [mapped(b, [sums], t, par, [tuple(map(Sym, names))], body)]


@lowering("graph.global_avg_pool2d", "graph.global_max_pool2d")
def global_pool2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Mean or maximum over whole images; the image dimensions stay with extent 1."""
    layout, t = str(op["layout"]), result_type(op)
    shape = dict(zip(layout, x[0].tensor.shape, strict=True))
    par = {
        {"N": "n", "C": "c", "H": "one_h", "W": "one_w"}[d]: n for d, n in zip(layout, t.shape, strict=True)
    }
    red = {"y": shape["H"], "x": shape["W"]}
    reads = [tuple(Sym(_NAMES[d]) for d in layout)]
    if op.name == "graph.global_max_pool2d":
        return [reduced(b, "tensor.reduce", x, t, par, red, reads, _max, init=lowest(t.dtype))]
    held = accumulated(t)
    sums = reduced(b, "tensor.reduce", x, held, par, red, reads, _add)
    size = shape["H"] * shape["W"]

    def mean(i: Builder, p: Sequence[Value]) -> Value:
        return i.cast(i.value("scalar.div", p[0], i.const(size, held.dtype)), t.dtype)

    return [elementwise(b, [sums], t, mean)]
