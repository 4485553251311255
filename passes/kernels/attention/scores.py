"""The maps on scores of an attention kernel: computed at the elements of fragments, by row and column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, prod

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.attention import KEY
from tilewright.passes.analysis.terms import Read, Term, names_in
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.attention.view import AttentionView
from tilewright.passes.kernels.writing.common_reads import distinct, first_of, in_words, place, share
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: elements of one parameter that a thread reads before it needs them, at most
MOST_AHEAD = 64


def fragment_shape(plan: AttentionParameters) -> tuple[int, int, int, int]:
    """A thread's elements of a tile: tiles of 16 queries, tiles of 8 keys, 2 queries and 2 keys of each."""
    return plan.row_tiles, plan.part // MMA_N, 2, 2


def elements_read(read: Read, view: AttentionView, plan: AttentionParameters) -> tuple[int, ...]:
    """How many different elements a thread reads for a tile, per dimension of its fragment."""
    steps = (plan.keys, plan.part)
    return distinct(read.at, fragment_shape(plan), view.rows, (KEY,), view.sizes, steps)


def reads_of_scores(
    view: AttentionView, plan: AttentionParameters, reads: Iterable[Read]
) -> tuple[int, float]:
    """Bytes of parameters that a thread reads ahead for a tile, and reads for each element of a tile."""
    ahead, shares = 0, 0.0
    for read in reads:
        extents = elements_read(read, view, plan)
        words = in_words(read.at, (view.rows, (KEY,)), view.sizes)
        shares += share(extents, fragment_shape(plan), words=words)
        if KEY in names_in(read) and prod(extents) <= MOST_AHEAD:
            ahead += prod(extents) * itemsize(read.value.tensor.dtype)
    return ahead, shares


class ScoreMaps:
    """Maps of fragments of one tile of keys: what softmax is taken of, or weights that dropout keeps.

    first: query of the warp, and its key in the tile; tile: number of the tile of keys. term: what becomes of
    an element, which it calls `view.product`; reads: the elements of parameters in it.
    """

    def __init__(
        self,
        w: Writer,
        view: AttentionView,
        plan: AttentionParameters,
        first: tuple[Expr, Expr],
        batch: Mapping[str, Expr],
        tile: Expr,
        term: Term,
        reads: tuple[Read, ...],
    ) -> None:
        self.w, self.view, self.plan = w, view, plan
        self.term, self.reads = term, reads
        self.batch, self.tile = dict(batch), tile
        self.first, self.first_key = first
        self.shape = fragment_shape(plan)
        self.ahead: dict[Read, Value] = {}

    def read_ahead(self, *, words: bool = False) -> None:
        """Read what scores are computed with to registers, before the product that hides the wait.

        words: what several elements of a thread have in common alone.
        """
        w, view = self.w, self.view
        for read in self.reads:
            extents = self._extents(read)
            if KEY not in names_in(read) or prod(extents) > MOST_AHEAD:
                continue
            if words and not in_words(read.at, (view.rows, (KEY,)), view.sizes):
                continue
            self.ahead[read] = w.alloc(extents, read.value.tensor.dtype, "reg", "ahead")
            with w.loops("i", extents, unroll=1) as at:
                env, mask = self._place(first_of(at, extents, self.shape), read)
                value = TermWriter(w, env, mask=mask).value(read)
                w.store(value, self.ahead[read], at)

    def apply(self, scores: Value) -> None:
        """Replace the elements of `scores`."""
        w, view = self.w, self.view
        if self.term == view.product:
            return
        with w.loops("s", self.shape, unroll=1) as at:
            env, mask = self._place(at)
            known: dict[Term, Value] = {view.product: self._element(scores, at)}
            for read, registers in self.ahead.items():
                where = place(at, registers.tensor.shape, self.shape)
                known[read] = w.load(registers, tuple(map(w.simple, where)))
            self._put(TermWriter(w, env, known, mask).value(self.term), scores, at)

    def cut(self, scores: Value) -> None:
        """Make columns beyond the last key minus infinity."""
        w, view = self.w, self.view
        rest = view.keys % self.plan.keys
        if not rest:
            return
        last = self.plan.tiles(view) - 1
        with w.when(w.bounds((self.tile - last,), (1,))):
            # tiles of 8 columns that are whole stay as they are
            whole = rest // MMA_N if self.plan.sets == 1 else 0
            shape = (self.shape[0], self.shape[1] - whole, 2, 2)
            with w.loops("s", shape, unroll=1) as (i, j, half, pair):
                at = (i, w.simple(j + whole), half, pair)
                inside = w.condition(((self._column(at), 0, rest),))
                outside = w.b.const(-inf, "f32")
                value = w.b.value("scalar.select", inside, self._element(scores, at), outside)
                self._put(value, scores, at)

    def _element(self, scores: Value, at: tuple[Expr, ...]) -> Value:
        return self.w.b.value("thread.get_fragment", scores, item=at[:2], at=at[2:])

    def _put(self, value: Value, scores: Value, at: tuple[Expr, ...]) -> None:
        b = self.w.b
        if value.type.dtype != "f32":
            value = b.value("scalar.cast", value, dtype="f32")
        b.do("thread.set_fragment", value, scores, item=at[:2], at=at[2:])

    def _extents(self, read: Read) -> tuple[int, ...]:
        """The number of the thread's elements that read different values, per dimension of `shape`."""
        return elements_read(read, self.view, self.plan)

    def _column(self, at: tuple[Expr, ...]) -> Expr:
        """The element's column in the tile."""
        lane = Sym("tid") % 4 * 2
        column = at[1] * MMA_N + lane + at[3]
        return self.w.simple(self.first_key + column)

    def _place(self, at: tuple[Expr, ...], read: Term | None = None) -> tuple[dict[str, Expr], Mask]:
        """The symbols of the terms at an element, and where parameters exist (for `read`: it alone)."""
        w, view = self.w, self.view
        lane = Sym("tid") % WARP // 4
        inside = at[0] * MMA_M + at[2] * (MMA_M // 2) + lane
        row = w.simple(self.first + inside)
        key = w.simple(self.tile * self.plan.keys + self._column(at))
        env: dict[str, Expr] = {**self.batch, KEY: key}
        env.update(zip(view.rows, w.unravel(row, [view.sizes[d] for d in view.rows]), strict=True))
        mask: Mask = ()
        names = names_in(read if read is not None else self.term)
        if names & set(view.rows) and view.size(view.rows) % self.plan.rows:
            mask += w.below(row, view.size(view.rows))
        if KEY in names and view.keys % self.plan.keys:
            mask += w.below(key, view.keys)
        return env, mask
