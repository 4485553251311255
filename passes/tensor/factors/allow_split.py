"""Pass allow-split: long sums of products of float32 may be computed from pieces of their factors."""

from __future__ import annotations

from math import prod

from tilewright.costmodel import Hardware, load_hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Func, Level, Op
from tilewright.ir.tensor.ops import SPLIT, dims
from tilewright.passes import PassContext, register_pass

#: products of the shortest sum: below, chains of float32 additions are as precise (docs/adr/0046)
LEAST_SUM = 128


@register_pass(Level.TENSOR)
def allow_split(func: Func, ctx: PassContext) -> Func:
    """Let tensor cores multiply float32 factors in pieces of bfloat16.

    Three pieces hold a factor, six of their products make the product of two, sums of a few of them are added
    in float32: errors are no larger than those of chains of float32 additions, for sums of 128 products and
    more.

    rewrite:  tensor.contract(%a, %b, ...)   -->   tensor.contract(%a, %b, ..., factors = "split")

    It is a permission: kernels on the lanes, which the cost model may prefer, multiply in float32. Devices
    without tensor cores for bfloat16 get none.
    """
    if not _has_pieces(ctx.hardware or load_hardware(ctx.target)):
        return func
    chosen = [op.name == "tensor.contract" and not op["factors"] and _long_sum(op) for op in func.body.ops]
    if not any(chosen):
        return func
    ops = [op.with_attrs(factors=SPLIT) if c else op for op, c in zip(func.body.ops, chosen, strict=True)]
    return func.with_body(func.body.with_ops(tuple(ops)))


def _has_pieces(hardware: Hardware) -> bool:
    return isinstance(hardware, GpuHardware) and hardware.tensor_fma_16bit_per_sm_per_clk > 0


def _long_sum(op: Op) -> bool:
    products = prod(dims(op, "red").values())
    return products >= LEAST_SUM and all(v.tensor.dtype == "f32" for v in (*op.operands, op.result))
