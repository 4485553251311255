"""The rings of chunks of both factors in shared memory: what is on its way while one is multiplied."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Value
from tilewright.ir.expr import minimum
from tilewright.passes.kernels.matrix.stage import Staged
from tilewright.passes.kernels.writing.writer import Writer

#: what the threads compute themselves of a later chunk: whose it is, its registers, the slot it goes to
Waiting = list[tuple[Staged, Value, Expr]]
#: where a chunk of the first factor lies, and where one of the second does
Slots = tuple[Expr, Expr]


class Ring:
    """Tiles of each factor for `chunks` chunks; `unread` are not filled while one is multiplied.

    The second factor has as many of them as the first one, or one for each chunk: all of it is fetched then
    before the first factor. ahead: chunks that are fetched before the first one is multiplied,
    and that many before each later one.
    """

    def __init__(self, w: Writer, factors: Sequence[Staged], chunks: int, unread: int = 1) -> None:
        self.w, self.factors, self.chunks = w, factors, chunks
        slots = factors[0].slots
        self.ahead = slots if chunks <= slots else slots - unread

    def start(self) -> None:
        """Fetch the first chunks, the second factor first: it may not depend on other kernels."""
        a, b = self.factors
        if b.slots == self.chunks > self.ahead:
            with self.w.loop("chunk", self.chunks) as chunk:
                b.fetch(chunk, chunk)
        else:
            for i in range(self.ahead):
                b.fetch(i, i)
            b.prefetch_early(self.ahead, self.chunks - self.ahead)
        for i in range(self.ahead):
            a.fetch(i, i)
            self.w.b.do("thread.async_commit")

    def slots_of(self, chunk: Expr) -> Slots:
        """The slot of a chunk of each factor."""
        a, b = (self.w.simple(chunk % f.slots) for f in self.factors)
        return a, b

    def arrive(self) -> None:
        """Wait for the oldest chunk in flight, and for all threads to be done with the one before."""
        self.w.b.do("thread.async_wait", pending=self.ahead - 1)
        self.w.b.do("thread.barrier")

    def publish(self, chunk: Expr, rounded: Sequence[Staged] = ()) -> None:
        """As `arrive`, for asynchronous multiplications of a chunk; some factors are rounded before."""
        self.w.b.do("thread.async_wait", pending=self.ahead - 1)
        for factor in rounded:
            factor.round(self.slots_of(chunk)[factor.operand])
        self.w.b.do("thread.fence_async_proxy")
        self.w.b.do("thread.barrier")

    def refill(self, chunk: Expr) -> Waiting:
        """Start copying a later chunk to the slot that an earlier iteration has read.

        What the threads compute themselves goes to registers, for the slot once this chunk is multiplied; in
        the last iterations it is the last chunk again, so that no branch keeps its loads from going ahead.
        """
        w = self.w
        waiting: Waiting = []
        if self.ahead < self.chunks:
            later = w.simple(chunk + self.ahead)
            coming = [
                (f, slot)
                for f, slot in zip(self.factors, self.slots_of(later), strict=True)
                if f.slots < self.chunks
            ]
            with w.when(w.below(later, self.chunks)):
                for f, slot in coming:
                    if f.asynchronous:
                        f.fetch(later, slot)
            for f, slot in coming:
                if not f.asynchronous:
                    waiting.append((f, f.load(w.simple(minimum(later, self.chunks - 1))), slot))
        if self.ahead < self.chunks or self.ahead > 1:
            w.b.do("thread.async_commit")
        return waiting
