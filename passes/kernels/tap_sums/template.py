"""Sums over images for every tap of a window as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.tap_sums.choice import choose_tap_sums
from tilewright.passes.kernels.tap_sums.lowering import lower_tap_sums
from tilewright.passes.kernels.tap_sums.parameters import TapSumParameters
from tilewright.passes.kernels.template import Choices, KernelTemplate

register_template(
    KernelTemplate(
        name="tap_sums",
        parameters=TapSumParameters,
        lower=lower_tap_sums,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={"threads_per_group": (4, 8, 16, 32, 64), "groups_per_block": (2, 4, 8, 16, 32)},
        variants=None,
    )
)

register_choices(
    Choices("tap_sums", precedence=8, choose=choose_tap_sums, least_s=lambda kernel, hardware: None)
)
