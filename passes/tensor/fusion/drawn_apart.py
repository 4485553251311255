"""Draws apart: what products compute of nothing large behind their sums, such as masks of dropout, gets a
kernel of its own where that takes less time by the model.

A partition in, a partition out: the groups of products lose such ops to groups of maps.
"""

from __future__ import annotations

from math import inf

from tilewright.costmodel import Hardware
from tilewright.ir import Func, InputError, Op, UnsupportedError, Value
from tilewright.passes import PassContext
from tilewright.passes.analysis.index_sets import recompute_cost
from tilewright.passes.tensor.fusion.costs import parametrised_s
from tilewright.passes.tensor.fusion.kernel_groups import (
    SMALL_BYTES,
    KernelGroup,
    Partition,
    in_order,
    readers,
    used_outside,
)
from tilewright.passes.tensor.fusion.outline_kernel import outline

#: work of a point, in additions, below which a product computes it in less time than it reads the result: a
#: call of random bits has some hundred
LEAST_WORK = 64


def draws_apart(part: Partition, func: Func, hardware: Hardware, ctx: PassContext) -> Partition:
    """Give draws of products groups of their own where the model says that both kernels take less time.

    rewrite:  product(%x, %w, %seed) with dropout behind its sums
        -->   %mask = maps(%seed); product(%x, %w, %mask)

    A map has all warps of a multiprocessor to draw with; of a product those of one tile draw, after their
    sums.
    """
    read_by = readers(part, func)
    for group in tuple(part.groups):
        draws = _draws(group, part)
        if not draws:
            continue
        rest = [op for op in group.ops if op not in draws]
        own = KernelGroup(1 + max(g.number for g in part.groups), draws[0], draws)
        fewer = KernelGroup(group.number, group.anchor, rest)
        apart_s = sum(_seconds(g, part, read_by, hardware, ctx) for g in (own, fewer))
        if apart_s < _seconds(group, part, read_by, hardware, ctx):
            group.ops = rest
            part.groups.append(own)
            part.source.update((r, own) for op in draws for r in op.results)
    part.groups = in_order(part.groups, lambda v: part.source.get(part.resolve(v)))
    return part


def _draws(group: KernelGroup, part: Partition) -> list[Op]:
    """Ops behind the sums of a product that need neither these nor any large array, if they are much work."""
    if group.anchor.name != "tensor.contract":
        return []
    at = group.ops.index(group.anchor)
    draws: list[Op] = []
    made: set[Value] = set()
    for op in group.ops[at + 1 :]:
        sources = [v for v in map(part.resolve, op.operands) if v not in made]
        if op.name == "tensor.map" and all(_small(v, group, part) for v in sources):
            draws.append(op)
            made.update(op.results)
    return draws if sum(map(recompute_cost, draws)) >= LEAST_WORK else []


def _small(v: Value, group: KernelGroup, part: Partition) -> bool:
    return v.tensor.nbytes <= SMALL_BYTES and part.source.get(v) is not group


def _seconds(
    group: KernelGroup,
    part: Partition,
    read_by: dict[Value, set[int]],
    hardware: Hardware,
    ctx: PassContext,
) -> float:
    """Seconds of the kernel that a group becomes, its boundary included; inf where no parameters fit."""
    outputs = used_outside(group, read_by)
    kernel, _ = outline(group.ops, group.anchor, outputs, "k", part.resolve)
    try:
        return parametrised_s(ctx.estimator.kernel(kernel, ctx), hardware)
    except (InputError, UnsupportedError):
        return inf
