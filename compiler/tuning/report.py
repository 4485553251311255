"""The report of a search: points measured, pruned and left over, certified kernels, violated bounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tilewright.costmodel.kernels.check_measured import TIMER_NOISE
from tilewright.devices.targets import Target
from tilewright.measuring.budget import Budget
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_validation import Validation
from tilewright.tuning.kernels.search import Task


def report_of(
    tasks: Sequence[Task], measurer: Measurer, budget: Budget, validation: Validation, *, recalled: bool
) -> dict[str, Any]:
    """Plain data: totals, a row per searched kernel, the network's replays, a sentence per violated bound,
    and one per candidate with wrong results (`wrong`).

    `measured` and `reused` count all programs that were timed and that the database knew, those of
    convolutions' algorithms as well; `model_s` and `chosen_s` are the measured seconds of the searched
    kernels of one run of the network, each alone. `certified_kernels` and `certified_time` are the shares of
    the searched kernels, and of `chosen_s`, whose best is the fastest of their space by the bound.
    recalled: whether an earlier run timed the replays.
    """
    rows = [_kernel_row(t) for t in tasks]
    timed = [r for r in rows if r["measured_s"] is not None]
    chosen_s = sum(r["measured_s"] * r["occurrences"] for r in timed)
    certified = [r for r in timed if r["end"] in ("certified", "exhausted")]
    certified_s = sum(r["measured_s"] * r["occurrences"] for r in certified)
    return {
        "measured": measurer.measured,
        "reused": measurer.reused,
        "model_s": sum(r["model_s"] * r["occurrences"] for r in timed if r["model_s"] is not None),
        "chosen_s": chosen_s,
        **{name: sum(r[name] for r in rows) for name in ("points", "pruned", "unknown", "failed")},
        "certified_kernels": len(certified) / len(rows) if rows else 0.0,
        "certified_time": certified_s / chosen_s if chosen_s else 0.0,
        "budget_s": budget.seconds,
        "replay": {
            "model_s": validation.model_s,
            "isolated_s": validation.isolated_s,
            "arbitrated_s": validation.arbitrated_s,
            "compared": validation.compared,
            "swapped": list(validation.swapped),
            "recalled": recalled,
        },
        "wrong": [text for t in tasks for text in t.wrong.values()],
        "violations": [v for t in tasks for v in violations_of(t, measurer)],
        "kernels": rows,
    }


def _kernel_row(task: Task) -> dict[str, Any]:
    outcome = task.outcome
    return {
        "name": task.name,
        "occurrences": task.search.occurrences,
        "points": outcome.points,
        "measured": 0 if task.known else outcome.measured - task.reused,
        "reused": task.reused,
        "pruned": outcome.pruned,
        "unknown": outcome.unknown,
        "failed": outcome.failed,
        "failures": sorted(set(task.search.failed.values()))[:3],
        "end": outcome.end,
        "model_s": outcome.model_s,
        "measured_s": outcome.best_s,
        "bound_s": float(task.search.space.least_s.min()),
    }


def violations_of(task: Task, measurer: Measurer) -> list[str]:
    """The points that were measured below their bounds, with all that is needed to measure them again."""
    search = task.search
    where = f"{measurer.target} on {measurer.device.name}"
    texts = (
        violation_of(
            f"{search.space.described(i)}; kernel {task.name}, program {task.programs[i]}",
            seconds, float(search.space.least_s[i]), where,
        )
        for i, seconds in search.seconds.items()
    )  # fmt: skip
    return [text for text in texts if text is not None]


def violation_of(what: str, seconds: float, least_s: float, where: str) -> str | None:
    """A sentence that says what to measure again, and where; None where the bound holds.

    what: the program in words. least_s: its bound for warm caches. A time of 0 says that nothing was timed.
    """
    if seconds <= 0.0 or seconds * (1.0 + TIMER_NOISE) >= least_s:
        return None
    return (
        f"bug in the bound: measured {1e6 * seconds:.2f} us, but the bound says at least "
        f"{1e6 * least_s:.2f} us with warm caches for {what}, {where}"
    )


def check_program(what: str, seconds: float, least_s: float, target: Target) -> None:
    """Tell on stderr where a measured program is faster than its bound."""
    where = f"{target} by the record {target.hardware.name} ({target.hardware.origin})"
    text = violation_of(what, seconds, least_s, where)
    warn_of_violations([] if text is None else [text])


def warn_of_violations(texts: Sequence[str]) -> None:
    """Tell on stderr: a bound that is none makes every certificate of this run doubtful."""
    for text in texts:
        print(text, file=sys.stderr)
