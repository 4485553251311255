"""Contractions on a device's ordinary lanes as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import ContractParameters
from tilewright.ir import Func, Op, Sym
from tilewright.ir.tensor.ops import reads
from tilewright.passes.kernels.contract.choice import (
    choose_lanes,
    contract_candidates,
    lanes_engine,
    least_lanes_s,
)
from tilewright.passes.kernels.contract.lowering import lower_contract
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, ContractionEngine, KernelTemplate
from tilewright.passes.kernels.weight_order import WeightOrder


def columns_last(kernel: Func, op: Op) -> WeightOrder:
    """The dimension of columns that is cut into tiles comes last; `op` is the kernel's contraction."""
    at, column = reads(op)[1], contract_roles(op).columns[-1]
    last = next(i for i, e in enumerate(at) if e == Sym(column))
    axes = (*(i for i in range(len(at)) if i != last), last)
    return WeightOrder(axes, rounds=False, tile=_tile(kernel, op.operands[1].tensor.shape[last], column))


def _tile(kernel: Func, extent: int, column: str) -> int:
    """Columns that a work-item of a CPU's kernel computes, where there are several such tiles; else 0."""
    p = parameters_of(kernel, ContractParameters)
    return p.thread[column] if p.staging == "direct" and 1 < p.thread[column] < extent else 0


CONTRACT = register_template(
    KernelTemplate(
        name="contract",
        parameters=ContractParameters,
        lower=lower_contract,
        contraction=ContractionEngine(
            weight_order=columns_last,
            prefetches_weights=True,
            preloaded=None,
            points=lanes_engine,
            candidates=contract_candidates,
        ),
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_choices(Choices("contract", precedence=30, choose=choose_lanes, least_s=least_lanes_s))
