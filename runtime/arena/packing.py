"""Offsets for buffers of which given pairs clash: greedy placement in several orders, the best improved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.runtime.arena.exact import MAX_PAIRS, clashing_pairs, smallest_layout
from tilewright.runtime.arena.lifetimes import Bytes, Ints, Lifetimes

Fit = Literal["lowest", "tightest", "facing"]

STEPS = 100_000  # some 10 microseconds each
RUNS = 300  # small plans need no more
IMPROVED = 3
CLOSE_ENOUGH = 1 / 512


@dataclass(frozen=True)
class GreedyLayout:
    """The result of one greedy run: `order` and `fit` as it was asked for, the offsets, the arena's bytes."""

    order: Ints
    fit: Fit
    offsets: Ints
    arena_bytes: int


def pack(sizes: Ints, lifetimes: Lifetimes, bound: int, *, steps: int = STEPS) -> tuple[Ints, int]:
    """Offsets of buffers of `sizes` bytes and the bytes they take together; at least `bound`.

    Tries a few orders, then repeatedly moves the buffers that end above the bound to earlier places of the
    order, which they take first then. Stops at the bound or so close to it that more is not worth the time,
    or after `steps` of work (never by the clock: equal plans get equal layouts). What then still is above the
    bound, and is small enough, goes to integer programming.
    """
    if not len(sizes):
        return np.zeros(0, dtype=np.int64), 0
    packer = _Packer(sizes, lifetimes.clashes, bound, steps)
    tried: list[GreedyLayout] = []
    for order, fit in _starts(sizes, lifetimes):
        if tried and (packer.is_good(min(p.arena_bytes for p in tried)) or packer.steps <= 0):
            break
        tried.append(packer.place(order, fit))
    tried.sort(key=lambda placement: placement.arena_bytes)
    best = tried[0]
    for number, start in enumerate(tried[:IMPROVED]):
        if packer.is_good(best.arena_bytes):
            break
        best = min(best, packer.improve(start, packer.steps // (IMPROVED - number)), key=_arena_bytes)
    if not packer.is_good(best.arena_bytes):
        pairs = clashing_pairs(lifetimes.clashes, len(sizes))
        if len(pairs) <= MAX_PAIRS:
            exact = smallest_layout(sizes, pairs, bound, best.arena_bytes, CLOSE_ENOUGH)
            if exact is not None:
                return exact, int((exact + sizes).max())
    return best.offsets, best.arena_bytes


def first_bytes(sizes: Ints, lifetimes: Lifetimes) -> int:
    """The bytes of the layout that `pack` tries first, which depends on no bound."""
    if not len(sizes):
        return 0
    order, fit = next(_starts(sizes, lifetimes))
    return _Packer(sizes, lifetimes.clashes, 0, STEPS).place(order, fit).arena_bytes


def _arena_bytes(placement: GreedyLayout) -> int:
    return placement.arena_bytes


def _starts(sizes: Ints, lifetimes: Lifetimes) -> Iterator[tuple[Ints, Fit]]:
    first = np.array([min(uses) for uses in lifetimes.uses])
    last = np.array([max(uses) for uses in lifetimes.uses])
    neighbours = np.bitwise_count(lifetimes.clashes).sum(axis=1, dtype=np.int64)
    by_area = np.lexsort((first, -sizes * (neighbours + 1)))
    by_first_use = np.lexsort((-sizes, first))
    yield by_area, "tightest"
    yield by_first_use, "facing"
    yield np.lexsort((first, -sizes)), "lowest"
    yield by_area, "facing"
    yield np.lexsort((-sizes, -last)), "lowest"
    yield by_first_use, "tightest"


class _Packer:
    """Greedy runs over one set of buffers; `steps` is the work that is left."""

    def __init__(self, sizes: Ints, clashes: Bytes, bound: int, steps: int) -> None:
        self.sizes, self.clashes, self.bound = sizes, clashes, bound
        neighbours = int(np.bitwise_count(clashes).sum(dtype=np.int64))
        self.run_steps = len(sizes) * (1 + len(sizes) // 4096) + neighbours // 800
        self.steps = min(steps, RUNS * self.run_steps)

    def is_good(self, arena_bytes: int) -> bool:
        return arena_bytes <= self.bound * (1 + CLOSE_ENOUGH)

    def improve(self, start: GreedyLayout, steps: int) -> GreedyLayout:
        """The best placement of a row of orders: what ends above the bound moves half-way to the front."""
        best = current = start
        while steps > 0 and not self.is_good(best.arena_bytes):
            keys = 2 * np.arange(len(current.order))
            above = (current.offsets + self.sizes)[current.order] > self.bound
            keys[above] = keys[above] // 2 - 1
            current = self.place(current.order[np.argsort(keys, kind="stable")], current.fit)
            best = min(best, current, key=_arena_bytes)
            steps -= self.run_steps
        return best

    def place(self, order: Ints, fit: Fit) -> GreedyLayout:
        """Each buffer in turn goes into a gap between those placed before that it clashes with, else on top.

        `lowest` takes the first gap that holds it, `tightest` the smallest. With `facing`, the space up to
        the bound counts as a gap too and is filled from above: neighbours of a chain then take turns at the
        two ends of the arena instead of piling up.
        """
        self.steps -= self.run_steps
        count = len(self.sizes)
        offsets = np.zeros(count, dtype=np.int64)
        placed = np.zeros(count, dtype=np.bool_)
        ceiling = self.bound if fit == "facing" else 0
        for row in order:
            clashing = np.unpackbits(self.clashes[row], bitorder="little", count=count).view(np.bool_)
            others = (clashing & placed).nonzero()[0]
            placed[row] = True
            if not len(others):
                continue
            starts = offsets[others]
            by_start = starts.argsort()
            starts = starts[by_start]
            covered = np.maximum.accumulate(starts + self.sizes[others[by_start]])
            top = covered[-1]
            gaps = np.empty(len(others) + 1, dtype=np.int64)
            gaps[:-1] = starts
            gaps[-1] = max(ceiling, top)
            gaps[1:] -= covered
            fits = (gaps >= self.sizes[row]).nonzero()[0]
            if not len(fits):
                offsets[row] = top
                continue
            gap = fits[0] if fit == "lowest" else fits[gaps[fits].argmin()]
            offsets[row] = covered[gap - 1] if gap else 0
            if gap == len(others) and ceiling:
                offsets[row] += gaps[gap] - self.sizes[row]
        return GreedyLayout(order, fit, offsets, int((offsets + self.sizes).max()))
