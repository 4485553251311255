"""Recurrences along one dimension as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import Hardware
from tilewright.ir import Func
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import line_problem, only_op
from tilewright.passes.kernels.ordered.choose_lines import choose_lines
from tilewright.passes.kernels.recurrence.lowering import MAX_LINE_BYTES, RecurrenceParameters, lower_recur
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate


def choose_recurrence(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one recurrence with its parameters; None for other kernels."""
    op = only_op(kernel, "tensor.recur")
    if op is None:
        return None
    lines = choose_lines(line_problem(kernel, op), hardware)
    # several threads keep their line in shared memory
    fits = dims(op, "par")[str(op["dim"])] * itemsize(op.result.tensor.dtype) <= MAX_LINE_BYTES
    parameters = RecurrenceParameters(lines.parameters.owners if fits else 1)
    return decided(kernel, "recur", lines, parameters)


register_template(
    KernelTemplate(
        name="recur",
        parameters=RecurrenceParameters,
        lower=lower_recur,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_choices(
    Choices("recurrence", precedence=70, choose=choose_recurrence, least_s=lambda kernel, hardware: None)
)
