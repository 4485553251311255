"""float32 products by split factors: six products of pieces of bfloat16, whose sums are promoted every step.

The pieces are made where fragments are loaded, so nothing of the ring, its copies or the tiles knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.float_pieces import PIECES, SCALE
from tilewright.ir.hardware_facts import MMA_K_BYTES, MMA_M, MMA_N, WARP, WARPGROUP_WARPS
from tilewright.ir.tensor.ops import dims
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.ring import Ring, Slots
from tilewright.passes.kernels.matrix.space import together
from tilewright.passes.kernels.matrix.stage import WARPGROUP_ALIGNMENT, Staged
from tilewright.passes.kernels.matrix.warpgroup import warpgroup_rows
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Writer

#: elements along k of a float32 fragment; two of them become one of pieces
_LOADED = MMA_K_BYTES // itemsize("f32")


def reduce_split(
    w: Writer,
    plan: MatrixParameters,
    factors: Sequence[Staged],
    acc: Value,
    chunks: int,
    warp: tuple[Expr, Expr, Expr],
) -> None:
    """Add the whole sum, times the square of the scale of factors, to `acc`.

    warp: the first row, column and element along k of this thread's warp in a chunk.
    """
    ring = Ring(w, factors, chunks)
    multiply = _Multiply(w, factors, acc, warp)
    ring.start()
    with w.loop("chunk", chunks) as chunk:
        ring.arrive()
        waiting = ring.refill(chunk)
        for step in range(plan.block.k // plan.warps.k // (2 * _LOADED)):
            multiply.step(ring.slots_of(chunk), step)
        for factor, ahead, later in waiting:
            factor.store(ahead, later)


def reduce_split_by_warpgroups(
    w: Writer, plan: MatrixParameters, factors: Sequence[Staged], acc: Value, chunks: int
) -> None:
    """As `reduce_split`, by warpgroups: the first factor is split in registers, the second in shared memory.

    The pieces of the second factor are a tile of their own, which the block makes of every chunk. Sums are
    promoted after every chunk.
    """
    a, b = factors
    ring = Ring(w, factors, chunks)
    rows, columns = acc.tensor.shape[:2]
    steps = plan.block.k // (2 * _LOADED)
    pieces = w.alloc(
        (PIECES, plan.block.n, plan.block.k),
        "bf16",
        "shared",
        "b_pieces",
        swizzled=True,
        align=WARPGROUP_ALIGNMENT,
    )
    loaded = w.alloc((2, steps, rows, MMA_M, _LOADED), "f32", "frag", "a_loaded")
    held = w.alloc((PIECES, steps, rows, MMA_M, 2 * _LOADED), "bf16", "frag", "a")
    parts = _parts(w, rows, columns)
    column = w.simple(Sym("tid") // WARP // plan.warps.m * plan.warp_n)
    _, own = warpgroup_rows(w, plan)
    for part in parts:
        w.b.do("thread.fill_fragment", part, value=0.0)
    ring.start()
    with w.loop("chunk", chunks) as chunk:
        a_slot, b_slot = ring.slots_of(chunk)
        ring.arrive()
        waiting = ring.refill(chunk)
        b.split(b_slot, pieces)
        for step in range(steps):
            for half, i in product(range(2), range(rows)):
                k = (2 * step + half) * _LOADED
                w.b.do(
                    "thread.load_fragment", loaded, a.tiles,
                    at=tuple(map(w.simple, a.place(a_slot, own + i * WARPGROUP_WARPS * MMA_M, k))),
                    role="a", transposed=False, item=(half, step, i), count=1,
                )  # fmt: skip
        for step, i in product(range(steps), range(rows)):
            w.b.do("thread.split_fragment", loaded, held, item=(step, i))
        w.b.do("thread.fence_async_proxy")
        w.b.do("thread.barrier")
        for part, products in zip(parts, PRODUCTS, strict=True):
            for number, ((first, second), step) in enumerate(product(products, range(steps))):
                w.b.do(
                    "thread.warpgroup_mma", held, pieces, part,
                    a_at=(first, step), b_at=(second, column, step * 2 * _LOADED),
                    engine=plan.engine, fresh=not number,
                )  # fmt: skip
        for part in parts:
            w.b.do("thread.warpgroup_wait", part)
        w.b.do("thread.promote_fragment", *parts, acc, dst=(0, 0))
        for factor, ahead, later in waiting:
            factor.store(ahead, later)


def scale_split(w: Writer, acc: Value) -> None:
    """Take the scale off the sums."""
    w.b.do("thread.scale_fragment", acc, factor=1.0 / SCALE**2)


def any_not_finite(w: Writer, acc: Value) -> Value:
    """Whether any sum of the block is not finite.

    That is so wherever an element of a factor was infinite, nan or too large to be split, or a sum too large.
    """
    return w.b.value("thread.any_not_finite", acc)


def chain_of(w: Writer, op: Op, index: Mapping[str, Expr]) -> Value:
    """One result of a contraction as a chain of additions in float32, from 0, without fragments."""
    total = w.alloc((1,), "f32", "reg", "chain")
    w.store(w.b.const(0.0, "f32"), total, (0,))
    red = dims(op, "red")
    with w.loops("red", tuple(red.values())) as at:
        env = {**index, **dict(zip(red, at, strict=True))}
        operands = [*Points(w).operands(op, env), w.load(total, (0,))]
        (new,) = w.inline(op, operands, env)
        w.store(new, total, (0,))
    return w.load(total, (0,))


def _parts(w: Writer, rows: int, columns: int) -> tuple[Value, Value]:
    """Sums of the small products of a step, and of the large ones."""
    small, large = (
        w.alloc((rows, columns, MMA_M, MMA_N), "f32", "frag", hint) for hint in ("small", "large")
    )
    return small, large


class _Multiply:
    """Fragments of one warp, and one step of its product."""

    def __init__(
        self, w: Writer, factors: Sequence[Staged], acc: Value, warp: tuple[Expr, Expr, Expr]
    ) -> None:
        self.w, self.factors, self.acc = w, factors, acc
        self.origins, self.k = warp[:2], warp[2]
        self.rows, self.columns = acc.tensor.shape[:2]
        self.together = together(self.rows, self.columns)
        self.loaded = (
            w.alloc((2, self.rows, MMA_M, _LOADED), "f32", "frag", "a_loaded"),
            w.alloc((2, self.together, _LOADED, MMA_N), "f32", "frag", "b_loaded"),
        )
        self.pieces = (
            w.alloc((PIECES, self.rows, MMA_M, 2 * _LOADED), "bf16", "frag", "a"),
            w.alloc((PIECES, self.together, 2 * _LOADED, MMA_N), "bf16", "frag", "b"),
        )
        self.parts = _parts(w, self.rows, self.together)

    def step(self, slots: Slots, step: int) -> None:
        """All tiles by one step along k, a few columns at a time."""
        w = self.w
        self._split(0, slots[0], step, 0, self.rows)
        with w.loop("group", self.columns // self.together, unroll=1) as group:
            first = w.simple(group * self.together)
            self._split(1, slots[1], step, first, self.together)
            for part, products in zip(self.parts, PRODUCTS, strict=True):
                w.b.do("thread.fill_fragment", part, value=0.0)
                for pair in products:
                    self._multiply(part, *pair)
            w.b.do("thread.promote_fragment", *self.parts, self.acc, dst=(0, first))

    def _multiply(self, part: Value, first: int, second: int) -> None:
        """A piece of every row's tile by a piece of every column's."""
        w = self.w
        with w.loops("i", (self.rows, self.together), unroll=1) as (i, j):
            w.b.do(
                "thread.mma", *self.pieces, part,
                shape=(MMA_M, MMA_N, 2 * _LOADED),
                engine="mma",
                a_item=(first, i),
                b_item=(second, j),
                c_item=(i, j),
            )  # fmt: skip

    def _split(self, operand: int, slot: Expr, step: int, first: Expr, tiles: int) -> None:
        """The pieces of one factor's tiles from `first` on."""
        w, f = self.w, self.factors[operand]
        width = MMA_N if operand else MMA_M
        count = 2 if operand and tiles % 2 == 0 else 1
        for half in range(2):
            k = self.k + (2 * step + half) * _LOADED
            with w.loop("i", tiles // count, unroll=1) as i:
                outer = self.origins[operand] + (first + i * count) * width
                w.b.do(
                    "thread.load_fragment", self.loaded[operand], f.tiles,
                    at=tuple(w.simple(e) for e in f.place(slot, outer, k)),
                    role="ab"[operand],
                    transposed=f.by_channel == bool(operand),
                    item=(half, w.simple(i * count)),
                    count=count,
                )  # fmt: skip
        with w.loop("i", tiles, unroll=1) as i:
            w.b.do("thread.split_fragment", self.loaded[operand], self.pieces[operand], item=(i,))
