"""Chained products as a kernel template."""

from __future__ import annotations

from tilewright.ir import Func, InputError, Op
from tilewright.passes.kernels.chained.choice import chained_variants
from tilewright.passes.kernels.chained.lowering import lower_chained
from tilewright.passes.kernels.chained.parameters import ChainedParameters
from tilewright.passes.kernels.chained.view import chained_view
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate
from tilewright.passes.kernels.weight_order import WeightOrder, axes_channel_last


def channels_last(kernel: Func, op: Op) -> WeightOrder:
    """The weights of either product in rows of the channel, as the copy engine brings them."""
    view = chained_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected two chained products, but {view}", where=f"@{kernel.name}")
    channel = view.first.channel if op is view.first.op else view.second.channel
    return WeightOrder(axes_channel_last(op, channel), rounds=False)


register_template(
    KernelTemplate(
        name="chained",
        parameters=ChainedParameters,
        lower=lower_chained,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={},
        variants=chained_variants,
        weight_order=channels_last,
    )
)
