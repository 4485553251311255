"""One row of the benchmark: a network at one batch and precision, Tilewright beside its peers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.commands.run import TOLERANCE
from tilewright.ir import Module, TilewrightError
from tilewright.tools.bench.contender import Contender, interleaved
from tilewright.tools.bench.networks import random_batch, with_batch
from tilewright.tools.bench.ours import Ours
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.reference import Reference, difference
from tilewright.tools.bench.rows import Row, contender_row, judged, one_line

#: what several factors of rounding between two right results may add up to
BETWEEN = 2.0


@dataclass(frozen=True)
class Case:
    """What is compared: a network by name, its module as imported, batch and precision."""

    network: str
    module: Module
    batch: int
    precision: str


@dataclass(frozen=True)
class Settings:
    """How it is compared. `ours`: arguments of `tilewright.compile` by variant, the first is the one judged.

    left_s: seconds until the whole run has to end.
    """

    ours: Mapping[str, Mapping[str, Any]]
    peers: tuple[str, ...]
    rounds: int
    replays: int
    cold: bool
    peer_limit_s: float
    seed: int
    left_s: Callable[[], float]


def compare_network(case: Case, reference: Reference, settings: Settings) -> Row:
    """The row as plain data: `status` is ok, wrong or failed, with a `reason` where it is not ok."""
    row: Row = {"network": case.network, "batch": case.batch, "precision": case.precision}
    try:
        module = with_batch(case.module, case.batch)
        inputs = random_batch(module, settings.seed)
        return row | _compared(case, module, inputs, reference, settings)
    except (TilewrightError, MemoryError) as e:
        return row | {"status": "failed", "reason": one_line(e)}
    finally:
        gc.collect()


def _compared(
    case: Case, module: Module, inputs: list[np.ndarray], reference: Reference, settings: Settings
) -> Row:
    limit = TOLERANCE[case.precision]
    with Peers(
        settings.peers,
        case.precision,
        cold=settings.cold,
        limit_s=settings.peer_limit_s,
        left_s=settings.left_s,
    ) as peers:
        contenders: list[Contender] = []
        try:
            for variant, options in settings.ours.items():
                given = {**options, "precision": case.precision}
                contenders.append(Ours(module, inputs, given, peers.clock, variant))
            contenders += peers.contenders(module, inputs)
            checks = errors([c.outputs() for c in contenders], inputs, reference, limit)
            right = [c for c, check in zip(contenders, checks, strict=True) if is_right(check, limit)]
            timed = interleaved(right, settings.rounds, settings.replays)
            rows = [
                contender_row(c, check, next((t for t in timed if t.contender is c), None))
                for c, check in zip(contenders, checks, strict=True)
            ]
        finally:
            for c in contenders:
                c.close()
    ours, others = rows[: len(settings.ours)], rows[len(settings.ours) :]
    wrong = [f"{r['peer']} {r['variant']}".strip() for r in ours if "median_ms" not in r]
    return {
        "status": "wrong" if wrong else "ok",
        **({"reason": f"wrong results of {', '.join(wrong)}"} if wrong else {}),
        **judged(ours, others),
        "ours": ours,
        "peers": [*others, *peers.failures],
    }


def errors(
    outputs: Sequence[Sequence[np.ndarray]], inputs: Sequence[np.ndarray], reference: Reference, limit: float
) -> list[dict[str, float]]:
    """Per contender: error of two samples against float64, and of the whole batch against a contender.

    That one is the last (a peer, where there are any) whose samples are right; none where only one is.
    """
    sampled = [reference.error(inputs, o) for o in outputs]
    right = [i for i, error in enumerate(sampled) if error <= limit]
    checks = []
    for i, error in enumerate(sampled):
        check = {"relative_error": error}
        if right and right[-1] != i:
            check["difference"] = difference(outputs[i], outputs[right[-1]])
        checks.append(check)
    return checks


def is_right(check: Mapping[str, float], limit: float) -> bool:
    """Whether errors are within what the precision allows."""
    return check["relative_error"] <= limit and check.get("difference", 0.0) <= BETWEEN * limit
