"""The algorithms that can compute a convolution: each lowering registers what stands against its own."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import Op
from tilewright.ir.graph_ops.convolution import ConvolutionGeometry, convolution_of
from tilewright.ir.types import FLOATS

#: (the convolution's extents) -> why the algorithm cannot compute it, or nothing
Obstacle = Callable[[ConvolutionGeometry], str]

#: by the name of each algorithm beside direct sums
OBSTACLES: dict[str, Obstacle] = {}


def obstacle_to(name: str, op: Op) -> str:
    """Why graph.conv2d `op` cannot be computed by the algorithm; empty where it can."""
    data, weight = (v.tensor for v in op.operands)
    if name == "direct":
        return ""
    if data.dtype not in FLOATS or op.result.tensor.dtype != data.dtype:
        return f"expected one floating dtype, got {data.dtype} and a result of {op.result.tensor.dtype}"
    g = convolution_of(data, weight, op.attributes, 2)
    if 0 in (g.batch, *data.shape, *op.result.tensor.shape):
        return f"expected operands with elements, got {data}"
    if any(w.stride != 1 or w.dilation != 1 for w in g.windows):
        return "expected strides and dilation of 1"
    return OBSTACLES[name](g)
