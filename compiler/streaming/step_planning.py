"""The cut of a network into steps: two slots, the arena and the values between steps fit the cap.

Ops whose weights are too large for one step are split first, by rows of their tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import Op, Value, WorkError
from tilewright.ir.builder import Builder
from tilewright.ir.types import TensorType
from tilewright.streaming.memory_size import shown_bytes
from tilewright.streaming.parts.line import Line, RowsOf
from tilewright.streaming.parts.step_modules import ValueWindow, steps_of, window_of
from tilewright.streaming.step_plans import StepCompiler
from tilewright.streaming.store_file import PlannedSteps


def split_large(line: Line, weight_limit: int) -> Line:
    """The line with every op split whose weights exceed the limit, where that is possible.

    rewrite:  graph.dense(x, w)  -->  graph.concatenate(graph.dense(x, rows of w), graph.dense(x, others))
    rewrite:  graph.take(w, i)   -->  graph.where(i >= n, graph.take(rows of w from n on, i - n),
                                      graph.take(rows of w before n, i))
    """
    large = [i for i, needed in enumerate(line.constant_bytes) if sum(needed.values()) > weight_limit]
    splitter = _Splitter(line, weight_limit)
    changed = {i: ops for i in large if (ops := splitter.split(line.ops[i]))}
    if not changed:
        return line
    ops = [new for i, op in enumerate(line.ops) for new in changed.get(i, [op])]
    constants = line.module.constants.updated(splitter.numbers)
    return replace(
        line,
        module=line.module.with_constants(constants),
        ops=tuple(ops),
        fixed={**line.fixed, **splitter.fixed},
        rows={**line.rows, **splitter.rows},
    )


@dataclass(frozen=True)
class _Table:
    """A constant that an op reads row by row, and the begins and ends of its pieces."""

    name: str
    pieces: tuple[tuple[int, int], ...]


class _Splitter:
    def __init__(self, line: Line, limit: int) -> None:
        self._line, self._limit = line, limit
        self.fixed: dict[Value, Op] = {}
        self.rows: dict[str, RowsOf] = {}
        self.numbers: dict[str, np.ndarray] = {}

    def split(self, op: Op) -> list[Op] | None:
        """Ops that compute the same results; None where this op cannot be split."""
        builder = Builder(op.loc)
        if op.name == "graph.dense":
            table = self._table(op.operands[1])
            if table is None:
                return None
            pieces = [builder.emit("graph.dense", (op.operands[0], rows), dict(op.attrs))[0]
                      for rows in self._rows(table)]  # fmt: skip
            builder.emit("graph.concatenate", pieces, {"axis": op.result.tensor.rank - 1})
        elif op.name == "graph.take" and op.get("axis") == 0 and op.get("batch_dims") == 0:
            table = self._table(op.operands[0])
            if table is None or op.get("mode") == "wrap":
                return None
            self._take(builder, op, table)
        else:
            return None
        *before, last = builder.ops
        return [*before, replace(last, results=op.results)]

    def _table(self, value: Value) -> _Table | None:
        """The constant that is to be split; None where it is computed, or even one row is too large."""
        op = self._line.fixed.get(value)
        if op is None or op.name != "graph.constant" or value.tensor.rank < 1:
            return None
        count = value.tensor.shape[0]
        most = self._limit // max(1, value.tensor.nbytes // count)
        if most < 1:
            return None
        # Even pieces: equal steps share a plan.
        number = -(-count // most)
        bounds = [count * i // number for i in range(number + 1)]
        return _Table(str(op["name"]), tuple(itertools.pairwise(bounds)))

    def _rows(self, table: _Table) -> Iterator[Value]:
        kind = next(v.tensor for v, op in self._line.fixed.items() if op.get("name") == table.name)
        for begin, end in table.pieces:
            name = f"{table.name}.rows_{begin}_{end}"
            self.rows[name] = RowsOf(table.name, begin, end)
            yield self._constant(name, TensorType(kind.dtype, (end - begin, *kind.shape[1:])))

    def _constant(self, name: str, kind: TensorType) -> Value:
        value = Value(kind, name)
        self.fixed[value] = Op("graph.constant", (), (("name", name),), (value,))
        return value

    def _number(self, value: int, like: Value) -> Value:
        name = f"row_{value}"
        kind = like.tensor.dtype
        self.numbers[name] = np.asarray(value, np.dtype({"i32": np.int32, "i64": np.int64}[kind]))
        return self._constant(name, TensorType(kind, ()))

    def _take(self, builder: Builder, op: Op, table: _Table) -> None:
        """Look up in piece after piece; each takes over the rows from its first on."""
        places, attrs = op.operands[1], dict(op.attrs)
        shape = (*places.tensor.shape, *(1,) * (op.operands[0].tensor.rank - 1))
        first, *others = self._rows(table)
        (found,) = builder.emit("graph.take", (first, places), attrs)
        for rows, (begin, _) in zip(others, table.pieces[1:], strict=True):
            number = self._number(begin, places)
            (inside,) = builder.emit("graph.subtract", (places, number))
            (own,) = builder.emit("graph.take", (rows, inside), attrs)
            (reached,) = builder.emit("graph.greater_equal", (places, number))
            (wide,) = builder.emit("graph.reshape", (reached,), {"newshape": shape})
            (found,) = builder.emit("graph.where", (wide, own, found))


def choose_cuts(line: Line, weight_limit: float) -> list[tuple[int, int]] | None:
    """Steps as ranges of ops whose constants take at most `weight_limit` bytes each; None where no cuts do.

    Exact dynamic programming over all cuts. What counts first are the steps and the bytes of values that
    cross cuts, a step as much as the median of all cuts: a few more steps are better than cuts inside blocks.
    Of equal ones the most even steps (least sum of squared weights) are taken, which tend to be equal and to
    share a plan.
    """
    count = len(line.ops)
    crossing = line.cut_bytes
    step_cost = int(np.median(crossing[1:count])) if count > 1 else 1
    # best[i]: (cost of steps and cuts, squared weights) of the best way to cut the first i ops
    best = np.full((count + 1, 2), np.inf)
    best[0] = 0
    before = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        weights = _weights_back(line, end, weight_limit)
        if not weights.size:
            continue
        begins = end - 1 - np.arange(weights.size)
        ways = best[begins] + np.stack(
            [step_cost + np.where(begins > 0, crossing[begins], 0), weights**2], axis=1
        )
        winner = np.lexsort(ways.T[::-1])[0]
        best[end], before[end] = ways[winner], begins[winner]
    if not np.isfinite(best[count, 0]):
        return None
    steps: list[tuple[int, int]] = []
    end = count
    while end:
        steps.append((int(before[end]), end))
        end = int(before[end])
    return steps[::-1]


def _weights_back(line: Line, end: int, limit: float) -> np.ndarray:
    """Bytes of the constants of the last 1, 2, ... ops before `end`, as long as they are within the limit."""
    seen: set[str] = set()
    total, out = 0, []
    for place in range(end - 1, -1, -1):
        for name, nbytes in line.constant_bytes[place].items():
            if name not in seen:
                seen.add(name)
                total += nbytes
        if total > limit:
            break
        out.append(total)
    return np.array(out, np.float64)


#: cuts that are compiled before giving up
ATTEMPTS = 6
#: how much less weights per step where a smaller limit is to give other cuts
FINER = 0.85
#: steps from which filling the pipeline (reading one step) hardly counts; bytes that are worth a step
STEPS, WORTHWHILE_BYTES = 12, 32 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """Device memory in bytes: slots for constants, the arena that steps share, one window of values."""

    slots: int
    slot_bytes: int
    arena_bytes: int
    window_bytes: int

    @property
    def device_bytes(self) -> int:
        """All of it, with one window."""
        return self.slots * self.slot_bytes + self.arena_bytes + self.window_bytes


def memory_of(planned: PlannedSteps, window: ValueWindow) -> MemoryPlan:
    """Return the memory of planned steps; one step alone needs no second slot."""
    return MemoryPlan(
        slots=min(2, len(planned.steps)),
        slot_bytes=max(4096, *(p.stored.nbytes for p in planned.plans), 0),
        arena_bytes=max(p.plan.arena_bytes for p in planned.plans),
        window_bytes=window.nbytes,
    )


def plan_steps(line: Line, cap_bytes: int, compiler: StepCompiler) -> tuple[PlannedSteps, ValueWindow]:
    """Few steps under the cap: estimated on the graph, compiled, and cut finer where that was too little.

    Raises WorkError naming the least cap that was found to do where this one does not.
    """
    working, inflation, share = float(line.working_bytes), 1.0, 1.0
    tried: dict[tuple[int, tuple[tuple[int, int], ...]], MemoryPlan] = {}
    while len(tried) < ATTEMPTS:
        room = share * (cap_bytes - working) / inflation
        cut_line, cuts, finest = _cut(line, room)
        key = (len(cut_line.ops), cuts)
        if key in tried:
            if finest:
                break
            share *= FINER
            continue
        steps = steps_of(cut_line, cuts)
        plans, plan_of = compiler.plans(steps)
        planned, window = PlannedSteps(steps, plans, plan_of), window_of(steps)
        memory = memory_of(planned, window)
        if memory.device_bytes <= cap_bytes:
            return planned, window
        tried[key] = memory
        # What was estimated is known now: what values take, and weights with what aligns them.
        working = memory.arena_bytes + memory.window_bytes
        inflation = max(1.0, memory.slot_bytes / max(1, *(s.constant_bytes for s in steps)))
    found = min(tried.values(), key=lambda m: m.device_bytes)
    raise WorkError(
        f"@{line.module.name} does not fit under a memory cap of {shown_bytes(cap_bytes)}: the least that "
        f"would do is {shown_bytes(found.device_bytes)} ({found.slots} slots of "
        f"{shown_bytes(found.slot_bytes)} for weights, {shown_bytes(found.arena_bytes)} for kernels, "
        f"{shown_bytes(found.window_bytes)} for values between steps)"
    )


def _cut(line: Line, room: float) -> tuple[Line, tuple[tuple[int, int], ...], bool]:
    """Cuts for so much memory for weights: one step, or two slots. Also: whether finer ones cannot be.

    Ops too large for a slot are split where that is possible; else their weights are the limit.
    """
    cut_line = split_large(line, int(room // 2)) if room >= 2 else line
    least = max(sum(needed.values()) for needed in cut_line.constant_bytes)
    total = sum({k: n for needed in cut_line.constant_bytes for k, n in needed.items()}.values())
    limit = weight_limit(total, least, room)
    cuts = choose_cuts(cut_line, limit)
    assert cuts is not None  # every op alone is within the limit
    return cut_line, tuple(cuts), limit == least


def weight_limit(total: int, least: int, room: float) -> float:
    """Bytes of weights for one step, of `total` in all where no step can have fewer than `least`.

    All of them where they fit into the room. Else half of it, or less where steps would be few: before the
    first step computes, its weights are read with nothing to hide that behind.
    """
    if total <= room:
        return total
    return max(min(room / 2, max(total / STEPS, WORTHWHILE_BYTES)), least)
