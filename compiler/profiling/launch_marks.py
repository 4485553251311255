"""Marks: launches of one thread that only stamp the time, put where launches that cannot stamp need bounds.

Kernels of libraries and communications are not ours to change. Each lies between the last thing that stamps
before it and the first that does behind it; where nothing of the plan stamps there, a mark does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.codegen import KernelSource, emit_cuda
from tilewright.ir import parse
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch

_EMPTY = "module @m { thread.func @NAME(grid = [1, 1, 1], block = 1) { thread.return() } }"


@dataclass(frozen=True)
class MarkedPlan:
    """The launches of a plan with marks among them.

    launches: those of the plan in their order and the marks, which have no arguments yet. places: where each
    launch of the plan stands there. bounded: launches of the plan that cannot stamp. before, after: by such
    a launch, where its mark stands, if it has one.
    """

    launches: tuple[Launch, ...]
    places: tuple[int, ...]
    bounded: frozenset[int]
    before: Mapping[int, int]
    after: Mapping[int, int]

    @property
    def marks(self) -> tuple[int, ...]:
        """Where the marks stand, ascending."""
        return tuple(sorted((*self.before.values(), *self.after.values())))


def mark_source(name: str) -> KernelSource:
    """The kernel of all marks: nothing but the stamps of one thread."""
    return emit_cuda(parse(_EMPTY.replace("NAME", name)).funcs[0], stamps=True)


def unstamped(plan: ExecutionPlan) -> frozenset[int]:
    """Launches whose kernels are not made from the thread level, so that they cannot stamp."""
    foreign = {k.name for k in plan.kernels if k.language in ("library", "communication")}
    return frozenset(i for i, launch in enumerate(plan.launches) if launch.kernel in foreign)


def marked(plan: ExecutionPlan, kernel: str) -> MarkedPlan:
    """Put launches of the mark `kernel` before launches that cannot stamp and wait for nothing, and after
    those whose end no other launch tells.

    A mark after a launch delays only launches that cannot stamp either: they wait for it, so that it tells
    their start as well. Launches that stamp run beside it.
    """
    bounded = unstamped(plan)
    late = bounded - _told_by_successors(plan, bounded)
    launches: list[Launch] = []
    places: list[int] = []
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for index, launch in enumerate(plan.launches):
        mark = Launch(kernel, (), (1, 1, 1), 1, stream=launch.stream)
        deps = [after[d] if index in bounded and d in after else places[d] for d in launch.deps]
        if index in bounded and not deps:
            before[index] = len(launches)
            deps = [len(launches)]
            launches.append(mark)
        places.append(len(launches))
        launches.append(replace(launch, deps=tuple(deps)))
        if index in late:
            after[index] = len(launches)
            launches.append(replace(mark, deps=(places[index],)))
    return MarkedPlan(tuple(launches), tuple(places), bounded, before, after)


def _told_by_successors(plan: ExecutionPlan, bounded: frozenset[int]) -> frozenset[int]:
    """Launches that only stamping launches wait for, one of them for nothing else: its start is their end."""
    edges = plan.dag.reduced_predecessors
    alone = {own[0] for index, own in enumerate(edges) if len(own) == 1 and index not in bounded}
    foreign = {dep for index in bounded for dep in plan.launches[index].deps}
    return frozenset(alone - foreign)
