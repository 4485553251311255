"""Chains whose products run on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.chain_tiles.lowering import lower_chain_tiles
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="chain_tiles",
        parameters=ChainTilesParameters,
        lower=lower_chain_tiles,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=None,
    )
)
