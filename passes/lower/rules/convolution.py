"""Convolutions: contractions, or windows where every channel is on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.expr import binary
from tilewright.passes.lower.convolution_algorithms import by_algorithm
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    lowering,
    multiply_add,
    reduced,
    result_type,
)


def _window(out: str, tap: str, stride: int, dilation: int, before: int) -> Expr:
    start = binary("*", Sym(out), stride)
    return binary("-", binary("+", start, binary("*", Sym(tap), dilation)), before)


@lowering("graph.conv2d")
def conv2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Sum over channels and taps; a depthwise convolution has no channels to sum over."""
    if op["algorithm"] != "direct":
        return by_algorithm(b, op, x)
    data, weight = x
    attrs: dict[str, Any] = dict(op.attrs)
    data_layout, kernel_layout = attrs["data_layout"], attrs["kernel_layout"]
    extent = dict(zip(kernel_layout, weight.tensor.shape, strict=True))
    channels = dict(zip(data_layout, data.tensor.shape, strict=True))["C"]
    groups = attrs["groups"]
    result = accumulated(result_type(op))
    out = dict(zip(data_layout, result.shape, strict=True))
    names = {"N": "n", "C": "k", "H": "y", "W": "x"}
    par = {names[d]: out[d] for d in data_layout}
    top, left, *_ = attrs["padding"]
    (stride_h, stride_w), (dilation_h, dilation_w) = attrs["strides"], attrs["dilation"]
    depthwise = groups > 1 and groups == channels
    k, c = Sym("k"), Sym("c")
    per_group = out["C"] // groups
    where: dict[str, Expr] = {
        "N": Sym("n"),
        "C": c,
        "H": _window("y", "r", stride_h, dilation_h, top),
        "W": _window("x", "s", stride_w, dilation_w, left),
    }
    taps: dict[str, Expr] = {"O": k, "I": c, "H": Sym("r"), "W": Sym("s")}
    red = {"c": channels // groups, "r": extent["H"], "s": extent["W"]}
    if depthwise:
        where["C"] = binary("//", k, per_group)
        del red["c"]
        taps["I"] = 0
        if extent["I"] > 1:  # the kernel holds [channel, multiple] where others hold [output channel, 1]
            taps["O"], taps["I"] = binary("//", k, per_group), binary("%", k, per_group)
    elif groups > 1:
        where["C"] = binary("+", binary("*", binary("//", k, per_group), channels // groups), c)
    reads = [tuple(where[d] for d in data_layout), tuple(taps[d] for d in kernel_layout)]
    name = "tensor.window" if depthwise else "tensor.contract"
    sums = reduced(b, name, x, result, par, red, reads, multiply_add, fill=(0.0, None))
    return [converted(b, sums, result_type(op))]
