"""What the cost model decides on a kernel: its template, parameters, and what the model says of them."""

from __future__ import annotations

from typing import Any

from tilewright.costmodel.kernels.choose import Choice
from tilewright.ir import Attr, Pairs


def cost_of(choice: Choice[Any]) -> Pairs:
    """What the cost model says of a choice, as the attribute `cost` of a kernel."""
    cost: dict[str, Attr] = {
        "estimate_s": choice.estimate_s,
        "bound_s": choice.bound.seconds,
        "fraction_of_peak": float(choice.bound.ub),
        "limit": choice.bound.limit,
        "considered": choice.candidates_considered,
    }
    return Pairs.of(cost)
