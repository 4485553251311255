"""Pass join-groups: convolutions of many small groups multiply several groups at once, with zeros between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.products.parallel_products import CONVOLUTIONS
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: joined groups must be estimated to take at most this share of the time of single ones
GAIN = 0.8
#: channels of a group that would read more zeros than tensor cores gain
MOST_CHANNELS = 256


@register_pass(Level.GRAPH, requires={"shapes-known"})
def join_groups(
    module: Module, ctx: PassContext, *, factors: Literal["", "tf32", "split"] = "", always: bool = False
) -> Module:
    """Let grouped convolutions with constant weights have fewer, larger groups, where that takes less time.

    rewrite:  graph.conv2d(%x, "w", groups = 32), w: f16[128, 4, 3, 3]
        -->   graph.conv2d(%x, "w.joined", groups = 2), w.joined: f16[128, 64, 3, 3], zeros but for the four
              channels of each filter's own group

    Four channels fill an eighth of what a tensor core multiplies in one step, and their columns are no tile;
    sixteen groups of them are whole rows of a tile, so that sixteen times as many operations take a fraction
    of the time. A factor that is not finite makes results of the groups joined with its own NaN. On a GPU;
    depthwise convolutions keep their windows. factors: what float32 factors will be allowed (passes
    `allow-tf32` and `allow-split`), which the estimates are to know. always: join as many as `MOST_CHANNELS`
    admit.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if not isinstance(hardware, GpuHardware):
        return module

    def seconds(op: Op) -> float:
        return ctx.estimator.product_s(op, hardware, factors=factors)

    def joined(op: Op, rewriter: Rewriter) -> list[Value] | None:
        weights = rewriter.constant(op.operands[1])
        together = list(_together(op)) if weights is not None else []
        if weights is None or not together:
            return None
        best = together[-1]
        if not always:
            times = {n: seconds(_with_groups(op, n)) for n in together}
            best = min(together, key=lambda n: times[n])
            if times[best] > GAIN * seconds(op):
                return None
        fresh = _with_groups(op, best)
        t = fresh.operands[1].tensor
        name = f"{rewriter.producers[op.operands[1]]['name']}.joined"
        w = rewriter.new_constant("graph", name, _spread(op, weights, best), t)
        return list(rewriter.emit(op.name, (op.operands[0], w), dict(fresh.attrs), types=[op.result.type]))

    return rewrite_module(module, [Pattern("join-groups", CONVOLUTIONS, joined)], level="graph")


def _channels(op: Op) -> int:
    """Channels of one group."""
    layout = str(op["data_layout"])
    return op.operands[0].tensor.shape[layout.index("C")] // op.integer("groups")


def _together(op: Op) -> Iterator[int]:
    """How many groups of a convolution may be joined: numbers that divide them; none of depthwise ones."""
    groups = op.integer("groups")
    if groups == 1 or op.get("algorithm", "direct") != "direct" or _channels(op) == 1:
        return
    yield from (n for n in range(2, groups + 1) if groups % n == 0 and n * _channels(op) <= MOST_CHANNELS)


def _with_groups(op: Op, together: int) -> Op:
    """The convolution with so many groups joined; its weights have a type only."""
    w = op.operands[1].tensor
    axis = str(op["kernel_layout"]).index("I")
    shape = (*w.shape[:axis], w.shape[axis] * together, *w.shape[axis + 1 :])
    operands = (op.operands[0], Value(TensorType(w.dtype, shape), "w"))
    return replace(op, operands=operands).with_attrs(groups=op.integer("groups") // together)


def _spread(op: Op, weights: np.ndarray, together: int) -> np.ndarray:
    """The weights of joined groups: those of each filter at its own group's channels, zeros elsewhere."""
    layout = str(op["kernel_layout"])
    filters, channels = layout.index("O"), layout.index("I")
    w = np.moveaxis(weights, (filters, channels), (0, 1))
    count, each = w.shape[:2]
    own = np.arange(count) // (count // op.integer("groups")) % together
    out = np.zeros((count, together, each, *w.shape[2:]), weights.dtype)
    out[np.arange(count), own] = w
    joined = out.reshape(count, together * each, *w.shape[2:])
    return np.ascontiguousarray(np.moveaxis(joined, (0, 1), (filters, channels)))
