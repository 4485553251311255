"""Maps over the points of their results as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import Hardware, MapParameters, choose_map
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.ir import Func
from tilewright.passes.analysis.index_sets import POINTWISE
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import stream_problem
from tilewright.passes.kernels.map.lowering import lower_map
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

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


register_template(
    KernelTemplate(
        name="map",
        parameters=MapParameters,
        lower=lower_map,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={"threads": (64, 128, 256, 512), "items": (1, 2, 4)},
        variants=None,
    )
)

register_choices(Choices("map", precedence=50, choose=choose_maps, least_s=least_maps_s))
