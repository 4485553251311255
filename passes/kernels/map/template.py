"""Maps over the points of their results as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import MapParameters
from tilewright.passes.kernels.map.choice import choose_maps, least_maps_s
from tilewright.passes.kernels.map.lowering import lower_map
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

register_template(
    KernelTemplate(
        name="map",
        parameters=MapParameters,
        lower=lower_map,
        weight_order=None,
        prefetches_weights=False,
        rounds_to=None,
        joined=None,
        engine=None,
        neighbours={"threads": (64, 128, 256, 512), "items": (1, 2, 4)},
        variants=None,
        candidates=None,
    )
)

register_choices(Choices("map", precedence=50, choose=choose_maps, least_s=least_maps_s))
