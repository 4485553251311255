"""The sums of a matrix product by warpgroups: asynchronous multiplications of tiles where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.expr import binary
from tilewright.passes.lower.skeletons.matrix_plan import GROUP_WARPS, TILE_M, WARP, MatrixPlan
from tilewright.passes.lower.skeletons.matrix_ring import Ring
from tilewright.passes.lower.skeletons.matrix_stage import Staged
from tilewright.passes.lower.skeletons.writer import Writer

#: slots from which on two of them are multiplied at a time
OVERLAP_STAGES = 4


def warpgroup_rows(w: Writer, plan: MatrixPlan) -> tuple[Expr, Expr]:
    """Of this thread's warp in the block's tile: its warpgroup's first row, and its own first of these."""
    place = binary("%", binary("//", Sym("tid"), WARP), plan.warps_m)
    first = binary("*", binary("//", place, GROUP_WARPS), GROUP_WARPS * plan.warp_m)
    own = binary("*", binary("%", place, GROUP_WARPS), TILE_M)
    return w.simple(first), w.simple(binary("+", first, own))


def reduce_by_warpgroups(
    w: Writer, plan: MatrixPlan, factors: Sequence[Staged], acc: Value, chunks: int, slots: int
) -> None:
    """Add the whole sum to `acc`, which is finished afterwards.

    With four slots or more a chunk's multiplication starts while that of the chunk before runs: two slots are
    being read then, and the chunks beyond are on their way. With fewer, other blocks fill the time between.
    """
    unread = 2 if slots >= OVERLAP_STAGES else 1
    ring = Ring(w, factors, chunks, slots, unread)
    a, b = factors
    first, _ = warpgroup_rows(w, plan)
    column = w.simple(binary("*", binary("//", binary("//", Sym("tid"), WARP), plan.warps_m), plan.warp_n))
    ring.start()
    with w.loop("chunk", chunks) as chunk:
        slot = ring.slot(chunk)
        ring.arrive(published=True)
        w.b.do(
            "thread.warpgroup_mma", a.tiles, b.tiles, acc,
            a_at=tuple(map(w.simple, a.place(slot, first, 0))),
            b_at=tuple(map(w.simple, b.place(slot, column, 0))),
            engine=plan.engine,
        )  # fmt: skip
        if chunks > slots:
            waiting = ring.refill(chunk)
            w.b.do("thread.warpgroup_wait", acc, pending=unread - 1)
            for factor, ahead, later in waiting:
                factor.store(ahead, later)
        elif ring.ahead > 1:
            w.b.do("thread.async_commit")
    w.b.do("thread.warpgroup_wait", acc)
