"""Rebuilds a step with state on pieces: state and inputs are held in pieces, sums wait until they are read.

Beside whole values and cut ones there are summands: every member has one, and they add up to the value. A sum
is joined by one all_reduce where it is read whole, by one reduce_scatter where it is read in pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.division import SlicedOp
from tilewright.ir.facts import Elements
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr, Block, Func, Module, Op, Value
from tilewright.ir.opdef import facts_of, op_def
from tilewright.ir.types import FLOATS, TensorType, storage_dtype
from tilewright.passes.graph.distribute.sharding.program import Choice, LabelCut, ShardedProgram
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.rewriting.dead_ops import live_ops

#: the module attribute that names state whose terms may be kept apart, one on each rank
SUMMED_STATE = "summed_state"
#: what ops do that keep values apart which are cut only to be stored in parts
_APART = frozenset({Elements.MAPS, Elements.REDUCES})


@dataclass(frozen=True, slots=True)
class Holding:
    """How parameters of @main are held: cuts by name; `stored` ones are cut to save memory, not work.

    sums: names of those of which every member holds a summand.
    """

    cuts: Mapping[str, Shard]
    stored: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()


class StepProgram(ShardedProgram):
    """One member's version of a step; after `run`, `main` gives its function.

    holding: what members hold of parameters of @main, which they are never given whole then.
    gathered_params: names of those that were gathered, as an op needs them whole.
    summed_params: names of those that were added up, as what is added to them is no summand.
    becoming: by name of state, the cut that its new value has by itself.
    """

    def __init__(
        self,
        module: Module,
        members: Sequence[int],
        member: int,
        pool: ConstantPool,
        *,
        holding: Holding,
        choose: Choice | None = None,
        adds_up: bool = False,
    ) -> None:
        super().__init__(module, members, member, pool, choose=choose)
        self.adds_up = adds_up
        self.holding = holding
        self.summands: dict[Value, Value] = {}
        self.made: dict[Value, Value] = {}  # whole values that other ops make than the op that did
        self.stored: set[Value] = set()
        self.uses = Counter(v for op in self.func.body.ops for v in op.operands)
        self.gathered_params: set[str] = set()
        self.summed_params: set[str] = set()
        self.becoming: dict[str, Shard | None] = {}
        self.destined = _destined(self.func, holding)
        self.params: list[Value] = []
        for p in self.func.params:
            shard = holding.cuts.get(p.hint)
            if shard is None:
                self.params.append(p)
                if p.hint in holding.sums:
                    self.summands[p] = p
                continue
            t = TensorType(p.tensor.dtype, shard.held(p.tensor.shape, member))
            self.params.append(Value(t, p.hint))
            self.cuts[p], self.pieces[p, shard] = shard, self.params[-1]
            if p.hint in holding.stored:
                self.stored.add(p)

    # -- values ----------------------------------------------------------------------------------------------
    def whole(self, value: Value) -> Value:
        if value in self.made:
            return self.made[value]
        if value in self.summands:
            if value not in self.whole_values:
                if value in self.func.params:
                    self.summed_params.add(value.hint)
                attrs: dict[str, Attr] = {"reduction": "sum", **self.group}
                self.whole_values[value] = self.b.emit("graph.all_reduce", [self.summands[value]], attrs)[0]
            return self.whole_values[value]
        if value in self.cuts and value not in self.whole_values and value in self.func.params:
            self.gathered_params.add(value.hint)
        return super().whole(value)

    def piece(self, value: Value, shard: Shard) -> Value:
        key = value, shard
        summand = self.summands.get(value)
        scatters = shard.outer == 1 and key not in self.pieces and value not in self.whole_values
        if summand is not None and scatters:
            attrs: dict[str, Attr] = {"axis": shard.axis, "extents": shard.extents, **self.group}
            (self.pieces[key],) = self.b.emit("graph.reduce_scatter", [summand], attrs)
        return super().piece(value, shard)

    def sliced(self, value: Value, shard: Shard, producer: Op | None) -> Value:
        """Rows of random bits, and of what is computed of them alone, are made without the others."""
        if producer is not None and shard.outer == 1 and self.makes_rows(producer, shard):
            rows = self.rows_rule(producer, shard)
            if rows is not None:
                attrs = dict(producer.attrs) | dict(rows.attrs)
                return self.b.emit(producer.name, [self.whole(v) for v in producer.operands], attrs)[0]
            operands = [self.piece(v, shard) if v.tensor.rank else self.whole(v) for v in producer.operands]
            return self.b.emit(producer.name, operands, dict(producer.attrs))[0]
        return super().sliced(value, shard, producer)

    def makes_rows(self, op: Op, shard: Shard) -> bool:
        """Return whether an op makes rows of its result from whole operands, or maps only such results."""
        if self.rows_rule(op, shard) is not None:
            return True
        shape = op.results[0].tensor.shape
        sources = [v for v in op.operands if v.tensor.rank]
        return (
            facts_of(op.name).elements is Elements.MAPS
            and bool(sources)
            and all(
                v.tensor.shape == shape and v in self.producers and self.makes_rows(self.producers[v], shard)
                for v in sources
            )
        )

    def rows_rule(self, op: Op, shard: Shard) -> SlicedOp | None:
        """How an op makes its rows on this member where it reads all of its operands for them."""
        labels, (start, end) = facts_of(op.name).division(op), shard.parts[self.member]
        if labels is None or labels.rows is None or end <= start:
            return None
        rows = labels.rows(op, shard.axis, start, end)
        return rows if rows is not None and rows.keep is None and not any(rows.needs) else None

    def summand(self, value: Value) -> Value:
        """This member's summand of a value; of one that is whole, the first member has all of it."""
        own = self.summands.get(value)
        if own is not None and value not in self.whole_values:
            return own
        whole = self.whole(value)
        if not self.member:
            return whole
        zero = self.number(0, value.tensor.dtype)
        return self.b.value("graph.broadcast_to", zero, shape=value.tensor.shape)

    # -- ops -------------------------------------------------------------------------------------------------
    def derive(self, op: Op) -> None:
        if "communicate" in op_def(op.name).effects:
            super().derive(op)
            return
        self.producers.update((r, op) for r in op.results)
        if self.added_apart(op):
            return
        op = self.without_stored(op)
        self.take_parts(op)
        seed = self.choose(self, op) if self.choose is not None else None
        cut = [v for v in op.operands if v in self.cuts]
        if seed is None and not cut:
            if not self.made_in_part(op):
                self.keep(op)
            return
        if seed is None and (self.by_moments(op) or self.mean_in_parts(op)):
            return
        stored = all(v in self.stored for v in cut)
        self.divide(op, seed)
        if stored:
            self.stored.update(r for r in op.results if r in self.cuts)

    def without_stored(self, op: Op) -> Op:
        """The op on whole values in place of those that are cut only to be stored, unless it maps these."""
        cut = [v for v in op.operands if v in self.cuts]
        stored = [v for v in cut if v in self.stored]
        if not stored or (len(stored) == len(cut) and facts_of(op.name).elements in _APART):
            return op
        return op.with_operands(tuple(self.whole(v) if v in self.stored else v for v in op.operands))

    def made_in_part(self, op: Op) -> bool:
        """Make of a value that becomes state held in pieces, such as a gradient, the own piece alone."""
        shard = self.destined.get(op.results[0]) if op.results and not self.adds_up else None
        labels = None if shard is None else facts_of(op.name).division(op)
        label = None if shard is None or labels is None else labels.results[0][shard.axis]
        if shard is None or labels is None or label is None:
            return False
        return self.localise(op, labels, LabelCut(label, shard))

    def take_parts(self, op: Op) -> None:
        """Let operands that lead to new values of stored state, alone, be cut as these are from here on."""
        if facts_of(op.name).elements not in _APART:
            return
        for v in op.operands:
            shard = self.destined.get(v)
            if shard is not None and v not in self.cuts and v not in self.func.params:
                self.piece(v, shard)
                self.cuts[v] = shard
                if self.adds_up:
                    self.stored.add(v)

    def add_up(self, op: Op, result: Value, piece: Value, kind: str) -> None:
        narrow = result.tensor.dtype in ("f16", "bf16")
        if kind == "sum" and narrow and len(op.operands) == 1:
            self.made[result] = self.widened_sum(op)
        elif kind == "sum":
            self.summands[result] = piece
        else:
            super().add_up(op, result, piece, kind)

    def widened_sum(self, op: Op) -> Value:
        """The sum that was built last, in float32 until it is whole: rounded once, as on one device."""
        last = self.b.ops.pop()
        wide = self.b.value("graph.cast", last.operands[0], dtype="f32")
        (part,) = self.b.emit(op.name, [wide], dict(last.attrs))
        attrs: dict[str, Attr] = {"reduction": "sum", **self.group}
        (total,) = self.b.emit("graph.all_reduce", [part], attrs)
        return self.b.value("graph.cast", total, dtype=op.results[0].tensor.dtype)

    def added_apart(self, op: Op) -> bool:
        """Do an op on every summand where it is linear and alone reads them; whether it was done."""
        apart = [v for v in op.operands if v in self.summands and v not in self.whole_values]
        if not apart or any(self.uses[v] > 1 for v in apart) or any(v in self.cuts for v in op.operands):
            return False
        result = op.results[0]
        labels = facts_of(op.name).division(op)
        way = None if labels is None or labels.summands is None else labels.summands(op, apart)
        if way == "once":
            # A whole number counts once: the first member adds it, the others add 0 at the same place.
            (whole,) = (v for v in op.operands if v not in apart)
            number = self.number(0, whole.tensor.dtype) if self.member else self.whole(whole)
            summand = self.summands[apart[0]]
            (self.summands[result],) = self.b.emit(op.name, [summand, number], dict(op.attrs))
            return True
        if way is None:
            return False
        local = [self.summands[v] if v in apart else self.whole(v) for v in op.operands]
        (self.summands[result],) = self.b.emit(op.name, local, dict(op.attrs))
        return True

    def mean_in_parts(self, op: Op) -> bool:
        """Take a mean over what is cut as a sum of means of the pieces, weighted by their extents."""
        labels = facts_of(op.name).division(op)
        if labels is None or labels.parts is None or len(op.results) != 1:
            return False
        found = [(i, s) for i, v in enumerate(op.operands) if (s := self.cuts.get(v)) is not None]
        if len(found) != 1 or op.results[0].tensor.dtype not in FLOATS:
            return False
        ((number, shard),) = found
        axis = shard.axis
        if labels.operands[number][axis] is not None or not all(shard.extents):
            return False
        extent = op.operands[number].tensor.shape[axis]
        share = shard.outer * shard.extents[self.member]
        part = labels.parts(op, number, axis, 0, share)
        if part is None or part.reduction != "sum" or part.divisor != extent:
            return False
        operands = [
            self.pieces[v, shard] if i == number else self.whole(v) for i, v in enumerate(op.operands)
        ]
        (mean,) = self.b.emit(op.name, operands, dict(op.attrs) | dict(part.attrs))
        narrow = mean.tensor.dtype
        if narrow in ("f16", "bf16"):
            mean = self.b.value("graph.cast", mean, dtype="f32")
        weight, divisor = (self.number(n, mean.tensor.dtype) for n in (share, extent))  # no dtype rounds them
        scaled = self.b.value("graph.divide", self.b.value("graph.multiply", mean, weight), divisor)
        if scaled.tensor.dtype != narrow:  # joined in float32, and narrow then
            attrs: dict[str, Attr] = {"reduction": "sum", **self.group}
            (total,) = self.b.emit("graph.all_reduce", [scaled], attrs)
            self.whole_values[op.results[0]] = self.b.value("graph.cast", total, dtype=narrow)
        self.summands[op.results[0]] = scaled
        return True

    def by_moments(self, op: Op) -> bool:
        """Standardise what is cut along other dimensions than channels by the moments of all members."""
        labels = facts_of(op.name).division(op)
        moments = None if labels is None else labels.moments
        if labels is None or moments is None:
            return False
        x = op.operands[0]
        shard = self.cuts.get(x)
        if shard is None or labels.operands[0][shard.axis] is not None:
            return False
        if not all(shard.extents):
            return False

        def gather(vector: Value) -> Value:
            row = self.b.value("graph.reshape", vector, newshape=(1, *vector.tensor.shape))
            attrs: dict[str, Attr] = {"axis": 0, "extents": (1,) * len(self.members), **self.group}
            return self.b.emit("graph.all_gather", [row], attrs)[0]

        def constant(numbers: Sequence[int]) -> Value:
            dtype = op.results[1].tensor.dtype
            name = f"samples.{dtype}.{'_'.join(map(str, numbers))}"
            return self.constant(np.array(numbers, storage_dtype(dtype)).reshape(-1, 1), dtype, name)

        operands = [self.pieces[x, shard], *(self.whole(v) for v in op.operands[1:])]
        y, *others = moments(self.b, op, operands, shard.extents, gather, constant)
        self.cuts[op.results[0]] = shard
        self.pieces[op.results[0], shard] = y
        for result, value in zip(op.results[1:], others, strict=True):
            self.made[result] = value
        return True

    def number(self, value: int, dtype: str) -> Value:
        """A constant without dimensions."""
        return self.constant(np.array(value, storage_dtype(dtype)), dtype, f"number.{dtype}.{value}")

    def constant(self, array: np.ndarray, dtype: str, name: str) -> Value:
        """A constant of this name, or one like it."""
        name = self.pool.add(name, array)
        return self.b.emit("graph.constant", (), {"name": name}, types=[TensorType(dtype, array.shape)])[0]

    # -- the function ----------------------------------------------------------------------------------------
    def main(self) -> Func:
        """This member's function after `run`: state that is held in pieces becomes pieces."""
        func = self.func
        end = func.body.ops[-1]
        becomes = {r: p for p, r in func.updates}
        operands = []
        for position, value in enumerate(end.operands):
            param = func.params[becomes[position]] if position in becomes else None
            if param is not None and param.hint in self.holding.cuts:
                operands.append(self.piece(value, self.holding.cuts[param.hint]))
            elif param is not None and param.hint in self.holding.sums:
                operands.append(self.summand(value))
            else:
                operands.append(self.whole(value))
            if param is not None:
                self.becoming[param.hint] = self.cuts.get(value)
        self.b.append(end.with_operands(tuple(operands)))
        block = Block(tuple(self.params), tuple(self.b.ops))
        block = block.with_ops(live_ops(block))
        return Func(func.level, func.name, block, tuple(v.type for v in operands), func.attrs)


def _destined(func: Func, holding: Holding) -> dict[Value, Shard]:
    """The cuts of state for all values of its shape that become its new value element by element."""
    returned = func.body.ops[-1].operands
    out: dict[Value, Shard] = {}
    for p, r in func.updates:
        if func.params[p].hint in holding.cuts:
            out[returned[r]] = holding.cuts[func.params[p].hint]
    for op in reversed(func.body.ops[:-1]):
        shard = next((out[r] for r in op.results if r in out), None)
        if shard is None or facts_of(op.name).elements is not Elements.MAPS:
            continue
        for v in op.operands:
            if v.tensor.shape == op.results[0].tensor.shape:
                out.setdefault(v, shard)
    return out
