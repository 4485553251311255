"""Recurrences along one dimension as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.recurrence.choice import choose_recurrence
from tilewright.passes.kernels.recurrence.lowering import RecurrenceParameters, lower_recur
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

register_template(
    KernelTemplate(
        name="recur",
        parameters=RecurrenceParameters,
        lower=lower_recur,
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
    Choices("recurrence", precedence=70, choose=choose_recurrence, least_s=lambda kernel, hardware: None)
)
