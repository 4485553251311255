"""Scans, ordered updates and updates of rows as kernel templates: threads walk step by step."""

from __future__ import annotations

from tilewright.costmodel import Hardware
from tilewright.ir import Func
from tilewright.passes.kernels.ordered.choose_lines import choose_walks
from tilewright.passes.kernels.ordered.choose_rows import choose_row_updates
from tilewright.passes.kernels.ordered.lowering import (
    ScanParameters,
    ScatterParameters,
    lower_scan,
    lower_scatter,
)
from tilewright.passes.kernels.ordered.row_updates import (
    RowUpdateParameters,
    lower_joined_updates,
    lower_row_updates,
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

register_template(
    KernelTemplate(
        name="join_updates",
        parameters=RowUpdateParameters,
        lower=lower_joined_updates,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_template(
    KernelTemplate(
        name="update_rows",
        parameters=RowUpdateParameters,
        lower=lower_row_updates,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)


def _choose(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one op whose steps are ordered, with its parameters; None for other kernels."""
    return choose_row_updates(kernel, hardware) or choose_walks(kernel, hardware)


register_choices(Choices("ordered", precedence=60, choose=_choose, least_s=lambda kernel, hardware: None))
