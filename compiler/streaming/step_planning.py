"""Which steps a network is cut into: two slots, the arena and the values between steps fit the cap."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import WorkError
from tilewright.streaming.cuts import choose_cuts
from tilewright.streaming.line import Line
from tilewright.streaming.memory_size import shown_bytes
from tilewright.streaming.split_ops import split_large
from tilewright.streaming.step_modules import steps_of
from tilewright.streaming.step_plans import StepCompiler
from tilewright.streaming.store_file import PlannedSteps
from tilewright.streaming.window import Window, window_of

#: cuts that are compiled before giving up
ATTEMPTS = 6
#: how much less weights per step where a smaller limit is to give other cuts
FINER = 0.85
#: steps from which filling the pipeline (reading one step) hardly counts; bytes that are worth a step
STEPS, WORTHWHILE_BYTES = 12, 32 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """Device memory in bytes: slots for constants, the arena that steps share, one window of values."""

    slots: int
    slot_bytes: int
    arena_bytes: int
    window_bytes: int

    @property
    def device_bytes(self) -> int:
        """All of it, with one window."""
        return self.slots * self.slot_bytes + self.arena_bytes + self.window_bytes


def memory_of(planned: PlannedSteps, window: Window) -> MemoryPlan:
    """What planned steps take; one step alone needs no second slot."""
    return MemoryPlan(
        slots=min(2, len(planned.steps)),
        slot_bytes=max(4096, *(p.stored.nbytes for p in planned.plans), 0),
        arena_bytes=max(p.plan.arena_bytes for p in planned.plans),
        window_bytes=window.nbytes,
    )


def plan_steps(line: Line, cap_bytes: int, compiler: StepCompiler) -> tuple[PlannedSteps, Window]:
    """Few steps under the cap: estimated on the graph, compiled, and cut finer where that was too little.

    Raises WorkError naming the least cap that was found to do where this one does not.
    """
    working, inflation, share = float(line.working_bytes), 1.0, 1.0
    tried: dict[tuple[int, tuple[tuple[int, int], ...]], MemoryPlan] = {}
    while len(tried) < ATTEMPTS:
        room = share * (cap_bytes - working) / inflation
        cut_line, cuts, finest = _cut(line, room)
        key = (len(cut_line.ops), cuts)
        if key in tried:
            if finest:
                break
            share *= FINER
            continue
        steps = steps_of(cut_line, cuts)
        plans, plan_of = compiler.plans(steps)
        planned, window = PlannedSteps(steps, plans, plan_of), window_of(steps)
        memory = memory_of(planned, window)
        if memory.device_bytes <= cap_bytes:
            return planned, window
        tried[key] = memory
        # What was estimated is known now: what values take, and weights with what aligns them.
        working = memory.arena_bytes + memory.window_bytes
        inflation = max(1.0, memory.slot_bytes / max(1, *(s.constant_bytes for s in steps)))
    found = min(tried.values(), key=lambda m: m.device_bytes)
    raise WorkError(
        f"@{line.module.name} does not fit under a memory cap of {shown_bytes(cap_bytes)}: the least that "
        f"would do is {shown_bytes(found.device_bytes)} ({found.slots} slots of "
        f"{shown_bytes(found.slot_bytes)} for weights, {shown_bytes(found.arena_bytes)} for kernels, "
        f"{shown_bytes(found.window_bytes)} for values between steps)"
    )


def _cut(line: Line, room: float) -> tuple[Line, tuple[tuple[int, int], ...], bool]:
    """Cuts for so much memory for weights: one step, or two slots. Also: whether finer ones cannot be.

    Ops too large for a slot are split where that is possible; else their weights are the limit.
    """
    cut_line = split_large(line, int(room // 2)) if room >= 2 else line
    least = max(sum(needed.values()) for needed in cut_line.constant_bytes)
    total = sum({k: n for needed in cut_line.constant_bytes for k, n in needed.items()}.values())
    limit = weight_limit(total, least, room)
    cuts = choose_cuts(cut_line, limit)
    assert cuts is not None  # every op alone is within the limit
    return cut_line, tuple(cuts), limit == least


def weight_limit(total: int, least: int, room: float) -> float:
    """Bytes of weights for one step, of `total` in all where no step can have fewer than `least`.

    All of them where they fit into the room. Else half of it, or less where steps would be few: before the
    first step computes, its weights are read with nothing to hide that behind.
    """
    if total <= room:
        return total
    return max(min(room / 2, max(total / STEPS, WORTHWHILE_BYTES)), least)
