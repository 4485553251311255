"""Rebuilds a function on pieces of its values: local work where ops allow it, else communication.

Every value is either whole on all members or cut (`Shard`). All decisions depend on the whole function alone,
never on the member, so that all members communicate in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.builder import Builder
from tilewright.ir.division import Label, Labels
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.facts import Elements
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr, Func, Module, Op, Value, walk
from tilewright.ir.opdef import attributes_at, facts_of, op_def
from tilewright.ir.types import TensorType, Type
from tilewright.passes.graph.distribute.sharding.regrouping import NotRegrouped, Regrouped, regrouped
from tilewright.passes.graph.distribute.sharding.shards import Shape, Shard
from tilewright.passes.rewriting.dead_ops import live_ops

#: where to cut a value that is whole: operand and dimension of an op; None leaves the op to its operands
Choice = Callable[["ShardedProgram", Op], "LabelCut | None"]


@dataclass(frozen=True, slots=True)
class LabelCut:
    """A decision to do an op in pieces along one of its labels, cut as `shard` (of whatever axis)."""

    label: Label
    shard: Shard


@dataclass(frozen=True, slots=True)
class UnitHint:
    """Decision `seed` would have to read its block as [outer, units, unit] for an op to stay local."""

    seed: int
    block: int
    outer: int
    unit: int


class ShardedProgram:
    """One member's version of a function, built op by op.

    members: global ranks; member: the position of this one.
    choose: asked before an op all of whose operands are followed; None never cuts anything anew.
    communicating: False makes an op that would need communication an error (for pieces of a batch that one
      device computes one after another).
    messages: the function may send and receive, whole values; otherwise ops that communicate are an error.
    begins: by op of the function, position of the first op built of it; complete after `run`.
    """

    def __init__(
        self,
        module: Module,
        members: Sequence[int],
        member: int,
        pool: ConstantPool,
        *,
        choose: Choice | None = None,
        communicating: bool = True,
        messages: bool = False,
    ) -> None:
        self.func, self.members, self.member = module.main, tuple(members), member
        self.pool, self.choose, self.communicating, self.messages = pool, choose, communicating, messages
        #: what is summed over samples is added up, also where gathering the samples would move fewer bytes
        self.adds_up = False
        self.begins: list[int] = []
        self.b = Builder()
        self.cuts: dict[Value, Shard] = {}
        self.pieces: dict[tuple[Value, Shard], Value] = {}
        self.whole_values: dict[Value, Value] = {}
        self.producers: dict[Value, Op] = {}
        self.unit_hints: list[UnitHint] = []
        self.current_op: Op | None = None

    # -- values ----------------------------------------------------------------------------------------------
    def cut(self, value: Value, shard: Shard) -> None:
        """Follow `value`, which is whole, in pieces from now on; ops that need it whole still have it."""
        self.piece(value, shard)
        self.whole_values[value] = value
        self.cuts[value] = shard

    def piece(self, value: Value, shard: Shard) -> Value:
        """This member's piece of a value; one cut otherwise is gathered first."""
        key = value, shard
        if key not in self.pieces:
            self.pieces[key] = self.sliced(self.whole(value), shard, self.producers.get(value))
        return self.pieces[key]

    def whole(self, value: Value) -> Value:
        """A value that all members have in full: gathered where it is cut."""
        shard = self.cuts.get(value)
        if shard is None:
            return value
        if value not in self.whole_values:
            self.whole_values[value] = self.gathered(self.pieces[value, shard], shard, value)
        return self.whole_values[value]

    def sliced(self, value: Value, shard: Shard, producer: Op | None) -> Value:
        t, (start, end) = value.tensor, shard.parts[self.member]
        array = self.pool.array(producer)
        split, d = self.blocked(t.shape, shard, shard.block), shard.axis
        piece_shape = shard.held(t.shape, self.member)
        if array is not None and producer is not None:
            at = (*(slice(None),) * (d + 1), slice(start, end))
            part = np.ascontiguousarray(array.reshape(split)[at].reshape(piece_shape))
            name = f"{producer['name']}.{d}.{shard.outer}.{start}-{end}"
            attrs: dict[str, Attr] = {"name": self.pool.add(name, part)}
            return self.b.emit("graph.constant", (), attrs, types=[TensorType(t.dtype, piece_shape)])[0]
        if shard.outer > 1:
            value, d = self.b.value("graph.reshape", value, newshape=split), d + 1
        shape = value.tensor.shape
        begin = tuple(start if i == d else 0 for i in range(len(shape)))
        size = (*shape[:d], end - start, *shape[d + 1 :])
        value = self.b.value("graph.strided_slice", value, begin=begin, size=size, strides=(1,) * len(shape))
        return value if shard.outer == 1 else self.b.value("graph.reshape", value, newshape=piece_shape)

    def gathered(self, piece: Value, shard: Shard, value: Value) -> Value:
        if not self.communicating:
            name = self.current_op.name if self.current_op is not None else "graph.return"
            raise UnsupportedError(
                f"expected ops that work on samples one by one, got {name}, which needs {value.type} whole",
                where=f"{name} [{self.current_op.loc}]"
                if self.current_op is not None and self.current_op.loc
                else "",
            )
        d, shape = shard.axis, value.tensor.shape
        if shard.outer > 1:
            blocks = self.blocked(shape, shard, shard.extents[self.member])
            piece, d = self.b.value("graph.reshape", piece, newshape=blocks), d + 1
        attrs: dict[str, Attr] = {"axis": d, "extents": shard.extents, **self.group}
        (whole,) = self.b.emit("graph.all_gather", [piece], attrs)
        return whole if shard.outer == 1 else self.b.value("graph.reshape", whole, newshape=shape)

    @property
    def group(self) -> dict[str, Attr]:
        """Attributes of a group operation of all members."""
        return {"rank": self.member, "ranks": self.members}

    @staticmethod
    def blocked(shape: Sequence[int], shard: Shard, extent: int) -> tuple[int, ...]:
        """`shape` with the dimension that is cut as [outer, extent]."""
        return (*shape[: shard.axis], shard.outer, extent, *shape[shard.axis + 1 :])

    # -- ops -------------------------------------------------------------------------------------------------
    def run(self) -> list[tuple[Value, Shard | None]]:
        """Build all ops but the return; what it returns, in this member's pieces."""
        for op in self.func.body.ops[:-1]:
            self.b.loc, self.current_op = op.loc, op
            self.begins.append(len(self.b.ops))
            self.derive(op)
        self.begins.append(len(self.b.ops))
        self.current_op = self.func.body.ops[-1]
        self.b.loc = self.current_op.loc
        out: list[tuple[Value, Shard | None]] = []
        for v in self.current_op.operands:
            shard = self.cuts.get(v)
            out.append((v, None) if shard is None else (self.pieces[v, shard], shard))
        return out

    def derive(self, op: Op) -> None:
        """Append what this member does of one op."""
        self.producers.update((r, op) for r in op.results)
        if "communicate" in op_def(op.name).effects:
            if not self.messages or op.get("ranks") is not None:
                raise UnsupportedError("expected a module that is not distributed yet", where=op.name)
            self.keep(op)
            return
        seed = self.choose(self, op) if self.choose is not None else None
        if seed is None and not any(v in self.cuts for v in op.operands):
            self.b.append(op)
            return
        self.divide(op, seed)

    def divide(self, op: Op, seed: LabelCut | None) -> None:
        """Append an op on what is cut, or by a decision to cut it."""
        shards = [self.cuts.get(v) for v in op.operands]
        if seed is None:
            plan = regrouped(op, shards, self.member)
            if plan is not None:
                self.note_hint(op, plan)
                if isinstance(plan, Regrouped) and self.allowed(op, plan):
                    self.regroup(op, plan)
                else:
                    self.keep(op)
                return
        labels = facts_of(op.name).division(op)
        if labels is not None:
            seed = seed or self.preferred(op, labels)
        if labels is None or seed is None or not self.localise(op, labels, seed):
            self.keep(op)

    def keep(self, op: Op) -> None:
        """The op on whole operands."""
        self.b.append(op.with_operands(tuple(self.whole(v) for v in op.operands)))

    def regroup(self, op: Op, plan: Regrouped) -> None:
        operands = [self.piece(v, s) for v, s in zip(op.operands, plan.operands, strict=True)]
        if facts_of(op.name).elements is Elements.RESHAPES:
            results = self.b.emit("graph.reshape", operands, plan.attrs)
        else:
            results = self.b.emit(op.name, operands, dict(op.attrs) | dict(plan.attrs))
        for r, new, shard in zip(op.results, results, plan.results, strict=True):
            self.cuts[r] = shard
            self.pieces[r, shard] = new

    def allowed(self, op: Op, plan: Regrouped) -> bool:
        """Operands that are cut are cut as the plan wants them, so that it costs no communication."""
        pairs = ((self.cuts.get(v), s) for v, s in zip(op.operands, plan.operands, strict=True))
        return all(present is None or present == planned for present, planned in pairs)

    def note_hint(self, op: Op, plan: Regrouped | NotRegrouped) -> None:
        """Note how the decisions behind an operand should cut for an op to stay local, or in more units."""
        if plan.finer is not None:
            for shard in filter(None, map(self.cuts.get, op.operands)):
                self.unit_hints += [UnitHint(s, shard.block, *plan.finer) for s in sorted(shard.seeds)]

    # -- labelled ops ----------------------------------------------------------------------------------------
    def preferred(self, op: Op, labels: Labels) -> LabelCut | None:
        """The label that most bytes are cut along, unless reducing its results costs more than gathering."""
        votes: dict[Label, int] = {}
        seeds: dict[Label, LabelCut] = {}
        largest: dict[Label, int] = {}
        for v, dims in zip(op.operands, labels.operands, strict=True):
            shard = self.cuts.get(v)
            label = dims[shard.axis] if shard is not None else None
            if shard is None or label is None or self.settled(op, labels, label, v):
                continue
            votes[label] = votes.get(label, 0) + v.tensor.nbytes
            if v.tensor.nbytes > largest.get(label, -1):
                largest[label], seeds[label] = v.tensor.nbytes, LabelCut(label, shard)
        results = sum(r.tensor.nbytes for r in op.results)
        for label in (labels.sums | labels.maxima) & votes.keys():
            dear = 2 * results > votes[label] and not self.adds_up
            if dear or 0 in seeds[label].shard.extents:
                del votes[label]
        best = max(votes, key=lambda k: votes[k], default=None)
        return None if best is None else seeds[best]

    def settled(self, op: Op, labels: Labels, label: Label, value: Value) -> bool:
        """Return True where a value gathered before meets one that is whole, so that it is taken whole too.

        Where decisions are made on the way (`choose`), the result would be gathered as well; a batch is
        always worth cutting again.
        """
        if self.choose is None or value not in self.whole_values:
            return False
        pairs = zip(op.operands, labels.operands, strict=True)
        return any(
            label in dims and v not in self.cuts and self.producers.get(v, op).name != "graph.constant"
            for v, dims in pairs
        )

    def localise(self, op: Op, labels: Labels, seed: LabelCut) -> bool:
        """Do an op on pieces along one label; False where its operands or results do not allow that."""
        label, shard = seed.label, seed.shard
        places = [[d for d, k in enumerate(dims) if k == label] for dims in labels.operands]
        ends = [[d for d, k in enumerate(dims) if k == label] for dims in labels.results]
        seeds = set(shard.seeds)
        for v, at in zip(op.operands, places, strict=True):
            present = self.cuts.get(v)
            if at and present is not None and present == shard.on(at[0]):
                seeds |= present.seeds
        shard = replace(shard, seeds=frozenset(seeds))
        if any(len(at) > 1 for at in (*places, *ends)) or not _fits(op, labels, label, shard):
            return False
        operands = [
            self.piece(v, shard.on(at[0])) if at else self.whole(v)
            for v, at in zip(op.operands, places, strict=True)
        ]
        attrs = attributes_at(op, _piece_shapes(op, labels, label, shard, self.member))
        results = self.b.emit(op.name, operands, attrs)
        for r, new, at in zip(op.results, results, ends, strict=True):
            if at:
                self.cuts[r] = shard.on(at[0])
                self.pieces[r, self.cuts[r]] = new
            else:
                self.cuts.pop(r, None)
                self.add_up(op, r, new, "max" if label in labels.maxima else "sum")
        return True

    def add_up(self, op: Op, result: Value, piece: Value, kind: str) -> None:
        """Let `result` be what the members' pieces give together."""
        self.replace_result(result, self.reduced(op, piece, kind))

    def reduced(self, op: Op, piece: Value, kind: str) -> Value:
        if not self.communicating:
            message = f"expected ops that work on samples one by one, got {op.name}, which adds them up"
            raise UnsupportedError(message, where=f"{op.name} [{op.loc}]" if op.loc else "")
        return self.b.emit("graph.all_reduce", [piece], {"reduction": kind, **self.group})[0]

    def replace_result(self, old: Value, new: Value) -> None:
        """Let the op built last give `old` instead of `new`, which have one type."""
        last = self.b.ops[-1]
        assert last.results == (new,)
        self.b.ops[-1] = replace(last, results=(old,))


