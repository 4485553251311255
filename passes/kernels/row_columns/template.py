"""Kernels of rows and columns as a kernel template: arrays read once for both kinds of sums."""

from __future__ import annotations

from tilewright.costmodel import GpuHardware, Hardware, RowReduceParameters
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import Func
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.row_columns.lowering import lower_row_columns
from tilewright.passes.kernels.row_columns.space import choose_row_columns, row_columns_problem
from tilewright.passes.kernels.row_columns.view import rows_and_columns
from tilewright.passes.kernels.template import Choices, KernelTemplate


def _least_s(kernel: Func, hardware: Hardware) -> float | None:
    view = rows_and_columns(kernel)
    if view is None or not isinstance(hardware, GpuHardware):
        return None
    return global_bound(row_columns_problem(kernel, view, hardware), hardware).seconds


register_template(
    KernelTemplate(
        name="row_columns",
        parameters=RowReduceParameters,
        lower=lower_row_columns,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
register_choices(Choices("row_columns", precedence=9, choose=choose_row_columns, least_s=_least_s))
