"""Static arena planning: buffers share bytes only where happens-before keeps their uses apart.

In: sizes, what each launch touches, dependency edges. Out: offsets and the size of one arena.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.runtime.arena.bound import heaviest_antichain
from tilewright.runtime.arena.in_place import places_of
from tilewright.runtime.arena.lifetimes import Ints, Lifetimes
from tilewright.runtime.arena.packing import first_bytes, pack
from tilewright.runtime.dag import Dag
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import ALIGNMENT
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan


@dataclass(frozen=True)
class ArenaLayout:
    """Byte offsets inside one arena; no layout under the same dependencies takes less than `lower_bound`."""

    offsets: Mapping[str, int]
    arena_bytes: int
    lower_bound: int


def plan_arena(
    sizes: Mapping[str, int],
    touches: Sequence[Collection[str]],
    deps: Sequence[Collection[int]],
    keep: Collection[str] = (),
    *,
    alignment: int = ALIGNMENT,
) -> ArenaLayout:
    """Place buffers of `sizes` bytes; launch i touches `touches[i]` and runs after the launches `deps[i]`.

    Names in `touches` without a size are ignored; buffers in `keep` hold their data to the very end.
    The bound is the heaviest set of buffers no two of which may share bytes. Every launch in `deps[i]` must
    be earlier than i. Raises `InputError` for a negative size or a bad dependency.
    """
    placed, rounded, lifetimes = _placed(sizes, touches, deps, keep, alignment)
    lower_bound = _lower_bound(rounded, lifetimes)
    offsets, arena_bytes = pack(rounded, lifetimes, lower_bound)
    return ArenaLayout(
        dict.fromkeys(sizes, 0) | dict(zip(placed, offsets.tolist(), strict=True)), arena_bytes, lower_bound
    )


def _placed(
    sizes: Mapping[str, int],
    touches: Sequence[Collection[str]],
    deps: Sequence[Collection[int]],
    keep: Collection[str],
    alignment: int,
) -> tuple[list[str], Ints, Lifetimes]:
    """The buffers that need bytes, their sizes in multiples of the alignment, and their lifetimes."""
    bad = next((name for name, size in sizes.items() if size < 0), None)
    if bad is not None:
        raise InputError(f"buffer {bad!r}: expected a size of at least 0 bytes, got {sizes[bad]}")
    uses: dict[str, list[int]] = {name: [] for name in sizes}
    for index, names in enumerate(touches):
        for name in set(names):
            if name in uses:
                uses[name].append(index)
    placed = [name for name in sizes if uses[name] and sizes[name] > 0]
    rounded = np.array([-(-sizes[name] // alignment) * alignment for name in placed], dtype=np.int64)
    lifetimes = Lifetimes(Dag.of_launches(deps), [uses[n] for n in placed], [n in keep for n in placed])
    return placed, rounded, lifetimes


def place_arena(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with arena offsets and the arena's size; outputs in the arena live to the end."""
    return plan_with_layout(plan, layout_of(plan))


def layout_of(plan: ExecutionPlan, *, alignment: int = ALIGNMENT) -> ArenaLayout:
    """Plan the arena of an execution plan whose offsets need not be valid yet.

    A result takes the place of an operand where the launch allows it and nobody uses the operand afterwards.
    """
    place = places_of(plan)
    layout = plan_arena(*_task_of(plan, place), alignment=alignment)
    return replace(layout, offsets={name: layout.offsets[own] for name, own in place.items()})


def arena_lower_bound(plan: ExecutionPlan, *, alignment: int = ALIGNMENT) -> int:
    """Bytes that no layout of the plan's arena goes below: `ArenaLayout.lower_bound` without a layout."""
    _, sizes, lifetimes = _placed(*_task_of(plan, places_of(plan)), alignment)
    return _lower_bound(sizes, lifetimes)


def _lower_bound(sizes: Ints, lifetimes: Lifetimes) -> int:
    """Return the bytes of the heaviest antichain; a layout as small as one launch needs shows them."""
    needed = int(lifetimes.live_bytes(sizes).max(initial=0))
    return needed if first_bytes(sizes, lifetimes) == needed else heaviest_antichain(sizes, lifetimes)


def _task_of(
    plan: ExecutionPlan, place: Mapping[str, str]
) -> tuple[Mapping[str, int], Sequence[Collection[str]], Sequence[Collection[int]], Collection[str]]:
    """Sizes, touches, deps and what is kept, for buffers that lie at the places given."""

    def places(names: Sequence[str]) -> set[str]:
        owners = (plan.locate(name)[0].name for name in names)
        return {place[name] for name in owners if name in place}

    return (
        {name: plan.buffer_by_name[name].nbytes for name in dict.fromkeys(place.values())},
        [places(launch.args) for launch in plan.launches],
        [launch.deps for launch in plan.launches],
        places(plan.outputs),
    )


def plan_with_layout(plan: ExecutionPlan, layout: ArenaLayout) -> ExecutionPlan:
    """The plan with the offsets of `layout`."""

    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, offset=layout.offsets[buffer.name]) if buffer.kind == "arena" else buffer

    return replace(plan, buffers=tuple(map(moved, plan.buffers)), arena_bytes=layout.arena_bytes)
