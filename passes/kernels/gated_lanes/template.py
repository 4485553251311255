"""Products of float32 with the gates of their units as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.gated_lanes.lowering import lower_gated_lanes
from tilewright.passes.kernels.gated_lanes.parameters import GatedLanesParameters
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="product_gates_lanes",
        parameters=GatedLanesParameters,
        lower=lower_gated_lanes,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
