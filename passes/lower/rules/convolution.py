"""Convolutions: contractions, or windows where every channel is on its own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.graph_ops.operands import zero
from tilewright.passes.lower.convolution_algorithms import by_algorithm
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    lowering,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, letters_of, tap_dims, window_reads


@lowering("graph.conv1d", "graph.conv2d", "graph.conv3d")
def convolution(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Sum over channels and taps; a depthwise convolution has no channels to sum over."""
    if op.get("algorithm", "direct") != "direct":
        return by_algorithm(b, op, x)
    data, weight = x
    attrs = op.attributes
    data_layout, kernel_layout = attrs["data_layout"], attrs["kernel_layout"]
    letters = letters_of(data_layout)
    extent = dict(zip(kernel_layout, weight.tensor.shape, strict=True))
    channels = dict(zip(data_layout, data.tensor.shape, strict=True))["C"]
    groups = attrs["groups"]
    result = accumulated(result_type(op))
    names = {"N": "n", "C": "k", **OUTPUTS}
    par = {names[d]: n for d, n in zip(data_layout, result.shape, strict=True)}
    depthwise = groups > 1 and groups == channels
    k, c = Sym("k"), Sym("c")
    per_group = par["k"] // groups
    where: dict[str, Expr] = {"N": Sym("n"), "C": c, **window_reads(attrs, letters)}
    taps: dict[str, Expr] = {"O": k, "I": c, **{d: Sym(TAPS[d]) for d in letters}}
    summed = {} if depthwise else {"c": channels // groups}
    red = tap_dims({d: extent[d] for d in letters}, summed)
    if depthwise:
        where["C"], taps["I"] = k // per_group, 0
        if extent["I"] > 1:  # the kernel holds [channel, multiple] where others hold [output channel, 1]
            taps["O"], taps["I"] = k // per_group, k % per_group
    elif groups > 1:
        where["C"] = k // per_group * (channels // groups) + c
    reads = [tuple(where[d] for d in data_layout), tuple(taps[d] for d in kernel_layout)]
    name = "tensor.window" if depthwise else "tensor.contract"
    fill = (zero(data.tensor.dtype), None)
    sums = reduced(b, name, x, result, par, red, reads, multiply_add, fill=fill)
    return [converted(b, sums, result_type(op))]
