"""Chooses the parameters of kernels of maps by the cost model."""

from __future__ import annotations

from tilewright.costmodel import Hardware, choose_map
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.ir import Func
from tilewright.passes.analysis.index_sets import POINTWISE
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import stream_problem

_RETURN = "tensor.return"


def choose_maps(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of maps with its parameters; None for other kernels."""
    if not _pointwise(kernel):
        return None
    return decided(kernel, "map", choose_map(stream_problem(kernel), hardware))


def least_maps_s(kernel: Func, hardware: Hardware) -> float | None:
    """Seconds a kernel of maps takes at least; None for other kernels."""
    if not _pointwise(kernel):
        return None
    return global_bound(stream_problem(kernel), hardware, MEASURED_LOOP).seconds


def _pointwise(kernel: Func) -> bool:
    return {op.name for op in kernel.body.ops} <= POINTWISE | {_RETURN}
