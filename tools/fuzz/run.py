"""Runs the graphs of consecutive seeds in worker processes until a time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

from tilewright.tools.conformance.case import Result, Suite
from tilewright.tools.conformance.workers import run_all
from tilewright.tools.fuzz.check import check
from tilewright.tools.fuzz.generate import generate

BATCH = 200


def fuzz(target: str, seed: int, ops: int, seconds: float, jobs: int) -> Iterator[Result]:
    """Results of the graphs seed, seed + 1, ... until `seconds` have passed."""
    end = time.monotonic() + seconds
    opened = partial(open_suite, ops)
    for start in itertools.count(seed, BATCH):
        for result in run_all(opened, [("fuzz", str(s), target) for s in range(start, start + BATCH)], jobs):
            yield result
            if time.monotonic() > end:
                return


def open_suite(ops: int) -> list[Suite]:
    """The suite whose cases are seeds."""
    return [Suite("fuzz", (), partial(run_seed, ops))]


def run_seed(ops: int, seed: str, target: str) -> float:
    """Generate and check one graph."""
    program = generate(int(seed), ops)
    return check(program.module(), program.inputs, target)
