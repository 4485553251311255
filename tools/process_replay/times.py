"""Compile times of two commits, interleaved: each round compiles every network once with each source."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tilewright.ir import WorkError
from tilewright.tools.process_replay.recording import Case, Child, Networks
from tilewright.tools.process_replay.snapshot import Source


@dataclass(frozen=True)
class Times:
    """Seconds of processor time of `tw.compile` in each round, for one case."""

    case: Case
    base: tuple[float, ...]
    head: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        c = self.case
        named = {"network": c.network, "target": c.target, "precision": c.precision}
        return named | {"base_cpu_s": list(self.base), "head_cpu_s": list(self.head)}


def compare_times(
    sources: tuple[Source, Source],
    roots: tuple[Path, Path],
    cases: Sequence[Case],
    networks: Networks,
    scratch: Path,
    rounds: int,
) -> list[Times]:
    """Compile every case `rounds` times with each source, whose turns are swapped every round.

    Each network has a fresh process in each round. Raises WorkError where a case does not compile.
    """
    seconds: dict[tuple[Case, int], list[float]] = {(c, side): [] for c in cases for side in (0, 1)}
    groups = [list(g) for _, g in groupby(cases, key=lambda c: c.network)]
    work = [(group, number) for group in groups for number in range(rounds)]
    for group, number in tqdm(work, desc="rounds", disable=not sys.stderr.isatty()):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            with Child(roots[side], sources[side].title, scratch) as child:
                for case in group:
                    answer = child.ask(networks.request(case, ""))
                    if answer["error"]:
                        raise WorkError(f"{sources[side].title} {case}: {answer['error']}")
                    seconds[case, side].append(float(answer["cpu_seconds"]))
    return [Times(c, tuple(seconds[c, 0]), tuple(seconds[c, 1])) for c in cases]


def times_table(times: Sequence[Times], base: Source, head: Source, rounds: int) -> str:
    """Medians and the ratio of each case, and the ratio of the sums with its spread over the rounds."""
    lines = [f"{'case':40s} {'BASE s':>8s} {'HEAD s':>8s} {'ratio':>7s}  rounds from to"]
    lines += [_line(str(t.case), t.base, t.head) for t in times]
    sums = [
        [sum(column) for column in zip(*(getattr(t, side) for t in times), strict=True)]
        for side in ("base", "head")
    ]
    lines.append(_line("all", sums[0], sums[1]))
    ratio = statistics.median(sums[1]) / statistics.median(sums[0])
    lines += ["", f"{head.title} takes {ratio:.3f} of the processor time of {base.title} ({rounds} rounds)"]
    return "\n".join(lines)


def _line(title: str, base: Sequence[float], head: Sequence[float]) -> str:
    old, new = statistics.median(base), statistics.median(head)
    ratios = [h / b for b, h in zip(base, head, strict=True)]
    spread = f"{min(ratios):.3f} {max(ratios):.3f}"
    return f"{title:40s} {old:8.2f} {new:8.2f} {new / old:7.3f}  {spread}"
