"""Sums over pairs on tensor cores as a kernel template: products and weights stay in registers."""

from __future__ import annotations

from tilewright.passes.kernels.pair_sums.choice import choose_pair_sums, pair_variants
from tilewright.passes.kernels.pair_sums.lowering import lower_pair_sums
from tilewright.passes.kernels.pair_sums.parameters import PairParameters
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="pair_sums",
        parameters=PairParameters,
        lower=lower_pair_sums,
        contraction=None,
        rounds_to="tf32",
        joined=None,
        neighbours={},
        variants=pair_variants,
        choose_for_words=choose_pair_sums,
    )
)
