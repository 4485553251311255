"""Seconds of the ops of kernels of fewer samples: measured for some sizes, bounded and interpolated between.

With more samples an op takes no less time, and no more time per sample. So between two measured sizes the
whole network takes at least what the smaller one takes, and at least its share of the larger one's seconds;
the line between the two keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tilewright.cluster.work import OpSeconds, seconds_by_location, with_batch
from tilewright.ir import InputError, Module, UnsupportedError

#: where seconds come from: these kernels were measured; lie between such, or below; their share of larger
#: ones, as the network cannot be had for so few samples; the record's rates
Basis = Literal["measured", "estimated", "shares", "record"]


@dataclass(frozen=True)
class SizeSeconds:
    """Seconds of ops of kernels of one size; `least_share` of them is needed for all that is known."""

    ops: OpSeconds
    basis: Basis
    total_s: float
    least_share: float = 1.0


@dataclass(frozen=True)
class Sizes:
    """What is known of a network by how many samples its kernels compute at once.

    module: the whole network. known: measured seconds, those of its own batch among them; or the record's.
    """

    module: Module
    known: Mapping[int, OpSeconds]
    _found: dict[int, SizeSeconds] = field(default_factory=dict, repr=False, compare=False)

    def with_measured(self, samples: int, seconds: OpSeconds) -> Sizes:
        """With one size more."""
        return Sizes(self.module, {**self.known, samples: seconds})

    def of(self, samples: int) -> SizeSeconds:
        """For kernels of `samples` samples, at most the network's batch."""
        if samples not in self._found:
            self._found[samples] = self._of(samples)
        return self._found[samples]

    def slowness(self, samples: int) -> float:
        """What a sample takes in kernels of this size, to what it takes in the whole batch; 1 if unknown."""
        whole = max(self.known)
        total_s, batch_s = self.of(samples).total_s, self.of(whole).total_s
        return total_s * whole / (samples * batch_s) if batch_s else 1.0

    def _of(self, samples: int) -> SizeSeconds:
        larger = min(size for size in self.known if size >= samples)
        upper = self.known[larger]
        share = samples / larger
        if not upper.by_location:
            return SizeSeconds(upper, "record", share * _total(upper))
        if larger == samples:
            return SizeSeconds(upper, "measured", _total(upper))
        try:
            func = with_batch(self.module, samples).main
        except (InputError, UnsupportedError):
            return SizeSeconds(upper, "shares", share * _total(upper))
        work = seconds_by_location(func, upper.rates)
        smaller = max((size for size in self.known if size < samples), default=0)
        least_s, ops = share * _total(upper), upper
        if smaller:
            lower = self.known[smaller]
            least_s = max(least_s, _total(lower))
            ops = _between(lower, upper, (samples - smaller) / (larger - smaller), work)
        total_s = sum(seconds * ops.factors.get(loc, 1.0) for loc, seconds in work.items())
        return SizeSeconds(ops, "estimated", total_s, min(1.0, least_s / total_s) if total_s else 1.0)


def _between(lower: OpSeconds, upper: OpSeconds, share: float, work: Mapping[str, float]) -> OpSeconds:
    """Seconds by location at `share` of the way from one size to the other; `work`: by the rates, there."""

    def at(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    seconds = {loc: at(lower.by_location.get(loc, 0.0), upper.by_location.get(loc, 0.0)) for loc in work}
    return replace(
        upper,
        factors={loc: seconds[loc] / work[loc] for loc in work if work[loc]},
        overhead_share=at(lower.overhead_share, upper.overhead_share),
        by_location=seconds,
    )


def _total(seconds: OpSeconds) -> float:
    return sum(seconds.by_location.values())
