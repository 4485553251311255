"""The arena over the launches: where each buffer lies while it holds data, and how much is alive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.arena.in_place import places_of
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.tools.report.figures import CYCLE, FAINT, INK, Picture, drawing
from tilewright.tools.report.wording import bytes_text, shape_text


@dataclass(frozen=True)
class BufferSpan:
    """A buffer of the arena and the launches (first, last; inclusive) during which it holds data."""

    buffer: Buffer
    first: int
    last: int


def spans_of(plan: ExecutionPlan) -> list[BufferSpan]:
    """Lifetimes in plan order; what is an output, or seen through one, lives to the end.

    An operand that a launch overwrites ends before that launch, where the result begins.
    """
    uses: dict[str, list[int]] = {}
    for i, launch in enumerate(plan.launches):
        for name in launch.args:
            uses.setdefault(plan.locate(name)[0].name, []).append(i)
    results = {plan.locate(name)[0].name for name in plan.outputs}
    end = len(plan.launches) - 1
    placed = [(b, uses[b.name]) for b in plan.buffers if b.kind == "arena" and b.name in uses]
    place = places_of(plan)
    overwritten = {
        (launch.args[read], i)
        for i, launch in enumerate(plan.launches)
        for read, written in launch.in_place
        if launch.args[read] in place and place[launch.args[read]] == place.get(launch.args[written])
    }
    last = {b.name: end if b.name in results else at[-1] for b, at in placed}
    return [BufferSpan(b, at[0], last[b.name] - ((b.name, last[b.name]) in overwritten)) for b, at in placed]


def live_bytes(plan: ExecutionPlan) -> list[int]:
    """Bytes of the arena that hold data during each launch."""
    change = np.zeros(len(plan.launches) + 1, dtype=np.int64)
    for s in spans_of(plan):
        change[s.first] += s.buffer.nbytes
        change[s.last + 1] -= s.buffer.nbytes
    return [int(n) for n in np.cumsum(change)[:-1]]


@drawing
def memory_svg(plan: ExecutionPlan) -> str:
    """Offset over launch index, one rectangle per buffer, the arena's size marked; below, the bytes alive."""
    from matplotlib.patches import Rectangle

    picture = Picture("memory", 10.0, 5.6, rows=2, ratios=(3.4, 1.0))
    space, alive = picture.rows
    scale, unit = _scale(plan.arena_bytes)
    for i, s in enumerate(spans_of(plan)):
        b = s.buffer
        box = Rectangle(
            (s.first - 0.5, b.offset / scale), s.last - s.first + 1, b.nbytes / scale,
            facecolor=CYCLE[i % len(CYCLE)], alpha=0.72, linewidth=0.4, edgecolor=FAINT,
        )  # fmt: skip
        space.add_patch(box)
        picture.tag(
            box,
            f"buffer-{i}",
            f"{b.name}\n{shape_text(b.dtype, b.shape)}, {bytes_text(b.nbytes)} at {b.offset}\n"
            f"launches {s.first} to {s.last}",
        )
    top = plan.arena_bytes / scale
    space.axhline(top, color=INK, lw=1.1, ls=(0, (4, 3)))
    space.annotate(
        f"arena {bytes_text(plan.arena_bytes)}", (1, top), (-2, 4), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right",
    )  # fmt: skip
    space.set_ylim(0, top * 1.12 or 1)
    space.set_ylabel(f"offset in the arena, {unit}")
    live = live_bytes(plan)
    edges = [i - 0.5 for i in range(len(live) + 1)]
    alive.stairs([n / scale for n in live], edges, fill=True, color=CYCLE[0], alpha=0.6)
    highest = max(live, default=0)
    if highest:
        at = live.index(highest)
        alive.plot([at], [highest / scale], "v", color=INK, ms=5)
        side = -1 if at > len(live) / 2 else 1
        alive.annotate(
            f"peak {bytes_text(highest)} at launch {at}", (at, highest / scale), (8 * side, 1),
            textcoords="offset points", ha="right" if side < 0 else "left",
        )  # fmt: skip
        alive.set_ylim(0, highest / scale * 1.3)
    alive.set_xlim(-0.5, max(1, len(live)) - 0.5)
    alive.set_ylabel(f"alive, {unit}")
    alive.set_xlabel("launch")
    for ax in picture.rows:
        ax.tick_params(length=3, color=FAINT)
    return picture.svg()


def _scale(total: int) -> tuple[float, str]:
    return (1e6, "MB") if total >= 1e6 else (1e3, "kB") if total >= 1e3 else (1.0, "bytes")
