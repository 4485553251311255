"""One comparison: contenders set up, checked, timed in turns, and told as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.compilation.option_values import TOLERANCE
from tilewright.ir import Module
from tilewright.tools.bench.contender import Contender, interleaved
from tilewright.tools.bench.ours import Ours
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.reference import difference
from tilewright.tools.bench.rows import Row, contender_row, judged

#: what the roundings of two right results may add up to, in tolerances
BETWEEN = 2.0


@dataclass(frozen=True)
class Settings:
    """How contenders are compared.

    ours: arguments of `tilewright.compile` by variant (the precision is that of the comparison where they
    name none), the first is the one judged. left_s: seconds until the
    whole run has to end.
    """

    ours: Mapping[str, Mapping[str, Any]]
    peers: tuple[str, ...]
    rounds: int
    replays: int
    cold: bool
    peer_limit_s: float
    seed: int
    left_s: Callable[[], float]
    all_variants: bool = False
    #: where peers run, cuda or cpu
    device: str = "cuda"
    #: around the timing of everybody, after all are set up and checked: where several comparisons are
    #: prepared at once, each waits here until it is the only one that works
    turn: Callable[[], AbstractContextManager[None]] = nullcontext


class Exact(Protocol):
    """What results are held against."""

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of what is known exactly of the outputs, as `relative_error` has it."""
        ...


@dataclass
class Entrants:
    """Contenders beside ours: `checked` compute the same, `unchecked` only take time."""

    checked: Sequence[Contender] = ()
    unchecked: Sequence[Contender] = ()


def compare(
    module: Module,
    inputs: list[np.ndarray],
    precision: str,
    reference: Exact,
    settings: Settings,
    set_up: Callable[[Peers], Entrants],
) -> Row:
    """`status` (ok or wrong), rows of `ours` and of `peers`, the better peer and ratios.

    Who is wrong is not timed. Raises what compiling raises.
    """
    limit = TOLERANCE[precision]
    with Peers(
        settings.peers,
        precision,
        device=settings.device,
        cold=settings.cold,
        limit_s=settings.peer_limit_s,
        left_s=settings.left_s,
        all_variants=settings.all_variants,
    ) as peers:
        everyone: list[Contender] = []
        try:
            for variant, options in settings.ours.items():
                given = {"precision": precision, **options}
                everyone.append(Ours(module, inputs, given, peers.clock, variant))
            results = [c.outputs() for c in everyone]
            entrants = set_up(peers)
            for c in entrants.checked:
                with peers.told(c.peer, c.variant):
                    results.append(c.outputs())
                    everyone.append(c)
            others = len(everyone) - len(settings.ours)
            checks = [*errors(results, inputs, reference, limit), *({} for _ in entrants.unchecked)]
            everyone += entrants.unchecked
            right = [c for c, check in zip(everyone, checks, strict=True) if is_right(check, limit)]
            with settings.turn():
                rounds = interleaved(right, settings.rounds, settings.replays)
            timed = {id(t.contender): t for t in rounds}
            told = zip(everyone, checks, strict=True)
            rows = [contender_row(c, check, timed.get(id(c))) for c, check in told]
        finally:
            for c in everyone:
                c.close()
    own, rest = rows[: len(settings.ours)], rows[len(settings.ours) :]
    return _told(own, [*rest, *peers.failures], judged(own, rest[:others]))


def _told(ours: Sequence[Row], peers: Sequence[Row], ratios: Row) -> Row:
    wrong = [f"{r['peer']} {r['variant']} (error {r['relative_error']:.3g})" for r in ours if "reason" in r]
    return {
        "status": "wrong" if wrong else "ok",
        **({"reason": f"wrong results of {', '.join(wrong)}"} if wrong else {}),
        **ratios,
        "ours": ours,
        "peers": peers,
    }


def errors(
    outputs: Sequence[Sequence[np.ndarray]], inputs: Sequence[np.ndarray], reference: Exact, limit: float
) -> list[dict[str, float]]:
    """Per contender its error against what is exact, and its difference from a contender on everything.

    That one is the last (a peer, where there are any) whose exact part is right; none where only one is.
    """
    exact = [reference.error(inputs, o) for o in outputs]
    right = [i for i, error in enumerate(exact) if error <= limit]
    checks = []
    for i, error in enumerate(exact):
        check = {"relative_error": error}
        if right and right[-1] != i:
            check["difference"] = difference(outputs[i], outputs[right[-1]])
        checks.append(check)
    return checks


def is_right(check: Mapping[str, float], limit: float) -> bool:
    """Whether errors are within what the precision allows."""
    return check.get("relative_error", 0.0) <= limit and check.get("difference", 0.0) <= BETWEEN * limit
