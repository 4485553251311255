"""What a training step checks on the host: ranges of labels, and whether its numbers are finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir import InputError, Module

#: the key of the facts of an executable, and the attributes of a step's module that it keeps
FACTS, RANGES, ON_NAN = "training", "ranges", "on_nan"
#: the state that counts runs which changed nothing else, of a step that raises where numbers are not finite
REFUSED = "refused"
#: the state that is the learning rate, where that is a number
RATE = "lr"


#: dtypes of labels, and those of the same bits without sign
_UNSIGNED = {np.dtype(f"i{n}"): np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


@dataclass(frozen=True)
class LabelRange:
    """The numbers that an input of integers may hold: from low to below high, and `ignored`."""

    name: str
    low: int
    high: int
    ignored: int | None

    def check(self, value: object) -> None:
        """Raise InputError where an array of the host holds another number; the first one is named."""
        if not isinstance(value, np.ndarray) or not value.size:
            return
        unsigned = _UNSIGNED.get(value.dtype)
        if unsigned is not None and self.low == 0:  # negative numbers are large then
            numbers = value.view(unsigned)
            if numbers.item(numbers.argmax()) < self.high:
                return
        elif value.dtype.kind not in "iu":
            return
        wrong = (value < self.low) | (value >= self.high)
        if self.ignored is not None:
            wrong &= value != self.ignored
        if wrong.any():
            place = tuple(int(i[0]) for i in np.nonzero(wrong))
            also = "" if self.ignored is None else f", or {self.ignored}"
            raise InputError(
                f"input '{self.name}': expected numbers of {self.low} to {self.high - 1}{also}, "
                f"got {int(value[place])} at {list(place)}"
            )


@dataclass(frozen=True)
class StepRules:
    """Ranges of labels by the position of their input, and whether runs without finite numbers raise."""

    ranges: Mapping[int, LabelRange]
    raises: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any], inputs: Sequence[str]) -> StepRules:
        """The rules that the facts of an executable keep; none where they say nothing."""
        stated = facts.get(FACTS)
        if not isinstance(stated, Mapping):
            return cls({})
        rows = [LabelRange(*row) for row in stated.get(RANGES, ())]
        ranges = {inputs.index(r.name): r for r in rows if r.name in inputs}
        return cls(ranges, stated.get(ON_NAN) == "raise")

    def check(self, inputs: Sequence[object]) -> None:
        """Raise InputError for labels on the host that the loss does not understand."""
        for position, allowed in self.ranges.items():
            if position < len(inputs):
                allowed.check(inputs[position])


def training_facts(module: Module) -> dict[str, Any]:
    """The facts of an executable that `StepRules.of` reads, as plain data."""
    ranges, on_nan = module.get(RANGES), module.get(ON_NAN)
    if ranges is None and on_nan is None:
        return {}
    rows = [list(r) for r in ranges if isinstance(r, tuple)] if isinstance(ranges, tuple) else []
    return {FACTS: {RANGES: rows, ON_NAN: on_nan}}
