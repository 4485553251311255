"""Kernels that are fastest alone are put into the replay of the whole network, which is timed.

A kernel alone finds its weights in the cache and the device to itself; in the network it does not. A library
kernel starts no earlier than its predecessors end, and leaves epilogues to other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from tilewright.measuring.budget import Budget

#: a candidate is taken where the replay gets shorter by this share; or by less if it does in every round
MARGIN = 0.01
SURE_MARGIN = 0.002

#: per group of equal kernels, the candidate that is chosen
Choices = Mapping[str, int]
#: seconds of alternating replays with two choices: as many of the one as of the other
Compare = Callable[[Choices, Choices], tuple[list[float], list[float]]]


@dataclass
class Validation:
    """The choices of what is fastest alone (`isolated`) and at the end, and how many pairs were compared.

    Seconds of replays with the isolated choices, with the first others they were compared with (`model_s`),
    and with those at the end; None where not timed.
    """

    isolated: dict[str, int]
    chosen: dict[str, int]
    model_s: float | None = None
    isolated_s: float | None = None
    arbitrated_s: float | None = None
    compared: int = 0

    @property
    def swapped(self) -> list[str]:
        """The groups whose candidate is not the one that is fastest alone."""
        return [name for name in self.chosen if self.chosen[name] != self.isolated[name]]


def is_better(new: Sequence[float], old: Sequence[float]) -> bool:
    """True where paired times in seconds, taken alternately, say that the new is faster."""
    gain = 1.0 - median_high(new) / median_high(old) if median_high(old) > 0.0 else 0.0
    return gain >= MARGIN or (gain >= SURE_MARGIN and all(a < b for a, b in zip(new, old, strict=True)))


def validated(isolated: Choices, changes: Iterable[Choices], pairs: Compare, budget: Budget) -> Validation:
    """Try one change of the choices after another, until time is over, and keep what is faster.

    changes: other candidates of some groups; what was tried before is not tried again.
    """
    validation = Validation(dict(isolated), dict(isolated))
    tried = [dict(isolated)]
    for change in changes:
        if budget.over:
            break
        trial = {**validation.chosen, **change}
        if trial in tried and validation.compared:
            continue
        tried.append(trial)
        old, new = pairs(validation.chosen, trial)
        validation.compared += 1
        if validation.isolated_s is None:
            validation.isolated_s = validation.arbitrated_s = median_high(old)
            validation.model_s = median_high(new)
        if is_better(new, old):
            validation.chosen, validation.arbitrated_s = trial, median_high(new)
    return validation
