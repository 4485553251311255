"""Products with the gates of their units as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.gated.lowering import lower_gated
from tilewright.passes.kernels.gated.parameters import GatedParameters
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="product_gates",
        parameters=GatedParameters,
        lower=lower_gated,
        contraction=None,
        rounds_to="tf32",
        joined=None,
        neighbours={},
        variants=None,
    )
)
