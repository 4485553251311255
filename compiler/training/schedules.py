"""Schedules as graph code (`tw.schedules`): a rate from the number of updates made before, both in float32.

A schedule is a function `schedule(step) -> rate` of a tensor without dimensions (0 at the first update); own
ones are written in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor

#: number of updates so far (float32, no dimensions) -> the value of an option of an optimizer
Schedule = Callable[[Tensor], Tensor]


def constant(rate: float) -> Schedule:
    """Always the same rate, as part of the step; a plain number instead is state, which may be changed."""
    return lambda step: step.writer.number(rate, "f32")


def warm_up(steps: int, after: float | Schedule, *, start: float = 0.0) -> Schedule:
    """`start` to 1 times the rate of `after` over the first `steps` updates, in equal parts, then that rate.

    after: a rate, or a schedule, which counts from the end of the warm-up.
    """
    _positive(steps, "steps")
    following = after if callable(after) else constant(after)

    def value(step: Tensor) -> Tensor:
        share = (step * ((1 - start) / steps) + start).minimum(1)
        return share * following((step - steps).maximum(0))

    return value


def cosine(rate: float, steps: int, *, end: float = 0.0) -> Schedule:
    """From `rate` to `end` along half a cosine over `steps` updates, then `end` (Loshchilov, Hutter 2017)."""
    _positive(steps, "steps")

    def value(step: Tensor) -> Tensor:
        angle = (step * (1 / steps)).minimum(1) * math.pi
        return (angle.writer.op("cos", angle) + 1) * ((rate - end) / 2) + end

    return value


def step(rate: float, every: int, *, factor: float = 0.1) -> Schedule:
    """`rate`, multiplied with `factor` after each `every` updates."""
    _positive(every, "every")

    def value(count: Tensor) -> Tensor:
        drops = count.writer.op("floor", (count + 0.5) / every)
        return _powers(factor, drops) * rate

    return value


def polynomial(rate: float, steps: int, *, power: float = 1.0, end: float = 0.0) -> Schedule:
    """From `rate` to `end` over `steps` updates as (1 - done share)**power, then `end`; linear by default."""
    _positive(steps, "steps")

    def value(step: Tensor) -> Tensor:
        left = 1 - (step * (1 / steps)).minimum(1)
        return (left if power == 1 else left**power) * (rate - end) + end

    return value


def exponential(rate: float, factor: float) -> Schedule:
    """`rate` times factor**step."""
    return lambda step: _powers(factor, step) * rate


def _powers(factor: float, exponent: Tensor) -> Tensor:
    if not factor > 0:
        raise InputError(f"expected a positive factor, got {factor!r}")
    return (exponent * math.log(factor)).exp()


def _positive(number: int, what: str) -> None:
    if type(number) is not int or number < 1:
        raise InputError(f"expected {what} of 1 or more, got {number!r}")
