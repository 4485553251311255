"""Pass choose-layouts: the order of dimensions of intermediate values, chosen over the whole network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import Func, Level, Pairs, Value
from tilewright.ir.tensor.ops import STRUCTURED
from tilewright.passes import PassContext, register_pass
from tilewright.passes.tensor.layouts.axes import Order, channels_last_orders, conversions, rewritten
from tilewright.passes.tensor.layouts.cost import LayoutCosts, on_tensor_cores
from tilewright.passes.tensor.layouts.cut import least_cost
from tilewright.passes.tensor.layouts.weights import with_weights_innermost

#: CUDA architecture from which tensor cores are used
FIRST_MATRIX_ARCH = 80


@register_pass(Level.TENSOR)
def choose_layouts(
    func: Func, ctx: PassContext, *, layout: Literal["auto", "first", "last"] = "auto"
) -> Func:
    """Let intermediate values keep their channels innermost where that costs less.

    rewrite:  %y = tensor.contract(%x, %w, par = (n, k, y, x), reads = [[n, c, y, x], [k, c]])
        -->   %y = tensor.contract(%x, %w, par = (n, y, x, k), reads = [[n, y, x, c], [k, c]])

    Values are dense and row-major: the order of their dimensions is their layout, and every read follows it.
    Parameters, constants and results of the network keep theirs. `last` moves the channels of all other
    values to the end, `first` changes nothing; `auto` compares both for each value by the costs of all that
    read and make it (a minimum cut), on CPUs and where there are contractions for tensor cores, and changes
    nothing elsewhere. How many values changed, and which ops must move elements for it, stands in the
    attribute `layouts`. Constant weights of windows get a copy in the order that is read, for
    `fold-constant-tensors`.
    """
    if layout == "first" or any(op.name == "tensor.call" for op in func.body.ops):
        return func
    if layout == "auto" and not (has_matrix_units(func, ctx) or _on_cpu(func, ctx)):
        return func
    orders = channels_last_orders(func)
    if layout == "auto":
        orders = _cheapest(func, orders, ctx)
    if not orders:
        return func
    moved = conversions(func, orders)
    facts = Pairs.of(
        {
            "channels_last": len(orders),
            "values": sum(len(op.results) for op in func.body.ops if op.name in STRUCTURED),
            "conversions": tuple(op.loc or op.name for op in moved),
        }
    )
    return with_weights_innermost(rewritten(func, orders)).with_attrs(layouts=facts)


def has_matrix_units(func: Func, ctx: PassContext) -> bool:
    """Whether the device has tensor cores that some contraction of the program may use."""
    arch = re.search(r":sm_(\d+)", ctx.target)
    new_enough = arch is not None and int(arch.group(1)) >= FIRST_MATRIX_ARCH
    return new_enough and any(map(on_tensor_cores, func.body.ops))


def _on_cpu(func: Func, ctx: PassContext) -> bool:
    """Whether the device is a CPU, whose vectors lie along channels, and the program has contractions."""
    products = any(op.name == "tensor.contract" for op in func.body.ops)
    return products and isinstance(ctx.hardware or load_hardware(ctx.target), CpuHardware)


def _cheapest(func: Func, orders: Mapping[Value, Order], ctx: PassContext) -> dict[Value, Order]:
    """The orders worth changing to."""
    hardware = ctx.hardware or load_hardware(ctx.target)
    last = least_cost(LayoutCosts(orders, hardware).energy(func))
    leaders = {r: op.results[0] for op in func.body.ops for r in op.results}
    return {v: order for v, order in orders.items() if leaders[v] in last}
