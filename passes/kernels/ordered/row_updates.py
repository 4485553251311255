"""Kernels that change the rows of tables which updates name, where the tables lie, and touch no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from tilewright.ir import AttrRecord, Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.tensor.indexed_ops import RowGroups, row_groups
from tilewright.ir.tensor.ops import dims, reads
from tilewright.ir.thread.launch_ops import IN_PLACE
from tilewright.ir.types import ScalarType
from tilewright.passes.analysis.index_sets import row_major_offset
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Writer, anchor_of

#: updates of a chain that are looked at between two tests whether it goes on at all
STEPS_TOGETHER = 32
_NARROW = 1 << 31


@dataclass(frozen=True)
class RowUpdateParameters(AttrRecord):
    """Threads per block; each has one element of one update's row."""

    threads: int


def lower_row_updates(kernel: Func) -> Func:
    """The thread-level function of updates of rows: the thread of a chain's first update takes all of it.

    rewrite:  tensor.update_rows(%t, %u, %rows, %earlier, %next)
        -->   where earlier[u] is 0 and rows[u] exists: old = t[rows[u], c]; total of u[u, c] and those behind
              it in the chain; t[rows[u], c] = body(old, total)

    Old elements are read through the result, which is the table's own memory. Blocks along y take a group
    each.
    """
    op = anchor_of(kernel, "tensor.update_rows")
    parts = row_groups(op)
    assert parts is not None
    returned = kernel.body.ops[-1].operands
    pairs = tuple(
        (kernel.params.index(table), len(kernel.params) + returned.index(new))
        for table, new in zip(op.operands, op.results, strict=False)
    )
    func = _lowered(kernel, op, len(parts.tables), lambda w, k, at: _Rows(w, op, parts, k, at).take())
    return func.with_attrs(**{IN_PLACE: pairs})


def lower_joined_updates(kernel: Func) -> Func:
    """The thread-level function of totals of chains; see `lower_row_updates`."""
    op = anchor_of(kernel, "tensor.join_updates")
    return _lowered(kernel, op, len(op.results), lambda w, k, at: _join(w, op, k, at))


