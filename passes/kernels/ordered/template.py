"""Scans and ordered updates as kernel templates: threads walk along lines step by step."""

from __future__ import annotations

from tilewright.passes.kernels.ordered.choose_lines import choose_walks
from tilewright.passes.kernels.ordered.lowering import (
    ScanParameters,
    ScatterParameters,
    lower_scan,
    lower_scatter,
)
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

register_template(
    KernelTemplate(
        name="scan",
        parameters=ScanParameters,
        lower=lower_scan,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_template(
    KernelTemplate(
        name="scatter",
        parameters=ScatterParameters,
        lower=lower_scatter,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_choices(
    Choices("ordered", precedence=60, choose=choose_walks, least_s=lambda kernel, hardware: None)
)
