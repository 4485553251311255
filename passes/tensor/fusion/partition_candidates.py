"""All sets of ops that can be one kernel: connected, convex, lowered by a skeleton or a registered kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import InputError
from tilewright.passes.tensor.fusion.partition_graph import OpGraph, members
from tilewright.passes.tensor.fusion.partition_legality import refusal

#: sets to look at for one function at most
MAX_SETS = 40_000


@dataclass(frozen=True)
class FoundGroup:
    """A set of ops that a registered kind computes as one kernel, and its estimated seconds."""

    ops: int
    seconds: float


#: finds groups of its kind in a graph, for a device
GroupKind = Callable[[OpGraph, Hardware], Iterable[FoundGroup]]
_KINDS: dict[str, GroupKind] = {}


def register_group_kind(name: str) -> Callable[[GroupKind], GroupKind]:
    """Let partitioners choose groups that the function finds; a second one of this name is an error.

    The groups must be convex; whoever chooses parameters and lowers kernels must know them by their ops.
    """

    def decorate(find: GroupKind) -> GroupKind:
        other = _KINDS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (
            find.__module__,
            find.__qualname__,
        ):
            raise InputError(f"group kind '{name}' is defined twice, in {find.__module__} too")
        _KINDS[name] = find
        return find

    return decorate


def unregister_group_kind(name: str) -> None:
    """Forget a kind."""
    del _KINDS[name]


def found_groups(graph: OpGraph, hardware: Hardware) -> list[FoundGroup]:
    """What the registered kinds find; raises InputError where a group would wait for itself."""
    out = []
    for name, find in _KINDS.items():
        for group in find(graph, hardware):
            if not graph.convex(group.ops):
                raise InputError(f"group kind '{name}' found ops that would wait for themselves")
            out.append(group)
    return out


@dataclass(frozen=True)
class Candidates:
    """Sets that can be one kernel, single ops included; `complete` unless there were too many to look at."""

    sets: list[int]
    complete: bool


def candidates(graph: OpGraph, most: int = MAX_SETS) -> Candidates:
    """Every connected, convex set of ops that a skeleton lowers as one kernel.

    Sets grow by one neighbour at a time. That reaches all: a connected convex set always has a first or last
    op without which it stays connected and convex, and a reason that is not curable holds for every larger
    set.
    """
    singles = [1 << i for i in range(len(graph.ops))]
    found = list(singles)
    seen: set[int] = set(singles)
    level = singles
    while level:
        grown: list[int] = []
        for ops in level:
            for v in _neighbours(graph, ops):
                larger = ops | 1 << v
                if larger in seen:
                    continue
                seen.add(larger)
                if not graph.convex(larger):
                    continue
                reason = refusal(graph, larger)
                if reason is None:
                    found.append(larger)
                if reason is None or reason.curable:
                    grown.append(larger)
                if len(grown) + len(found) > most:
                    return Candidates(found, False)
        level = grown
    return Candidates(found, True)


def _neighbours(graph: OpGraph, ops: int) -> Iterable[int]:
    around = 0
    for i in members(ops):
        around |= graph.preds[i] | graph.succs[i]
    return members(around & ~ops)
