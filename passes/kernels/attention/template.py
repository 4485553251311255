"""Attention on tensor cores as a kernel template: scores, softmax and mix stay in registers."""

from __future__ import annotations

from tilewright.passes.kernels.attention.choice import (
    attention_variants,
    choose_attention,
    may_become_attention,
)
from tilewright.passes.kernels.attention.lowering import lower_attention
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import Joined, KernelTemplate

register_template(
    KernelTemplate(
        name="attention",
        parameters=AttentionParameters,
        lower=lower_attention,
        contraction=None,
        rounds_to="tf32",
        joined=Joined(
            precedence=10,
            choose=choose_attention,
            may_grow=may_become_attention,
            anchors=lambda kernel: "contract-reduce-reduce-contract",
            keeps_registers=True,
        ),
        neighbours={},
        variants=attention_variants,
        choose_for_words=choose_attention,
    )
)