def _fits(op: Op, labels: Labels, label: Label, shard: Shard) -> bool:
    """Return True where the op takes every member's pieces along `label`."""
    infer = op_def(op.name).infer
    if infer is None:
        return False
    for member in {n: m for m, n in enumerate(shard.extents)}.values():
        shapes = _piece_shapes(op, labels, label, shard, member)
        types: list[Type] = [replace(v.tensor, shape=s) for v, s in zip(op.operands, shapes, strict=True)]
        try:
            infer(types, attributes_at(op, shapes))
        except (InputError, UnsupportedError):
            return False
    return True


def _piece_shapes(op: Op, labels: Labels, label: Label, shard: Shard, member: int) -> list[Shape]:
    """The shapes of a member's operands, cut along `label`."""
    shapes = (v.tensor.shape for v in op.operands)
    return [
        shard.on(dims.index(label)).held(shape, member) if label in dims else shape
        for shape, dims in zip(shapes, labels.operands, strict=True)
    ]


def outputs_gathered(program: ShardedProgram) -> Func:
    """This member's function after `run`: outputs are gathered, what nobody needs is dropped."""
    end = program.func.body.ops[-1]
    program.b.append(end.with_operands(tuple(map(program.whole, end.operands))))
    body = program.func.body.with_ops(tuple(program.b.ops))
    return program.func.with_body(body.with_ops(live_ops(body)))


