"""Kernels that change the rows of tables which updates name, where the tables lie, and touch no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    par, parts = dims(op, "par"), row_groups(op)
    assert parts is not None
    threads, points = parameters_of(kernel, RowUpdateParameters).threads, prod(par.values())
    w = Writer(kernel, threads, (max(1, -(-points // threads)), len(parts.tables), 1))
    linear = w.simple(Sym("bid.x") * threads + Sym("tid"))
    at = dict(zip(par, w.unravel(linear, tuple(par.values())), strict=True))
    for group in range(len(parts.tables)):
        here = ((Sym("bid.y"), group, group + 1),) if len(parts.tables) > 1 else ()
        with w.b.at(op.loc), w.when((*here, *w.below(linear, points))):
            _Chain(w, op, parts, group, at).take()
    returned = kernel.body.ops[-1].operands
    pairs = tuple(
        (kernel.params.index(table), len(kernel.params) + returned.index(new))
        for table, new in zip(op.operands, op.results, strict=False)
    )
    return w.finish().with_attrs(**{IN_PLACE: pairs})


class _Chain:
    """What the thread of one element of one update of a group does."""

    def __init__(self, w: Writer, op: Op, parts: RowGroups, group: int, at: Mapping[str, Expr]) -> None:
        assert op.body is not None
        self.w, self.op, self.at, self.group = w, op, at, group
        self.tables, self.updates = parts.tables[group], parts.updates[group]
        self.links, self.others = parts.links, parts.others
        (walked, self.count), *self.inner = dims(op, "par").items()
        self.here = at[walked]
        first = group * len(self.tables)
        self.targets = [w.outputs[r] for r in op.results[first : first + len(self.tables)]]
        kind = op.body.params[len(self.tables)].type
        assert isinstance(kind, ScalarType)
        self.kind = kind.dtype
        size = max(v.tensor.size for v in (*self.tables, self.updates))
        self.dtype = "i64" if size >= _NARROW else "i32"

    def take(self) -> None:
        """Write the new elements where the update begins a chain of a row that exists."""
        w, b = self.w, self.w.b
        row = self._link(0)
        rows = self.tables[0].tensor.shape[0]
        inside = b.value("scalar.ge", row, b.const(0, "i32"))
        inside = b.value("scalar.and", inside, b.value("scalar.lt", row, b.const(rows, "i32")))
        begins = b.value("scalar.eq", self._link(1), b.const(0, "i32"))
        with w.when((), b.value("scalar.and", begins, inside)):
            offset = self._offset(row)
            old = [w.b.value("thread.gather", t, offset) for t in self.targets]
            points = Points(w)
            others = [
                points.value(v, tuple(w.simple(substitute(e, self.at)) for e in at))
                for v, at in zip(self.others, reads(self.op), strict=True)
            ]
            new = self._joined(old, others) if self.op["combine"] else self._one_by_one(old, others)
            for value, target in zip(new, self.targets, strict=True):
                w.b.do("thread.scatter", value, target, offset)

    def _link(self, number: int) -> Value:
        """The row, the flag or the next place of this update."""
        return Points(self.w).value(self.links[number], (self.group, self.here))

    def _offset(self, row: Value) -> Value:
        """The place of this element of a row in its table."""
        inner = row_major_offset([self.at[d] for d, _ in self.inner], [n for _, n in self.inner])
        return self._far(row, prod(n for _, n in self.inner), inner)

    def _joined(self, old: list[Value], others: list[Value]) -> tuple[Value, ...]:
        """The body of the total of all updates of the chain."""
        w = self.w
        total = w.alloc((1,), self.kind, "reg", "total")
        first = w.b.value(self._combiner, w.b.const(self.op["start"], self.kind), self._update())  # type: ignore[arg-type]
        w.store(first, total, (0,))
        with self._rest() as update:
            w.store(w.b.value(self._combiner, w.load(total, (0,)), update), total, (0,))
        return w.inline(self.op, [*old, w.load(total, (0,)), *others], self.at)

    def _one_by_one(self, old: list[Value], others: list[Value]) -> tuple[Value, ...]:
        """The body of each update of the chain in turn."""
        w = self.w
        kept = [w.alloc((1,), v.type.dtype, "reg", "held") for v in old]

        def change(before: list[Value], update: Value) -> None:
            after = w.inline(self.op, [*before, update, *others], self.at)
            for value, register in zip(after, kept, strict=True):
                w.store(value, register, (0,))

        change(old, self._update())
        with self._rest() as update:
            change([w.load(register, (0,)) for register in kept], update)
        return tuple(w.load(register, (0,)) for register in kept)

    def _update(self) -> Value:
        index = tuple(self.at[d] for d in dims(self.op, "par"))
        return self.w.b.cast(Points(self.w).value(self.updates, index), self.kind)

    @property
    def _combiner(self) -> str:
        return f"scalar.{self.op['combine']}"

    @contextmanager
    def _rest(self) -> Iterator[Value]:
        """The updates behind the first one of a chain: the ops for each are built once, inside of loops.

        Few rows are named twice, so a test stands around all steps, and around every few of them.
        """
        w = self.w
        place = w.alloc((1,), "i32", "reg", "place")
        w.store(self._rising(self._link(2), w.b.index(w.simple(self.here))), place, (0,))
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
        return self.w.inputs[v], self._far(place, first, inner)

    def _placed_link(self, place: Value) -> tuple[Value, Value]:
        """The array of next places, and the offset of that of the update at a place."""
        v = self.links[2]
        line, step = v.tensor.strides
        return self.w.inputs[v], self._far(place, step, v.tensor.start + self.group * line)

    def _far(self, place: Value, step: int, base: Expr) -> Value:
        b = self.w.b
        scaled = b.value("scalar.mul", b.cast(place, self.dtype), b.const(step, self.dtype))
        return b.value("scalar.add", scaled, b.index(self.w.simple(base), self.dtype))
