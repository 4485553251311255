"""Programs measured below what the bound allows: each is a bug of the bound, told on stderr."""

from __future__ import annotations

import sys

from tilewright.costmodel.kernels.check_measured import TIMER_NOISE
from tilewright.devices.targets import Target


def violation_of(what: str, seconds: float, least_s: float, target: Target) -> str | None:
    """A sentence that says what to measure again, or None where the bound holds.

    what: the program in words. least_s: its bound for warm caches. A time of 0 says that nothing was timed.
    """
    if seconds <= 0.0 or seconds * (1.0 + TIMER_NOISE) >= least_s:
        return None
    return (
        f"bug in the bound: measured {1e6 * seconds:.2f} us, but the bound says at least "
        f"{1e6 * least_s:.2f} us with warm caches for {what}, {target} by the record "
        f"{target.hardware.name} ({target.hardware.origin})"
    )


def check_program(what: str, seconds: float, least_s: float, target: Target) -> None:
    """Tell on stderr where a measured program is faster than its bound."""
    text = violation_of(what, seconds, least_s, target)
    if text is not None:
        print(text, file=sys.stderr)
