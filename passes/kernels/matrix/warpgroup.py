"""The sums of a matrix product by warpgroups: asynchronous multiplications of tiles where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import MMA_K_BYTES, MMA_M, WARP, WARPGROUP_WARPS
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.ring import Ring
from tilewright.passes.kernels.matrix.space import OVERLAP_STAGES
from tilewright.passes.kernels.matrix.stage import Staged
from tilewright.passes.kernels.writing.writer import Writer


def warpgroup_rows(w: Writer, plan: MatrixParameters) -> tuple[Expr, Expr]:
    """Return the first row of this thread's warpgroup in the block's tile, and that of its warp therein."""
    place = Sym("tid") // WARP % plan.warps.m
    first = place // WARPGROUP_WARPS * (WARPGROUP_WARPS * plan.warp_m)
    own = place % WARPGROUP_WARPS * MMA_M
    return w.simple(first), w.simple(first + own)


def warpgroup_column(w: Writer, plan: MatrixParameters) -> Expr:
    """Return the first column of this thread's warpgroup in the block's tile."""
    return w.simple(Sym("tid") // WARP // plan.warps.m * plan.warp_n)


def start_multiplying(
    w: Writer,
    plan: MatrixParameters,
    factors: Sequence[Staged],
    acc: Value,
    slot: Expr,
    *,
    fresh: bool = False,
    opens: bool = True,
    closes: bool = True,
) -> None:
    """Start to add the product of the chunk in `slot` to `acc`, both factors from where they lie.

    TF32 factors in columns of the channel are loaded to registers, where nothing may be multiplied from yet.

    fresh: `acc` is that product alone. opens, closes: whether it is the first and the last of its group.
    """
    a, b = factors
    first, _ = warpgroup_rows(w, plan)
    column = warpgroup_column(w, plan)
    if a.held:
        _multiply_turned(w, plan, a, b, acc, slot, column)
        return
    at = a.place(slot, first, 0)
    _start(
        w, plan, a.tiles, at, b, b.place(slot, column, 0), acc,
        turned=a.turned, fresh=fresh, opens=opens, closes=closes,
    )  # fmt: skip


def reduce_by_warpgroups(
    w: Writer, plan: MatrixParameters, factors: Sequence[Staged], acc: Value, chunks: int, slots: int
) -> None:
    """Add the whole sum to `acc`, which is finished afterwards.

    With four slots or more a chunk's multiplication starts while that of the chunk before runs: two slots are
    being read then, and the chunks beyond are on their way. With fewer, other blocks fill the time between.

    float32 factors are rounded to TF32: the first in registers, from where it is multiplied, which takes a
    wait for every chunk; the second where it lies, unless its numbers are rounded already.
    """
    a, b = factors
    wide = a.size == 4
    unread = 2 if slots >= OVERLAP_STAGES and not wide else 1
    ring = Ring(w, factors, chunks, slots, unread)
    column = warpgroup_column(w, plan)
    rounded = [b] if wide and not plan.rounded else []
    ring.start()
    with w.loop("chunk", chunks) as chunk:
        slot = ring.slot(chunk)
        ring.publish(slot, rounded)
        if wide:
            _multiply_held(w, plan, a, b, acc, slot, column)
        else:
            start_multiplying(w, plan, factors, acc, slot)
        waiting = ring.refill(chunk)
        if chunks > slots:
            w.b.do("thread.warpgroup_wait", acc, pending=unread - 1)
        for factor, ahead, later in waiting:
            factor.store(ahead, later)
    w.b.do("thread.warpgroup_wait", acc)


def _start(
    w: Writer,
    plan: MatrixParameters,
    a: Value,
    a_at: Sequence[Expr],
    b: Staged,
    b_at: Sequence[Expr],
    acc: Value,
    *,
    turned: bool = False,
    fresh: bool = False,
    opens: bool = True,
    closes: bool = True,
) -> None:
    w.b.do(
        "thread.warpgroup_mma", a, b.tiles, acc,
        a_at=tuple(map(w.simple, a_at)), b_at=tuple(map(w.simple, b_at)),
        a_turned=turned, b_turned=b.turned,
        engine=plan.engine, fresh=fresh, opens=opens, closes=closes,
    )  # fmt: skip


def _multiply_held(
    w: Writer, plan: MatrixParameters, a: Staged, b: Staged, acc: Value, slot: Expr, column: Expr
) -> None:
    """A chunk with the first factor in registers: while a step is multiplied the next one is loaded."""
    depth = MMA_K_BYTES // a.size
    steps, tiles = plan.block.k // depth, acc.tensor.shape[0]
    fragments = w.alloc((steps, tiles, MMA_M, depth), a.tiles.tensor.dtype, "frag", "a")
    _, own = warpgroup_rows(w, plan)
    for step in range(steps):
        for i in range(tiles):
            row = own + i * WARPGROUP_WARPS * MMA_M
            w.b.do(
                "thread.load_fragment", fragments, a.tiles,
                at=tuple(map(w.simple, a.place(slot, row, step * depth))),
                role="a", transposed=False, item=(step, i), count=1, rounding="tf32",
            )  # fmt: skip
        _start(w, plan, fragments, (step,), b, b.place(slot, column, step * depth), acc)


def _multiply_turned(
    w: Writer, plan: MatrixParameters, a: Staged, b: Staged, acc: Value, slot: Expr, column: Expr
) -> None:
    """A chunk with the first factor, which lies in columns of the channel, in registers: one group."""
    depth = MMA_K_BYTES // a.size
    steps, tiles = plan.block.k // depth, acc.tensor.shape[0]
    fragments = w.alloc((steps, tiles, MMA_M, depth), a.tiles.tensor.dtype, "frag", "a")
    _, own = warpgroup_rows(w, plan)
    for step, i in product(range(steps), range(tiles)):
        w.b.do(
            "thread.load_fragment", fragments, a.tiles,
            at=tuple(map(w.simple, a.place(slot, own + i * WARPGROUP_WARPS * MMA_M, step * depth))),
            role="a", transposed=True, item=(step, i), count=1,
        )  # fmt: skip
    w.b.do(
        "thread.warpgroup_mma", fragments, b.tiles, acc,
        a_at=(0,), b_at=tuple(map(w.simple, b.place(slot, column, 0))),
        engine=plan.engine, steps=steps,
    )  # fmt: skip
