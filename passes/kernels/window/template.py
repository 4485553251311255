"""Window reductions that single threads do on their own as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import WindowParameters
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate
from tilewright.passes.kernels.window.choice import choose_windows, least_windows_s
from tilewright.passes.kernels.window.lowering import lower_window

register_template(
    KernelTemplate(
        name="window",
        parameters=WindowParameters,
        lower=lower_window,
        weight_order=None,
        prefetches_weights=False,
        rounds_to=None,
        joined=None,
        engine=None,
        neighbours={"threads": (64, 128, 256, 512)},
        variants=None,
        candidates=None,
    )
)

register_choices(Choices("window", precedence=40, choose=choose_windows, least_s=least_windows_s))
