"""Implementation parameters that competed for a kernel: those measured, or else the model's likeliest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.costmodel import Hardware
from tilewright.ir import Attr, Func, Pairs
from tilewright.passes.kernels.registry import template_of

#: likeliest points by the model that the page shows beside the chosen one
SHOWN = 8


@dataclass(frozen=True)
class Candidate:
    """Parameters with the model's and, where it was measured, the device's seconds of one launch."""

    params: dict[str, Any]
    estimate_s: float
    measured_s: float | None
    chosen: bool


def candidates_of(kernel: Func, hardware: Hardware) -> tuple[Candidate, ...]:
    """The candidates of a tensor-level kernel, fastest first; empty where the model had nothing to rank."""
    measured = kernel.get("candidates")
    if isinstance(measured, tuple):
        rows = [_row(kernel, c) for c in measured if isinstance(c, Pairs)]
    else:
        template = template_of(kernel)
        if template is None or template.candidates is None or kernel.get("cost") is None:
            return ()
        rows = [_row(kernel, _pairs_of(f)) for f in template.candidates(kernel, hardware, SHOWN)]
    return tuple(sorted(rows, key=lambda c: c.estimate_s if c.measured_s is None else c.measured_s))


def plain(a: Attr) -> Any:
    """An attribute as dicts, lists, numbers and texts."""
    if isinstance(a, Pairs):
        return {k: plain(v) for k, v in a.items}
    return [plain(v) for v in a] if isinstance(a, tuple) else a


def _pairs_of(f: Func) -> Pairs:
    cost = f["cost"]
    assert isinstance(cost, Pairs)
    return Pairs.of({"params": f["params"], "estimate_s": cost["estimate_s"]})


def _row(kernel: Func, c: Pairs) -> Candidate:
    found = c.as_dict()
    seconds = found.get("measured_s")
    estimate = found["estimate_s"]
    assert isinstance(estimate, float)
    return Candidate(
        params=plain(found["params"]),
        estimate_s=estimate,
        measured_s=seconds if isinstance(seconds, float) else None,
        chosen=found["params"] == kernel.get("params"),
    )
