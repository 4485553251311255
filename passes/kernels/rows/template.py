"""Kernels that reduce the rows of a tensor, in four ways of walking along them, as kernel templates."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.costmodel import RowReduceParameters
from tilewright.ir import Func
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.rows.across import lower_rows_across
from tilewright.passes.kernels.rows.choice import choose_rows_of, least_rows_s
from tilewright.passes.kernels.rows.lowering import lower_rows
from tilewright.passes.kernels.rows.lowering_staged import lower_rows_staged
from tilewright.passes.kernels.rows.walks import lower_rows_kept
from tilewright.passes.kernels.template import Choices, KernelTemplate


def _register(name: str, lower: Callable[[Func], Func]) -> None:
    register_template(
        KernelTemplate(
            name=name,
            parameters=RowReduceParameters,
            lower=lower,
            contraction=None,
            rounds_to=None,
            joined=None,
            neighbours={},
            variants=None,
        )
    )


_register("rows", lower_rows)
_register("rows_across", lower_rows_across)
_register("rows_kept", lower_rows_kept)
_register("rows_staged", lower_rows_staged)

register_choices(Choices("rows", precedence=10, choose=choose_rows_of, least_s=least_rows_s))
