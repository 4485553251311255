"""Recurrences in one cluster as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.resident.lowering import lower_resident
from tilewright.passes.kernels.resident.parameters import ResidentParameters
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="resident",
        parameters=ResidentParameters,
        lower=lower_resident,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
