"""Gradients of convolutions by their kernels: contractions over samples and windows."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.operands import zero
from tilewright.ir.graph_ops.weight_gradients import weight_gradient_of
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    lowering,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.shaping import moved
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, letters_of, window_reads


@lowering("graph.conv1d_weight_grad", "graph.conv2d_weight_grad", "graph.conv3d_weight_grad")
def weight_gradient(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """result[k, taps, c] = sum over samples and windows of g[n, k, window] * x[n, c, window's tap].

    Channels are innermost, as tiles of tensor cores want them; the kernel's own order is a copy.
    Where a group has one input channel, no dimension is only x's besides the taps: a plain reduction. Its
    results lie by taps, so that channels are innermost there too, as they are in images.
    """
    cotangent, data = x
    attrs = op.attributes
    data_layout, kernel_layout = attrs["data_layout"], attrs["kernel_layout"]
    letters = letters_of(data_layout)
    geometry = weight_gradient_of(cotangent.tensor, data.tensor, attrs, len(letters))
    t = accumulated(result_type(op))
    names = {"O": "k", "I": "c", **TAPS}
    order = f"I{letters}O" if geometry.depthwise else f"O{letters}I"
    extents = dict(zip(kernel_layout, t.shape, strict=True))
    par = {names[d]: extents[d] for d in order}
    result = TensorType(t.dtype, tuple(par.values()))
    windows = dict(zip(letters, geometry.windows, strict=True))
    red = {"n": geometry.batch, **{OUTPUTS[d]: w.count for d, w in windows.items()}}
    k, c = Sym("k"), Sym("c")
    channel: Expr = c
    if geometry.groups > 1:
        first = k // geometry.filters
        channel = first if geometry.channels == 1 else first * geometry.channels + c
    at: dict[str, Expr] = {"N": Sym("n"), "C": k, **{d: Sym(OUTPUTS[d]) for d in letters}}
    taps: dict[str, Expr] = {"N": Sym("n"), "C": channel, **window_reads(attrs, letters)}
    reads = [tuple(at[d] for d in data_layout), tuple(taps[d] for d in data_layout)]
    name = "tensor.reduce" if geometry.depthwise else "tensor.contract"
    fill = (None, zero(data.tensor.dtype))
    sums = reduced(b, name, x, result, par, red, reads, multiply_add, fill=fill)
    if order != kernel_layout:
        place = dict(zip(kernel_layout, map(Sym, dim_names(t.rank)), strict=True))
        sums = moved(b, sums, t, [place[d] for d in order])
    return [converted(b, sums, result_type(op))]
