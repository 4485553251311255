"""The weights of pairs: computed from products at the elements of fragments, by row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.passes.analysis.terms import Read, Term, names_in, peeled
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.pair_sums.parameters import PairParameters
from tilewright.passes.kernels.pair_sums.view import PairView
from tilewright.passes.kernels.writing.common_reads import distinct, first_of, in_words, place
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: elements of one parameter that a thread reads before it needs them, at most
MOST_AHEAD = 16
#: words that hold a bit for several pairs and that a thread reads before it needs them, at most
MOST_WORDS = 32

_At = tuple[Expr, ...]


def pair_elements(read: Read, view: PairView, plan: PairParameters) -> tuple[int, ...]:
    """How many different elements a thread reads for a tile, per dimension of its fragment."""
    shape = (plan.row_tiles, plan.tile // MMA_N, 2, 2)
    return distinct(read.at, shape, view.rows, view.other, view.sizes, (plan.tile,))


class WeightMaps:
    """Weights of a warp's rows, from products in fragments; first: the warp's first row."""

    def __init__(
        self, w: Writer, view: PairView, plan: PairParameters, first: Expr, batch: Mapping[str, Expr]
    ) -> None:
        self.w, self.view, self.plan = w, view, plan
        self.first, self.batch = first, dict(batch)
        self.shape = (plan.row_tiles, plan.tile // MMA_N, 2, 2)
        self.words: dict[Read, Value] = {}
        self.rows: dict[Read, Value] = {}
        self.ahead: dict[Read, Value] = {}

    def read_rows(self) -> None:
        """Read what depends on rows alone to registers, once."""
        for read in self.view.reads:
            if not names_in(read) & set(self.view.other):
                self.rows[read] = self._read(read, 0)

    def read_others(self, tile: Expr) -> None:
        """Read what depends on others alone to registers, before the products that hide the wait."""
        self.ahead = {}
        for read in self.view.reads:
            names = names_in(read)
            few = self.shape[1] * self.shape[3] <= MOST_AHEAD
            if names & set(self.view.other) and not names & set(self.view.rows) and few:
                self.ahead[read] = self._read(read, tile)

    def read_words(self, tile: Expr, there: Mask) -> None:
        """Read what several pairs of a thread have in common, as words of bits, of a tile that is there."""
        view = self.view
        self.words = {
            read: self._read(read, tile, there)
            for read in view.reads
            if all(names_in(read) & set(side) for side in (view.rows, view.other))
            and in_words(read.at, (view.rows, view.other), view.sizes)
            and prod(self._extents(read)) <= MOST_WORDS
        }

    def read_next_words(self, tile: Expr, there: Mask) -> None:
        """Read the words of another tile in place of those that have been used, where it is one."""
        for read, registers in self.words.items():
            self._fill(read, registers, tile, there)

    def _read(self, read: Read, tile: Expr, there: Mask = ()) -> Value:
        registers = self.w.alloc(self._extents(read), read.value.tensor.dtype, "reg", "read")
        self._fill(read, registers, tile, there)
        return registers

    def _fill(self, read: Read, registers: Value, tile: Expr, there: Mask) -> None:
        w, extents = self.w, registers.tensor.shape
        with w.loops("i", extents, unroll=1) as at:
            env, mask = self._place(first_of(at, extents, self.shape), tile, names_in(read))
            w.store(TermWriter(w, env, mask=(*there, *mask)).value(read), registers, at)

    def apply(self, pairs: Sequence[Value], tile: Expr) -> None:
        """Replace products by the weights of sums: those of sum number i take the place of product i."""
        terms = [peeled(s.weight) for s in self.view.sums]  # rounded as they become factors
        leaves_of: dict[Term, Value] = {}
        leaves_of.update(zip((p.leaf for p in self.view.products), pairs, strict=True))
        self.write(terms, leaves_of, pairs, tile)

    def write(
        self,
        terms: Sequence[Term],
        known: Mapping[Term, Value],
        targets: Sequence[Value],
        tile: Expr,
        numbers: Mapping[Read, Value] | None = None,
    ) -> None:
        """Write terms at all elements to the fragments `targets`; known: terms whose fragments are there.

        numbers: registers with numbers of others, beside those that were read ahead.
        """
        w = self.w
        names = set().union(*map(names_in, terms))
        with w.loops("s", self.shape, unroll=1) as at:
            env, mask = self._place(at, tile, names)
            values: dict[Term, Value] = {
                t: w.b.value("thread.get_fragment", v, item=at[:2], at=at[2:]) for t, v in known.items()
            }
            for read, registers in {**self.rows, **self.ahead, **self.words, **(numbers or {})}.items():
                where = place(at, registers.tensor.shape, self.shape)
                values[read] = w.load(registers, tuple(map(w.simple, where)))
            writer = TermWriter(w, env, values, mask)
            # The last tile alone may have more others than there are; the writer knows no limit of `tile`.
            cut = self.view.others % self.plan.tile
            inside = w.below(self._other(at, tile), self.view.others) if cut else ()
            for value, target in zip([writer.value(t) for t in terms], targets, strict=False):
                if value.type.dtype != "f32":
                    value = w.b.value("scalar.cast", value, dtype="f32")
                if inside:  # a weight of what is not there may be infinite, and its factor is 0
                    value = w.b.value("scalar.select", w.condition(inside), value, w.b.const(0.0, "f32"))
                w.b.do("thread.set_fragment", value, target, item=at[:2], at=at[2:])

    def _extents(self, read: Read) -> tuple[int, ...]:
        """The number of the thread's elements that read different values, per dimension of `shape`."""
        return pair_elements(read, self.view, self.plan)

    def _other(self, at: _At, tile: Expr) -> Expr:
        """The number of the other of an element."""
        column = at[1] * MMA_N + Sym("tid") % 4 * 2 + at[3]
        return self.w.simple(tile * self.plan.tile + column)

    def _place(self, at: _At, tile: Expr, names: set[str]) -> tuple[dict[str, Expr], Mask]:
        """The symbols of terms at an element, and where parameters with these dimensions exist."""
        w, view = self.w, self.view
        inside = at[0] * MMA_M + at[2] * (MMA_M // 2) + Sym("tid") % WARP // 4
        row = w.simple(self.first + inside)
        other = self._other(at, tile)
        env: dict[str, Expr] = dict(self.batch)
        mask: Mask = ()
        sides = (
            (view.rows, row, view.own, self.plan.rows),
            (view.other, other, view.others, self.plan.tile),
        )
        for dims, where, count, each in sides:
            env.update(zip(dims, w.unravel(where, [view.sizes[d] for d in dims]), strict=True))
            if names & set(dims) and count % each:
                mask += w.below(where, count)
        return env, mask
