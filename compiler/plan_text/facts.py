"""Facts that follow from a plan and are shown with it: names, lifetimes, results in place, early starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: what a buffer that the network returns lives until
RETURN = "return"


@dataclass(frozen=True)
class PlanFacts:
    """Facts of a well-formed plan.

    names: of each launch, unique. live: per buffer of the arena the names of the first and the last launch in
        the plan's order that use its bytes; what the network returns lives until `RETURN`.
    in_place_of: per buffer that a launch writes over one of its operands, the operand.
    programmatic: per launch those of its `deps` that need not have ended when it starts.
    """

    names: tuple[str, ...]
    live: Mapping[str, tuple[str, ...]]
    in_place_of: Mapping[str, str]
    programmatic: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(plan: ExecutionPlan, names: Sequence[str] | None = None) -> PlanFacts:
        """The facts of a plan; names: those of its launches, by default `launch_names`."""
        names = tuple(names) if names is not None else launch_names(plan)
        return PlanFacts(names, _live(plan, names), _in_place_of(plan), _programmatic(plan))


def launch_names(plan: ExecutionPlan) -> tuple[str, ...]:
    """A name per launch: that of its kernel, from the second launch of a kernel on with `#2`, `#3`, ... .

    A launch keeps its name where launches of other kernels come or go before it.
    """
    seen: Counter[str] = Counter()
    names = []
    for launch in plan.launches:
        seen[launch.kernel] += 1
        count = seen[launch.kernel]
        names.append(launch.kernel if count == 1 else f"{launch.kernel}#{count}")
    return tuple(names)


def _live(plan: ExecutionPlan, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    uses: dict[str, list[str]] = {}
    for launch, name in zip(plan.launches, names, strict=True):
        for argument in launch.args:
            uses.setdefault(plan.locate(argument)[0].name, []).append(name)
    returned = {plan.locate(name)[0].name for name in plan.outputs}
    arena = [b.name for b in plan.buffers if b.kind == "arena" and b.name in uses]
    return {b: (uses[b][0], RETURN if b in returned else uses[b][-1]) for b in arena}


def _in_place_of(plan: ExecutionPlan) -> dict[str, str]:
    """Pairs that a launch may overwrite in place, where the plan did put both into the same bytes."""
    pairs: dict[str, str] = {}
    for launch in plan.launches:
        for read, written in launch.in_place:
            one, other = launch.args[read], launch.args[written]
            if _arena_place(plan, one) is not None and _arena_place(plan, one) == _arena_place(plan, other):
                pairs.setdefault(other, one)
    return pairs


def _arena_place(plan: ExecutionPlan, name: str) -> int | None:
    """The byte of the arena where a buffer begins; None where it lies elsewhere."""
    owner, offset = plan.locate(name)
    return owner.offset + offset if owner.kind == "arena" else None


def _programmatic(plan: ExecutionPlan) -> tuple[tuple[int, ...], ...]:
    """An edge between two kernels that both wait themselves is programmatic (see `ExplicitGraph`)."""
    able = [plan.kernel_by_name[launch.kernel].overlaps for launch in plan.launches]
    return tuple(
        tuple(dep for dep in launch.deps if able[i] and able[dep]) for i, launch in enumerate(plan.launches)
    )
