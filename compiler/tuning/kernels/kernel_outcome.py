"""The outcome of the search of one kernel, and the record of it that a tuning database keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, get_args

from tilewright.tuning.kernels.kernel_search import End, KernelSearch
from tilewright.tuning.kernels.search_space import SearchSpace

#: of the fastest points, how many are kept
RANKED = 8
#: points of a kernel that compete in the network, within this factor of the fastest one alone
CONTENDERS = 3
NEAR = 1.15


@dataclass(frozen=True)
class Ranked:
    """A measured point of a space: its index, what names its program, and seconds."""

    point: int
    program: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Points of a space by what became of them, why the search ended, and the fastest ones in order.

    `measured` counts times, `failed` points that could not be built, `pruned` points that the bound ruled
    out, `unknown` those that it did not; the rest are kernels equal to others.
    `model_s`: of the model's choice.
    """

    points: int
    measured: int
    failed: int
    pruned: int
    unknown: int
    end: End
    model_s: float | None
    ranking: tuple[Ranked, ...]

    @property
    def certified(self) -> bool:
        """True where the best is the fastest of all points that can be built, measured alone."""
        return self.end in ("certified", "exhausted")

    @property
    def contenders(self) -> tuple[int, ...]:
        """The fastest points, of which any may be best in the network; none where nothing was timed."""
        best_s = self.best_s or 0.0
        near = [r.point for r in self.ranking if r.seconds <= NEAR * best_s]
        return tuple(near[:CONTENDERS]) if best_s > 0.0 else ()

    @property
    def best_s(self) -> float | None:
        """Seconds of the fastest point."""
        return self.ranking[0].seconds if self.ranking else None


def outcome_of(search: KernelSearch, programs: Mapping[int, str]) -> Outcome:
    """The outcome of a search so far; programs: per measured point the digest of its program."""
    order = sorted(search.seconds, key=lambda i: (search.seconds[i], i))[:RANKED]
    return Outcome(
        points=len(search.space),
        measured=len(search.seconds),
        failed=len(search.failed),
        pruned=search.pruned,
        unknown=search.unknown,
        end=search.end,
        model_s=search.seconds.get(0),
        ranking=tuple(Ranked(i, programs[i], search.seconds[i]) for i in order),
    )


def record_of(outcome: Outcome, space: SearchSpace) -> str:
    """The outcome as JSON; points go by their parameters."""
    rows = [{**asdict(r), "point": dict(space.named(r.point))} for r in outcome.ranking]
    return json.dumps({**asdict(outcome), "ranking": rows})


def outcome_in(record: str, space: SearchSpace) -> Outcome | None:
    """The outcome of a record; None where it is of another space or malformed.

    Nothing in it is trusted: every point must be one of the space. That the programs are still what the
    points are compiled to is for the caller to see.
    """
    data = json.loads(record)
    if not isinstance(data, dict) or set(data) != set(Outcome.__annotations__):
        return None
    counts = [data[name] for name in ("points", "measured", "failed", "pruned", "unknown")]
    if any(type(n) is not int or n < 0 for n in counts) or data["points"] != len(space):
        return None
    model_s = data["model_s"]
    if data["end"] not in get_args(End) or not (model_s is None or is_seconds(model_s)):
        return None
    rows = data["ranking"]
    ranking = [_ranked(row, space) for row in rows] if isinstance(rows, list) else [None]
    if not ranking or len(ranking) > RANKED:
        return None
    points = tuple(r for r in ranking if r is not None)
    if len(points) < len(ranking) or any(a.seconds > b.seconds for a, b in pairwise(points)):
        return None
    return Outcome(**{**data, "ranking": points})


def _ranked(row: Any, space: SearchSpace) -> Ranked | None:
    if not isinstance(row, dict) or set(row) != set(Ranked.__annotations__):
        return None
    if (
        not isinstance(row["point"], dict)
        or not isinstance(row["program"], str)
        or not is_seconds(row["seconds"])
    ):
        return None
    point = space.point_named(row["point"])
    return None if point is None else Ranked(point, row["program"], row["seconds"])


def is_seconds(value: object) -> bool:
    """True where a value from a file is a positive finite time."""
    return isinstance(value, float) and 0.0 < value < math.inf
