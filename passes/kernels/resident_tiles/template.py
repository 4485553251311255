"""Recurrences of a batch in one cluster as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.resident_tiles.lowering import lower_resident_tiles
from tilewright.passes.kernels.resident_tiles.parameters import TilesParameters
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="resident_tiles",
        parameters=TilesParameters,
        lower=lower_resident_tiles,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
