"""Transposed convolution: a contraction over the input spread by the strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import binary
from tilewright.ir.graph_ops.layouts import Window
from tilewright.ir.graph_ops.operands import zero
from tilewright.ir.graph_ops.transposed_convolution import transposed_convolution_of
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
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, letters_of, tap_dims


@lowering("graph.conv1d_transpose", "graph.conv2d_transpose", "graph.conv3d_transpose")
def transposed_convolution(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A convolution of stride 1 over the input with zeros between its elements, the kernel turned round."""
    attrs: dict[str, Any] = dict(op.attrs)
    data, weight = x
    layout, result = attrs["data_layout"], accumulated(result_type(op))
    letters = letters_of(layout)
    g = transposed_convolution_of(data.tensor, weight.tensor, attrs, len(letters), op.name)
    along = dict(zip(letters, g.windows, strict=True))
    names = {"N": "n", "C": "k", **OUTPUTS}
    par = {names[d]: n for d, n in zip(layout, result.shape, strict=True)}
    red = tap_dims({d: w.kernel for d, w in along.items()}, {"c": g.channels})
    ranges = {d: (0, n - 1) for d, n in (par | red).items()}
    group = binary("//", Sym("k"), g.filters)
    channel = simplify(binary("+", binary("*", group, g.channels), Sym("c")), ranges)
    image: dict[str, Expr] = {
        "N": Sym("n"), "C": channel, **{d: _position(w, OUTPUTS[d], TAPS[d]) for d, w in along.items()}
    }  # fmt: skip
    kernel: dict[str, Expr] = {
        "I": channel,
        "O": simplify(binary("%", Sym("k"), g.filters), ranges),
        **{d: binary("-", w.kernel - 1, Sym(TAPS[d])) for d, w in along.items()},
    }
    reads = [tuple(image[d] for d in layout), tuple(kernel[d] for d in attrs["kernel_layout"])]
    operands = [_spread(b, data, layout, dict(zip(letters, g.strides, strict=True)), along), weight]
    fill = (zero(data.tensor.dtype), None)
    sums = reduced(b, "tensor.contract", operands, result, par, red, reads, multiply_add, fill=fill)
    return [converted(b, sums, result_type(op))]


def _position(window: Window, out: str, tap: str) -> Expr:
    """Where a tap reads the spread input; may lie outside."""
    reach = binary("+", Sym(out), binary("*", Sym(tap), window.dilation))
    return binary("-", reach, window.before) if window.before >= 0 else binary("+", reach, -window.before)


def _spread(b: Builder, x: Value, layout: str, strides: dict[str, int], along: dict[str, Window]) -> Value:
    """`x` with `stride - 1` zeros between neighbours along every spatial dimension."""
    if set(strides.values()) == {1}:
        return x
    t = x.tensor
    extent = dict(zip(layout, t.shape, strict=True)) | {d: w.size for d, w in along.items()}
    names = dim_names(t.rank)
    at: dict[str, Expr] = {d: Sym(n) for d, n in zip(layout, names, strict=True)}
    gap: Expr = 0
    for d, step in strides.items():
        gap = binary("+", gap, binary("%", at[d], step))
    read = at | {d: binary("//", at[d], step) for d, step in strides.items()}
    result = TensorType(t.dtype, tuple(extent[d] for d in layout))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        between = i.value("scalar.gt", i.index(gap), i.const(0, "i32"))
        return i.value("scalar.select", between, i.const(0, t.dtype), p[0])

    par = dict(zip(names, result.shape, strict=True))
    return mapped(b, [x], result, par, [tuple(read[d] for d in layout)], body)