def with_main(module: Module, main: Func, pool: ConstantPool) -> Module:
    """The module with another @main, and those constants of the pool that its functions name."""
    module = module.with_funcs(tuple(main if f is module.main else f for f in module.funcs))
    named = frozenset(
        str(op["name"]) for f in module.funcs for op in walk(f.body) if op.name.endswith(".constant")
    )
    return module.with_constants(pool.constants.only(named))


def batch_of(func: Func, axis: int) -> int:
    """The extent of the batch: that of dimension `axis` of the first input that has it."""
    for p in inputs_of(func):
        if 0 <= axis < p.tensor.rank:
            return p.tensor.shape[axis]
    raise InputError(f"expected an input with a dimension {axis}, the batch, got none", where=f"@{func.name}")


def batch_cuts(func: Func, parts: tuple[tuple[int, int], ...], axis: int) -> list[tuple[Value, Shard]]:
    """The inputs that hold the batch, each with its cut into `parts`."""
    extent = parts[-1][1]
    inputs = (p for p in inputs_of(func) if axis < p.tensor.rank and p.tensor.shape[axis] == extent)
    return [(p, Shard(axis, 1, parts)) for p in inputs]


def inputs_of(func: Func) -> list[Value]:
    """The parameters that are no state."""
    state = {p for p, _ in func.updates}
    return [p for i, p in enumerate(func.params) if i not in state]


def cut_batch(module: Module, parts: int, part: int, pool: ConstantPool, axis: int = 0) -> ShardedProgram:
    """The program of one of `parts` equal parts of the batch, which works without the others."""
    program = ShardedProgram(module, range(parts), part, pool, communicating=False)
    main = module.main
    for value, shard in batch_cuts(main, apportioned(batch_of(main, axis), (1.0,) * parts), axis):
        program.cut(value, shard)
    return program
