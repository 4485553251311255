"""Chains whose products run on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.ir import Func, InputError, Op
from tilewright.passes.kernels.chain_tiles.choice import chain_tiles_variants
from tilewright.passes.kernels.chain_tiles.lowering import lower_chain_tiles
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters
from tilewright.passes.kernels.matrix.view import matrix_view
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate
from tilewright.passes.kernels.weight_order import WeightOrder, axes_channel_last


def channels_last(kernel: Func, op: Op) -> WeightOrder:
    """The weights of a product in rows of the channel, as asynchronous copies bring them."""
    view = matrix_view(kernel, op)
    if view is None:
        raise InputError("expected a product for tensor cores", where=f"@{kernel.name}")
    return WeightOrder(axes_channel_last(op, view.channel), rounds=False)


register_template(
    KernelTemplate(
        name="chain_tiles",
        parameters=ChainTilesParameters,
        lower=lower_chain_tiles,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=chain_tiles_variants,
        weight_order=channels_last,
    )
)
