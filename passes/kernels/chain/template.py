"""Chains of stages as a kernel template: a block keeps what its stages exchange in shared memory."""

from __future__ import annotations

from tilewright.ir import Func
from tilewright.passes.kernels.chain.choice import choose_chain
from tilewright.passes.kernels.chain.lowering import lower_chain
from tilewright.passes.kernels.chain.parameters import ChainParameters
from tilewright.passes.kernels.chain.stages import stages_of
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import Joined, KernelTemplate


def _anchors(kernel: Func) -> str:
    return "-".join(s.anchor.name.removeprefix("tensor.") for s in stages_of(kernel))


register_template(
    KernelTemplate(
        name="chain",
        parameters=ChainParameters,
        lower=lower_chain,
        contraction=None,
        rounds_to=None,
        joined=Joined(
            precedence=20,
            choose=choose_chain,
            may_grow=lambda kernel: False,
            anchors=_anchors,
            keeps_registers=False,
        ),
        neighbours={},
        variants=None,
    )
)
