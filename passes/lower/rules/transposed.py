"""Transposed convolution: a contraction over the input spread by the strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import binary
from tilewright.ir.graph_ops.convolution import conv2d_transpose_of
from tilewright.ir.graph_ops.layouts import Window
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)


@lowering("graph.conv2d_transpose")
def conv2d_transpose(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A convolution of stride 1 over the input with zeros between its elements, the kernel turned round."""
    attrs: dict[str, Any] = dict(op.attrs)
    data, weight = x
    g = conv2d_transpose_of(data.tensor, weight.tensor, attrs)
    layout, result = attrs["data_layout"], accumulated(result_type(op))
    names = {"N": "n", "C": "k", "H": "y", "W": "x"}
    par = {names[d]: n for d, n in zip(layout, result.shape, strict=True)}
    red = {"c": g.channels, "r": g.rows.kernel, "s": g.columns.kernel}
    ranges = {d: (0, n - 1) for d, n in (par | red).items()}
    group = binary("//", Sym("k"), g.filters)
    channel = simplify(binary("+", binary("*", group, g.channels), Sym("c")), ranges)
    image: dict[str, Expr] = {
        "N": Sym("n"),
        "C": channel,
        "H": _position(g.rows, "y", "r"),
        "W": _position(g.columns, "x", "s"),
    }
    kernel: dict[str, Expr] = {
        "I": channel,
        "O": simplify(binary("%", Sym("k"), g.filters), ranges),
        "H": binary("-", g.rows.kernel - 1, Sym("r")),
        "W": binary("-", g.columns.kernel - 1, Sym("s")),
    }
    reads = [tuple(image[d] for d in layout), tuple(kernel[d] for d in attrs["kernel_layout"])]
    operands = [_spread(b, data, layout, attrs["strides"], g.spread), weight]
    sums = reduced(
        b, "tensor.contract", operands, result, par, red, reads, multiply_add, fill=(_zero(data), None)
    )
    return [converted(b, sums, result_type(op))]


def _position(window: Window, out: str, tap: str) -> Expr:
    """Where a tap reads the spread input; may lie outside."""
    reach = binary("+", Sym(out), binary("*", Sym(tap), window.dilation))
    return binary("-", reach, window.before) if window.before >= 0 else binary("+", reach, -window.before)


def _zero(v: Value) -> float | int:
    return 0.0 if v.tensor.dtype.startswith(("f", "bf")) else 0


def _spread(b: Builder, x: Value, layout: str, strides: Sequence[int], spread: Sequence[int]) -> Value:
    """`x` with `stride - 1` zeros between neighbouring rows and columns."""
    if tuple(strides) == (1, 1):
        return x
    t = x.tensor
    extent = dict(zip(layout, t.shape, strict=True)) | dict(zip("HW", spread, strict=True))
    names = dim_names(t.rank)
    at: dict[str, Expr] = {d: Sym(n) for d, n in zip(layout, names, strict=True)}
    gap = binary("+", binary("%", at["H"], strides[0]), binary("%", at["W"], strides[1]))
    read = at | {d: binary("//", at[d], step) for d, step in zip("HW", strides, strict=True)}
    result = TensorType(t.dtype, tuple(extent[d] for d in layout))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        between = i.value("scalar.gt", i.index(gap), i.const(0, "i32"))
        return i.value("scalar.select", between, i.const(0, t.dtype), p[0])

    par = dict(zip(names, result.shape, strict=True))
    return mapped(b, [x], result, par, [tuple(read[d] for d in layout)], body)
