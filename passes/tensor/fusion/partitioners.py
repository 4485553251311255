"""Partitions of a tensor function into kernels, by the name of what chooses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Func, InputError, Value
from tilewright.passes import PassContext
from tilewright.passes.tensor.fusion.costs import KernelCosts, anchor_of
from tilewright.passes.tensor.fusion.covers import Cover, algorithm1, cheapest_partition
from tilewright.passes.tensor.fusion.drawn_apart import draws_apart
from tilewright.passes.tensor.fusion.kernel_groups import KernelGroup, Partition, in_order, partition
from tilewright.passes.tensor.fusion.legality import candidates
from tilewright.passes.tensor.fusion.maximal import maximal_sets, sums_first
from tilewright.passes.tensor.fusion.op_graph import OpGraph, members

#: names of what can choose
PARTITIONERS = ("rules", "exact", "algorithm1", "maximal", "none")


@dataclass(frozen=True)
class Priced:
    """The sets of ops of a graph that can be one kernel, with their seconds.

    complete: whether these are all such sets. by_rules, maximal: the sets of these partitions.
    """

    graph: OpGraph
    seconds: Mapping[int, float]
    complete: bool
    by_rules: tuple[int, ...]
    maximal: tuple[int, ...]


def partition_by(
    func: Func, name: str, ctx: PassContext, *, prologues: bool = True, unstored: Collection[Value] = ()
) -> Partition:
    """The partition that the partitioner of this name chooses; raises InputError for an unknown one.

    prologues, unstored: of `rules` (see `kernel_groups.partition`).
    """
    if name not in PARTITIONERS:
        raise InputError(f"expected a partitioner among {', '.join(PARTITIONERS)}, got '{name}'")
    if name == "rules":
        return _by_rules(func, ctx, prologues=prologues, unstored=unstored)
    if name == "none":
        return partition(func, fuse=False)
    if name == "maximal":
        graph = OpGraph(func)
        part = as_partition(graph, maximal_sets(graph))
        for g in part.groups:
            g.ops = sums_first(g.ops)
        return part
    priced = price(func, ctx)
    return as_partition(priced.graph, choose(priced, name).sets)


def _by_rules(
    func: Func, ctx: PassContext, *, prologues: bool = True, unstored: Collection[Value] = ()
) -> Partition:
    part = partition(func, prologues=prologues, unstored=unstored)
    hardware = ctx.hardware or load_hardware(ctx.target)
    return draws_apart(part, func, hardware, ctx) if isinstance(hardware, GpuHardware) else part


def price(func: Func, ctx: PassContext) -> Priced:
    """Return all sets of ops of a flat tensor function that can be one kernel, and their cost on the
    device.
    """
    graph = OpGraph(func)
    hardware = ctx.hardware or load_hardware(ctx.target)
    costs = KernelCosts(graph, hardware, ctx)
    possible = candidates(graph)
    by_rules, maximal = sets_of(graph, _by_rules(func, ctx)), maximal_sets(graph)
    seconds = {s: costs.seconds(s) for s in dict.fromkeys((*possible.sets, *by_rules, *maximal))}
    finite = {s: t for s, t in seconds.items() if t < inf}
    return Priced(graph, finite, possible.complete, by_rules, maximal)


def choose(priced: Priced, name: str) -> Cover:
    """The partition by name among priced sets, one of `PARTITIONERS`; inf where a set has no price.

    `exact` is the cheapest one, and says so in `Cover.exact`; where there are too many sets or states to
    know, it is no worse than `rules` and `algorithm1`.
    """
    graph, seconds = priced.graph, priced.seconds
    singles = tuple(1 << i for i in range(len(graph.ops)))
    named = {"rules": priced.by_rules, "maximal": priced.maximal, "none": singles}
    if name in named:
        return Cover(named[name], sum(seconds.get(s, inf) for s in named[name]), False)
    if name == "algorithm1":
        return algorithm1(graph, seconds)
    best = cheapest_partition(graph, seconds)
    if best.exact and priced.complete:
        return best
    others = [Cover(c.sets, c.seconds, False) for c in (choose(priced, "rules"), algorithm1(graph, seconds))]
    return min((Cover(best.sets, best.seconds, False), *others), key=lambda c: c.seconds)


def sets_of(graph: OpGraph, part: Partition) -> tuple[int, ...]:
    """The groups of a partition as sets of ops."""
    number = {op: i for i, op in enumerate(graph.ops)}
    return tuple(sum(1 << number[op] for op in g.ops) for g in part.groups)


def as_partition(graph: OpGraph, sets: Iterable[int]) -> Partition:
    """Sets of ops as groups in a valid execution order."""
    part = Partition([], graph.views)
    for s in sorted(sets, key=lambda s: s & -s):
        g = KernelGroup(len(part.groups), graph.ops[anchor_of(graph, s)], [graph.ops[i] for i in members(s)])
        part.groups.append(g)
        part.source.update((r, g) for op in g.ops for r in op.results)
    part.groups = in_order(part.groups, lambda v: part.source.get(part.resolve(v)))
    return part
