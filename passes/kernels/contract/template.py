"""Contractions on a device's ordinary lanes as a kernel template."""

from __future__ import annotations

from tilewright.costmodel import ContractParameters
from tilewright.passes.kernels.contract.choice import (
    choose_lanes,
    contract_candidates,
    lanes_engine,
    least_lanes_s,
)
from tilewright.passes.kernels.contract.lowering import lower_contract
from tilewright.passes.kernels.contract.weights import columns_last
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

CONTRACT = register_template(
    KernelTemplate(
        name="contract",
        parameters=ContractParameters,
        lower=lower_contract,
        weight_order=columns_last,
        prefetches_weights=True,
        rounds_to=None,
        joined=None,
        engine=lanes_engine,
        neighbours={},
        variants=None,
        candidates=contract_candidates,
    )
)

register_choices(Choices("contract", precedence=30, choose=choose_lanes, least_s=least_lanes_s))
