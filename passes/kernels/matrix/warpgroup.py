"""The sums of a matrix product by warpgroups: asynchronous multiplications of tiles where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import MMA_K_BYTES, MMA_M, WARP, WARPGROUP_WARPS
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.ring import Ring, Slots
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


class Tiles(Protocol):
    """A ring of tiles of one factor, as warpgroups multiply them."""

    @property
    def tiles(self) -> Value:
        """The tiles in shared memory."""
        ...

    @property
    def turned(self) -> bool:
        """Whether tiles are panels of columns of the channel."""
        ...

    def place(self, slot: Expr, outer: Expr, k: Expr) -> tuple[Expr, ...]:
        """Index of an element in the ring."""
        ...


class Factor(Tiles, Protocol):
    """The same, of either factor: `held` where a first one is multiplied from registers."""

    @property
    def held(self) -> bool:
        """Whether it is loaded to registers before."""
        ...


def start_multiplying(
    w: Writer,
    plan: MatrixParameters,
    factors: Sequence[Factor],
    acc: Value,
    slots: Slots,
    *,
    fresh: bool = False,
    opens: bool = True,
    closes: bool = True,
) -> None:
    """Start to add the product of the chunk in `slots` to `acc`, both factors from where they lie.

    A first TF32 factor in columns of the channel is loaded to registers, where nothing may be multiplied from
    yet.

    fresh: `acc` is that product alone. opens, closes: whether it is the first and the last of its group.
    """
    a, b = factors
    if a.held:
        assert isinstance(a, Staged)
        multiply_held(w, plan, load_chunk(w, plan, a, acc, slots[0]), b, acc, slots[1])
        return
    first, _ = warpgroup_rows(w, plan)
    a_at, b_at = a.place(slots[0], first, 0), b.place(slots[1], warpgroup_column(w, plan), 0)
    _start(
        w, plan, a.tiles, a_at, b, b_at, acc,
        turned=a.turned, fresh=fresh, opens=opens, closes=closes,
    )  # fmt: skip


def reduce_by_warpgroups(
    w: Writer, plan: MatrixParameters, factors: Sequence[Staged], acc: Value, chunks: int
) -> None:
    """Add the whole sum to `acc`, which is finished afterwards.

    With four slots or more a chunk's multiplication starts while that of the chunk before runs: two slots are
    being read then, and the chunks beyond are on their way. With fewer, other blocks fill the time between.

    Sums of 8-bit floats are those of one chunk, which are added to the others in float32.

    float32 factors are rounded to TF32: the first in registers, from where it is multiplied, which takes a
    wait for every chunk; the second where it lies, unless its numbers are rounded already.
    """
    a, b = factors
    wide = a.size == 4
    promotes = a.view.promotes
    part = w.alloc(acc.tensor.shape, acc.tensor.dtype, "frag", "part") if promotes else acc
    unread = 2 if a.slots >= OVERLAP_STAGES and not wide and not promotes else 1
    ring = Ring(w, factors, chunks, unread)
    rounded = [b] if wide and not plan.rounded else []
    ring.start()
    with w.loop("chunk", chunks) as chunk:
        ring.publish(chunk, rounded)
        if wide:
            _multiply_as_loaded(w, plan, a, b, acc, ring.slots_of(chunk))
        else:
            start_multiplying(w, plan, factors, part, ring.slots_of(chunk), fresh=promotes)
        waiting = ring.refill(chunk)
        if chunks > a.slots or promotes:
            w.b.do("thread.warpgroup_wait", part, pending=unread - 1)
        if promotes:
            w.b.do("thread.add_fragment", part, acc)
        for factor, ahead, later in waiting:
            factor.store(ahead, later)
    if not promotes:
        w.b.do("thread.warpgroup_wait", acc)


def _start(
    w: Writer,
    plan: MatrixParameters,
    a: Value,
    a_at: Sequence[Expr],
    b: Tiles,
    b_at: Sequence[Expr],
    acc: Value,
    *,
    turned: bool = False,
    steps: int = 0,
    fresh: bool = False,
    opens: bool = True,
    closes: bool = True,
) -> None:
    w.b.do(
        "thread.warpgroup_mma", a, b.tiles, acc,
        a_at=tuple(map(w.simple, a_at)), b_at=tuple(map(w.simple, b_at)),
        a_turned=turned, b_turned=b.turned,
        engine=plan.engine, steps=steps, fresh=fresh, opens=opens, closes=closes,
    )  # fmt: skip


def load_chunk(w: Writer, plan: MatrixParameters, a: Staged, acc: Value, slot: Expr) -> Value:
    """A chunk of a first factor of 32 bits in registers: a fragment for each step and 16 rows."""
    fragments = _fragments(w, plan, a, acc)
    for step in range(fragments.tensor.shape[0]):
        _load_step(w, plan, a, fragments, slot, step)
    return fragments


def multiply_held(
    w: Writer,
    plan: MatrixParameters,
    fragments: Value,
    b: Tiles,
    acc: Value,
    slot: Expr,
    *,
    first: Expr = 0,
    steps: int = 0,
) -> None:
    """Start to add the product of a whole chunk, whose first factor is in registers, to `acc`: one group.

    first, steps: the fragments of the chunk among those in registers, all of them by default.
    """
    at = b.place(slot, warpgroup_column(w, plan), 0)
    _start(w, plan, fragments, (first,), b, at, acc, steps=steps or fragments.tensor.shape[0])


def _multiply_as_loaded(
    w: Writer, plan: MatrixParameters, a: Staged, b: Staged, acc: Value, slots: Slots
) -> None:
    """The same, but while a step is multiplied the next one is loaded: a group for each."""
    fragments, column = _fragments(w, plan, a, acc), warpgroup_column(w, plan)
    for step in range(fragments.tensor.shape[0]):
        _load_step(w, plan, a, fragments, slots[0], step)
        at = b.place(slots[1], column, step * fragments.tensor.shape[-1])
        _start(w, plan, fragments, (step,), b, at, acc)


def _fragments(w: Writer, plan: MatrixParameters, a: Staged, acc: Value) -> Value:
    """Registers for a chunk of the first factor: [step, tile of rows, 16, depth]."""
    depth = MMA_K_BYTES // a.size
    shape = (plan.block.k // depth, acc.tensor.shape[0], MMA_M, depth)
    return w.alloc(shape, a.tiles.tensor.dtype, "frag", "a")


def _load_step(w: Writer, plan: MatrixParameters, a: Staged, fragments: Value, slot: Expr, step: int) -> None:
    """Load one step of a chunk, rounded to TF32 unless the copy engine rounded it on its way."""
    _, tiles, _, depth = fragments.tensor.shape
    _, own = warpgroup_rows(w, plan)
    for i in range(tiles):
        at = a.place(slot, own + i * WARPGROUP_WARPS * MMA_M, step * depth)
        w.b.do(
            "thread.load_fragment", fragments, a.tiles,
            at=tuple(map(w.simple, at)), role="a", transposed=a.turned, item=(step, i), count=1,
            rounding="" if a.by_engine else "tf32", paired=plan.turners > 0,
        )  # fmt: skip
