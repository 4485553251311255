"""Rows of the benchmark as plain data: times in milliseconds, errors, the better peer and the ratio to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from tilewright.ir import TilewrightError
from tilewright.tools.arguments.printing import error_line
from tilewright.tools.bench.contender import Contender, TimedContender, TimeSpread, geometric_mean

Row = dict[str, Any]


def one_line(error: BaseException) -> str:
    """An error's kind, unless it is one of ours, and what it says."""
    ours = isinstance(error, TilewrightError)
    return error_line(error, 300) if ours else f"{type(error).__name__}: {error_line(error, 300)}"


def contender_row(contender: Contender, check: Mapping[str, float], timed: TimedContender | None) -> Row:
    """One contender: what it is, how wrong it is, and its times where it was timed."""
    row: Row = {
        "peer": contender.peer,
        "variant": contender.variant,
        **check,
        "prepare_s": round(contender.prepare_s, 3),
        **contender.facts,
    }
    if timed is None:
        return row | {"reason": "the result is wrong"}
    return row | milliseconds(timed.spread()) | {"wall_ms": _ms(TimeSpread.of(timed.wall).median_s)}


def milliseconds(spread: TimeSpread) -> Row:
    """A spread in milliseconds."""
    return {
        "median_ms": _ms(spread.median_s),
        "p10_ms": _ms(spread.p10_s),
        "p90_ms": _ms(spread.p90_s),
        "runs": spread.count,
    }


def _ms(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")


def better_peer(rows: Sequence[Row]) -> Row | None:
    """The fastest of the peers that were timed, all of their variants counted."""
    timed = [r for r in rows if "median_ms" in r]
    return min(timed, key=lambda r: float(r["median_ms"]), default=None)


def fastest_by_peer(rows: Sequence[Row]) -> dict[str, Row]:
    """Per peer its fastest variant that was timed."""
    fastest: dict[str, Row] = {}
    for row in rows:
        best = better_peer([r for r in (fastest.get(row["peer"]), row) if r])
        if best is not None:
            fastest[row["peer"]] = best
    return fastest


def judged(ours: Sequence[Row], peers: Sequence[Row]) -> Row:
    """Medians of the better peer and of every peer over that of our first variant: above 1 we are faster."""
    own = ours[0].get("median_ms")
    best = better_peer(peers)
    out: Row = {"best_peer": None, "ratio": None, "ratios": {}, "ratio_by_variant": {}}
    if best is None:
        return out
    out["best_peer"] = f"{best['peer']} {best['variant']}".strip()
    if own:
        out["ratio"] = round(best["median_ms"] / own, 4)
        out["ratios"] = {p: round(r["median_ms"] / own, 4) for p, r in fastest_by_peer(peers).items()}
    out["ratio_by_variant"] = {
        r["variant"]: round(best["median_ms"] / r["median_ms"], 4) for r in ours if "median_ms" in r
    }
    return out


def summary(rows: Iterable[Row]) -> list[Row]:
    """Per batch and precision: geometric mean and least of the ratios to the better peer, means by peer."""

    def key(row: Row) -> tuple[int, str]:
        return row["batch"] or 0, row["precision"]  # no batch: a row that was lost before it was known

    out = []
    for (batch, precision), group in groupby(sorted(rows, key=key), key=key):
        all_rows = list(group)
        members = [r for r in all_rows if r.get("ratio") is not None]
        if not members:
            continue
        names = dict.fromkeys(p for r in members for p in r["ratios"])
        variants = dict.fromkeys(v for r in members for v in r["ratio_by_variant"])
        out.append(
            {
                "batch": batch,
                "precision": precision,
                "networks": len(members),
                "without_ratio": len(all_rows) - len(members),
                "geometric_mean": geometric_mean(r["ratio"] for r in members),
                "least": min(r["ratio"] for r in members),
                "least_network": min(members, key=lambda r: r["ratio"])["network"],
                "by_peer": {
                    p: geometric_mean(r["ratios"][p] for r in members if p in r["ratios"]) for p in names
                },
                "by_variant": {
                    v: geometric_mean(x for r in members if (x := r["ratio_by_variant"].get(v)))
                    for v in variants
                },
            }
        )
    return out
