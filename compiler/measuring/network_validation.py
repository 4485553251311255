"""The last word among the fastest candidates: each is put into the whole network's replay, which is timed.

A kernel alone finds its weights in the cache and the device to itself; in the network it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.measuring.budget import Budget

#: candidates of a kernel that compete, within this factor of the fastest one alone
CONTENDERS = 3
NEAR = 1.15
#: a candidate is taken where the replay gets shorter by this share; or by less if it does in every round
MARGIN = 0.01
SURE_MARGIN = 0.002
#: kernels that take less than this share of all searched ones decide nothing
LEAST_SHARE = 0.01

#: per group of equal kernels, the point that is chosen
Choices = Mapping[str, int]
#: seconds of replays with two choices, taken in turns: as many of the one as of the other
Compare = Callable[[Choices, Choices], tuple[list[float], list[float]]]


@dataclass(frozen=True)
class Group:
    """Kernels that share a search: seconds of one run alone, and points in the order of their times alone."""

    name: str
    weight_s: float
    points: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def contenders(self) -> tuple[int, ...]:
        """Points that may be better in the network than the fastest one alone, which is not among them."""
        near = [p for p, s in zip(self.points, self.seconds, strict=True) if s <= NEAR * self.seconds[0]]
        return tuple(near[1:CONTENDERS])


@dataclass
class Verdict:
    """What was chosen; replays of the model's, the isolated and the final choice (None where not timed)."""

    chosen: dict[str, int]
    model_s: float | None = None
    isolated_s: float | None = None
    arbitrated_s: float | None = None
    compared: int = 0
    swapped: list[str] = field(default_factory=list)


def is_better(new: Sequence[float], old: Sequence[float]) -> bool:
    """Whether paired times in seconds, taken in turns, say that the new is faster."""
    gain = 1.0 - median(new) / median(old) if median(old) > 0.0 else 0.0
    return gain >= MARGIN or (gain >= SURE_MARGIN and all(a < b for a, b in zip(new, old, strict=True)))


def arbitrate(groups: Sequence[Group], model: Choices, pairs: Compare, budget: Budget) -> Verdict:
    """Greedy by coordinates: kernel after kernel, those that take most time first, until time is over.

    model: the model's point of each group. pairs: seconds of replays with two choices, taken in turns. It
    begins with the fastest points alone, or with the model's where the replay is faster with them.
    """
    isolated = {g.name: g.points[0] for g in groups}
    verdict = Verdict(isolated)
    if budget.over:
        return verdict
    theirs, ours = pairs(model, isolated)
    verdict.compared, verdict.model_s, verdict.isolated_s = 1, median(theirs), median(ours)
    verdict.arbitrated_s = verdict.isolated_s
    if is_better(theirs, ours):
        verdict.chosen, verdict.arbitrated_s = dict(model), verdict.model_s
        verdict.swapped = [name for name in model if model[name] != isolated[name]]
    total = sum(g.weight_s for g in groups)
    for group in sorted(groups, key=lambda g: -g.weight_s):
        if group.weight_s < LEAST_SHARE * total:
            break
        for point in dict.fromkeys((group.points[0], *group.contenders)):
            if budget.over:
                return verdict
            if point == verdict.chosen[group.name]:
                continue
            trial = {**verdict.chosen, group.name: point}
            old, new = pairs(verdict.chosen, trial)
            verdict.compared += 1
            if is_better(new, old):
                verdict.chosen, verdict.arbitrated_s = trial, median(new)
                verdict.swapped = [n for n in trial if trial[n] != isolated[n]]
    return verdict


def median(times: Sequence[float]) -> float:
    """The middle time, the upper one of two."""
    return sorted(times)[len(times) // 2]
