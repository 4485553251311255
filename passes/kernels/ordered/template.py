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
        weight_order=None,
        prefetches_weights=False,
        rounds_to=None,
        joined=None,
        engine=None,
        neighbours={},
        variants=None,
        candidates=None,
    )
)

register_template(
    KernelTemplate(
        name="scatter",
        parameters=ScatterParameters,
        lower=lower_scatter,
        weight_order=None,
        prefetches_weights=False,
        rounds_to=None,
        joined=None,
        engine=None,
        neighbours={},
        variants=None,
        candidates=None,
    )
)

register_choices(
    Choices("ordered", precedence=60, choose=choose_walks, least_s=lambda kernel, hardware: None)
)
