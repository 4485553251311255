"""Static arena planning: buffers share bytes only where happens-before keeps their uses apart.

In: sizes, what each launch touches, dependency edges. Out: offsets and the size of one arena.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.runtime.errors import RuntimeInputError
from tilewright.runtime.plan import Buffer, ExecutionPlan
from tilewright.runtime.plan_check import ALIGNMENT

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class ArenaLayout:
    """Byte offsets inside one arena; `lower_bound` is what no layout of any order can go below."""

    offsets: Mapping[str, int]
    arena_bytes: int
    lower_bound: int


def ancestors_of(deps: Sequence[Collection[int]]) -> Bools:
    """`result[i, j]`: launch j finishes before launch i starts (the closure of `deps`)."""
    closure = np.zeros((len(deps), len(deps)), dtype=np.bool_)
    for index, own in enumerate(deps):
        if any(not 0 <= dep < index for dep in own):
            raise RuntimeInputError(
                f"expected launch {index} to depend on earlier launches, got {sorted(own)}"
            )
        for dep in own:
            closure[index] |= closure[dep]
            closure[index, dep] = True
    return closure


@dataclass(frozen=True)
class Lifetimes:
    """Who may share with whom. Rows are buffers, columns launches.

    `uses[b]`: the launches that touch b. `alive[b, i]`: b holds data while i runs, in every allowed order.
    `over[b, i]`: i starts only after every use of b. A buffer that is kept lives on after the last launch.
    """

    uses: Sequence[Sequence[int]]
    alive: Bools
    over: Bools

    @staticmethod
    def of(uses: Sequence[Sequence[int]], deps: Sequence[Collection[int]], kept: Sequence[bool]) -> Lifetimes:
        """Lifetimes of the buffers whose launch indices are `uses`; each has at least one."""
        before = ancestors_of(deps)
        after = np.ascontiguousarray(before.T)
        alive, over = (np.zeros((len(uses), len(deps)), dtype=np.bool_) for _ in range(2))
        for row, touched in enumerate(uses):
            some_after = after[touched].any(axis=0)
            some_before = before[touched].any(axis=0) | kept[row]
            alive[row] = some_after & some_before
            alive[row, touched] = True
            over[row] = after[touched].all(axis=0) & (not kept[row])
        return Lifetimes(uses, alive, over)

    def clashes(self) -> Bools:
        """`result[b, c]`: may uses of b and c interleave in some allowed order?"""
        ordered = np.zeros((len(self.uses), len(self.uses)), dtype=np.bool_)
        by_launch = np.ascontiguousarray(self.over.T)
        for row, touched in enumerate(self.uses):
            ordered[row] = by_launch[touched].all(axis=0)
        return ~(ordered | ordered.T)


def plan_arena(
    sizes: Mapping[str, int],
    touches: Sequence[Collection[str]],
    deps: Sequence[Collection[int]],
    *,
    keep: Collection[str] = (),
    alignment: int = ALIGNMENT,
) -> ArenaLayout:
    """Place buffers of `sizes` bytes; launch i touches `touches[i]` and runs after the launches `deps[i]`.

    Names in `touches` without a size are ignored; buffers in `keep` hold their data to the very end.
    Greedy best fit in a few orders (first use, size, area); the smallest arena wins. Every launch in
    `deps[i]` must be earlier than i. Raises `RuntimeInputError` for a negative size or a bad dependency.
    """
    bad = next((name for name, size in sizes.items() if size < 0), None)
    if bad is not None:
        raise RuntimeInputError(f"buffer {bad!r}: expected a size of at least 0 bytes, got {sizes[bad]}")
    uses: dict[str, list[int]] = {name: [] for name in sizes}
    for index, names in enumerate(touches):
        for name in set(names):
            if name in uses:
                uses[name].append(index)
    placed = [name for name in sizes if uses[name] and sizes[name] > 0]
    rounded = np.array([-(-sizes[name] // alignment) * alignment for name in placed], dtype=np.int64)
    kept = [name in keep for name in placed]
    lifetimes = Lifetimes.of([uses[name] for name in placed], deps, kept)
    live_bytes = rounded @ lifetimes.alive if placed else np.zeros(1, dtype=np.int64)
    kept_bytes = int(rounded[np.asarray(kept, dtype=np.bool_)].sum())
    lower_bound = max(int(live_bytes.max(initial=0)), kept_bytes)
    offsets, arena_bytes = _best_placement(rounded, lifetimes, lower_bound)
    return ArenaLayout(
        dict.fromkeys(sizes, 0) | dict(zip(placed, offsets.tolist(), strict=True)), arena_bytes, lower_bound
    )


def _best_placement(sizes: Ints, lifetimes: Lifetimes, lower_bound: int) -> tuple[Ints, int]:
    count = len(sizes)
    if count == 0:
        return np.zeros(0, dtype=np.int64), 0
    clashes = lifetimes.clashes()
    first_use = np.array([min(touched) for touched in lifetimes.uses])
    duration = lifetimes.alive.sum(axis=1)
    orders = (
        np.lexsort((-sizes, first_use)),
        np.lexsort((first_use, -duration, -sizes)),
        np.lexsort((first_use, -sizes * duration)),
    )
    best: tuple[Ints, int] | None = None
    for order, ceiling in ((order, ceiling) for ceiling in (lower_bound, 0) for order in orders):
        offsets = _place_in_order(order, sizes, clashes, ceiling)
        arena_bytes = int((offsets + sizes).max())
        if best is None or arena_bytes < best[1]:
            best = (offsets, arena_bytes)
        if arena_bytes == lower_bound:
            break
    assert best is not None
    return best


def _place_in_order(order: Ints, sizes: Ints, clashes: Bools, ceiling: int) -> Ints:
    """Each buffer goes into the smallest gap that holds it between those it clashes with, else on top.

    The space up to `ceiling` counts as a gap and is filled from above: neighbours of a chain then take turns
    at the two ends of the arena instead of piling up.
    """
    offsets = np.zeros(len(sizes), dtype=np.int64)
    done = np.zeros(len(sizes), dtype=np.bool_)
    for row in order:
        others = np.flatnonzero(clashes[row] & done)
        done[row] = True
        if not len(others):
            continue
        others = others[np.argsort(offsets[others], kind="stable")]
        starts = offsets[others]
        covered = np.maximum.accumulate(starts + sizes[others])
        gap_starts = np.concatenate(([0], covered))
        gaps = np.append(starts, max(ceiling, covered[-1])) - gap_starts
        fits = np.flatnonzero(gaps >= sizes[row])
        if not len(fits):
            offsets[row] = covered[-1]
            continue
        gap = fits[gaps[fits].argmin()]
        fill_from_above = gap == len(others)
        offsets[row] = gap_starts[gap] + (gaps[gap] - sizes[row] if fill_from_above else 0)
    return offsets


def place_arena(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with arena offsets and the arena's size; outputs in the arena live to the end."""
    return plan_with_layout(plan, layout_of(plan))


def layout_of(plan: ExecutionPlan, *, alignment: int = ALIGNMENT) -> ArenaLayout:
    """Plan the arena of an execution plan whose offsets need not be valid yet."""
    owner = {b.name: (b.base if b.kind == "alias" else b.name) for b in plan.buffers}
    return plan_arena(
        {b.name: b.nbytes for b in plan.buffers if b.kind == "arena"},
        [{owner[name] for name in launch.args} for launch in plan.launches],
        [launch.deps for launch in plan.launches],
        keep={owner[name] for name in plan.outputs},
        alignment=alignment,
    )


def plan_with_layout(plan: ExecutionPlan, layout: ArenaLayout) -> ExecutionPlan:
    """The plan with the offsets of `layout`."""

    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, offset=layout.offsets[buffer.name]) if buffer.kind == "arena" else buffer

    return replace(plan, buffers=tuple(map(moved, plan.buffers)), arena_bytes=layout.arena_bytes)