def _lowered(
    kernel: Func, op: Op, groups: int, take: Callable[[Writer, int, Mapping[str, Expr]], None]
) -> Func:
    """A thread for every element of every update of a group, and a block along y for each group."""
    par = dims(op, "par")
    threads, points = parameters_of(kernel, RowUpdateParameters).threads, prod(par.values())
    w = Writer(kernel, threads, (max(1, -(-points // threads)), groups, 1))
    linear = w.simple(Sym("bid.x") * threads + Sym("tid"))
    at = dict(zip(par, w.unravel(linear, tuple(par.values())), strict=True))
    for group in range(groups):
        here = ((Sym("bid.y"), group, group + 1),) if groups > 1 else ()
        with w.b.at(op.loc), w.when((*here, *w.below(linear, points))):
            take(w, group, at)
    return w.finish()


def _join(w: Writer, op: Op, group: int, at: Mapping[str, Expr]) -> None:
    """Store the total of the chain that begins at an update, or the start where none does."""
    *updates, flags, places = op.operands
    dtype = op.results[group].tensor.dtype
    chain = _Chain(w, op, updates[group], places, group, at, dtype)
    total = w.alloc((1,), dtype, "reg", "joined")
    w.store(w.b.const(op["start"], dtype), total, (0,))  # type: ignore[arg-type]
    begins = w.b.value("scalar.eq", chain.link(flags), w.b.const(0, "i32"))
    with w.when((), begins):
        w.store(chain.total(), total, (0,))
    w.store(w.load(total, (0,)), w.outputs[op.results[group]], tuple(at.values()))


class _Chain:
    """The chain of one element of one update of a group."""

    def __init__(
        self, w: Writer, op: Op, updates: Value, places: Value, group: int, at: Mapping[str, Expr], kind: str
    ) -> None:
        self.w, self.op, self.at, self.group = w, op, at, group
        self.updates, self.places, self.kind = updates, places, kind
        (walked, self.count), *self.inner = dims(op, "par").items()
        self.here = at[walked]
        self.dtype = "i64" if updates.tensor.size >= _NARROW else "i32"

    def link(self, links: Value) -> Value:
        """The row, the flag or the next place of this update."""
        return Points(self.w).value(links, (self.group, self.here))

    def total(self) -> Value:
        """All updates of the chain, joined in order."""
        w = self.w
        total = w.alloc((1,), self.kind, "reg", "total")
        start = w.b.const(self.op["start"], self.kind)  # type: ignore[arg-type]
        w.store(w.b.value(self._combiner, start, self.update()), total, (0,))
        with self.rest() as update:
            w.store(w.b.value(self._combiner, w.load(total, (0,)), update), total, (0,))
        return w.load(total, (0,))

    def update(self) -> Value:
        """The first update of the chain."""
        return self.w.b.cast(Points(self.w).value(self.updates, tuple(self.at.values())), self.kind)

    @property
    def _combiner(self) -> str:
        return f"scalar.{self.op['combine']}"

    @contextmanager
    def rest(self) -> Iterator[Value]:
        """The updates behind the first one of a chain: the ops for each are built once, inside of loops.

        Few rows are named twice, so a test stands around all steps, and around every few of them.
        """
        w = self.w
        place = w.alloc((1,), "i32", "reg", "place")
        w.store(self._rising(self.link(self.places), w.b.index(w.simple(self.here))), place, (0,))
        steps = min(STEPS_TOGETHER, self.count)
        with (
            w.when((), self._goes_on(place)),
            w.loop("group", -(-self.count // steps)),
            w.when((), self._goes_on(place)),
            w.loop("step", steps),
            w.when((), self._goes_on(place)),
        ):
            here = w.load(place, (0,))
            yield w.b.cast(w.b.value("thread.gather", *self._placed_update(here)), self.kind)
            following = w.b.value("thread.gather", *self._placed_link(here))
            w.store(self._rising(following, here), place, (0,))

    def _goes_on(self, place: Value) -> Value:
        b = self.w.b
        return b.value("scalar.lt", self.w.load(place, (0,)), b.const(self.count, "i32"))

    def _rising(self, following: Value, here: Value) -> Value:
        """The next place, or one behind all where it does not rise."""
        b = self.w.b
        rises = b.value("scalar.gt", following, here)
        return b.value("scalar.select", rises, following, b.const(self.count, "i32"))

    def _placed_update(self, place: Value) -> tuple[Value, Value]:
        """The array of the updates, and the offset of this element of the one at a place."""
        v = self.updates
        first, *steps = v.tensor.strides
        inner = sum((self.at[d] * n for (d, _), n in zip(self.inner, steps, strict=True)), v.tensor.start)
        return self.w.inputs[v], self.far(place, first, inner)

    def _placed_link(self, place: Value) -> tuple[Value, Value]:
        """The array of next places, and the offset of that of the update at a place."""
        line, step = self.places.tensor.strides
        start = self.places.tensor.start + self.group * line
        return self.w.inputs[self.places], self.far(place, step, start)

    def far(self, place: Value, step: int, base: Expr) -> Value:
        """The offset `place * step + base`."""
        b = self.w.b
        scaled = b.value("scalar.mul", b.cast(place, self.dtype), b.const(step, self.dtype))
        return b.value("scalar.add", scaled, b.index(self.w.simple(base), self.dtype))


class _Rows(_Chain):
    """What the thread of one element of one update does to the tables of its group."""

    def __init__(self, w: Writer, op: Op, parts: RowGroups, group: int, at: Mapping[str, Expr]) -> None:
        assert op.body is not None
        self.tables, self.parts = parts.tables[group], parts
        kind = op.body.params[len(self.tables)].type
        assert isinstance(kind, ScalarType)
        super().__init__(w, op, parts.updates[group], parts.links[2], group, at, kind.dtype)
        first = group * len(self.tables)
        self.targets = [w.outputs[r] for r in op.results[first : first + len(self.tables)]]
        if self.tables[0].tensor.size >= _NARROW:
            self.dtype = "i64"

    def take(self) -> None:
        """Write the new elements where the update begins a chain of a row that exists."""
        w, b = self.w, self.w.b
        row, earlier, _ = self.parts.links
        named, rows = self.link(row), self.tables[0].tensor.shape[0]
        inside = b.value("scalar.ge", named, b.const(0, "i32"))
        inside = b.value("scalar.and", inside, b.value("scalar.lt", named, b.const(rows, "i32")))
        begins = b.value("scalar.eq", self.link(earlier), b.const(0, "i32"))
        with w.when((), b.value("scalar.and", begins, inside)):
            inner = row_major_offset([self.at[d] for d, _ in self.inner], [n for _, n in self.inner])
            offset = self.far(named, prod(n for _, n in self.inner), inner)
            old = [w.b.value("thread.gather", t, offset) for t in self.targets]
            points = Points(w)
            others = [
                points.value(v, tuple(w.simple(substitute(e, self.at)) for e in at))
                for v, at in zip(self.parts.others, reads(self.op), strict=True)
            ]
            if self.op["combine"]:
                new = w.inline(self.op, [*old, self.total(), *others], self.at)
            else:
                new = self._one_by_one(old, others)
            for value, target in zip(new, self.targets, strict=True):
                w.b.do("thread.scatter", value, target, offset)

    def _one_by_one(self, old: list[Value], others: list[Value]) -> tuple[Value, ...]:
        """The body of each update of the chain in turn."""
        w = self.w
        kept = [w.alloc((1,), v.type.dtype, "reg", "held") for v in old]

        def change(before: list[Value], update: Value) -> None:
            after = w.inline(self.op, [*before, update, *others], self.at)
            for value, register in zip(after, kept, strict=True):
                w.store(value, register, (0,))

        change(old, self.update())
        with self.rest() as update:
            change([w.load(register, (0,)) for register in kept], update)
        return tuple(w.load(register, (0,)) for register in kept)
