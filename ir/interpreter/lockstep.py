"""Reference semantics of several ranks: their modules run in one process and meet in communication ops."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.communication import halo_pieces
from tilewright.ir.graph_ops.operands import dtype_of, wide
from tilewright.ir.interpreter.run import bind_inputs, evaluate_op, last_uses, own_array
from tilewright.ir.modules.verifier import verify
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, widened

#: attributes that differ between the members of one group communication
_OWN = frozenset({"rank"})
_GROUP_OPS = frozenset(f"graph.{n}" for n in ("halo_exchange", "all_gather", "all_reduce", "reduce_scatter"))


def interpret_ranks(
    modules: Sequence[Module], *inputs: Any, precision: str = "native"
) -> list[list[np.ndarray]]:
    """Results of @main of every rank, where modules[r] is what rank r runs and all are given the same inputs.

    A send is kept until it is received: messages between two ranks match by tag, in order. Group operations
    match by `ranks` (and `tag`), in order. Sums are taken in the order of `ranks`, 16-bit floats in float32.
    precision: as `interpret`.
    Raises InputError naming rank and op where ranks wait for each other for ever, where what is sent has
    another shape or dtype than what is received, where the members of a group disagree, or where a message is
    never received; UnsupportedError for modules that are not at the graph level.
    """
    return interpret_ranks_of(modules, [inputs] * len(modules), precision=precision)


def interpret_ranks_of(
    modules: Sequence[Module], inputs: Sequence[Sequence[Any]], *, precision: str = "native"
) -> list[list[np.ndarray]]:
    """As `interpret_ranks`, where rank r is given inputs[r]."""
    if precision not in ("native", "fp64"):
        raise InputError(f"expected precision 'native' or 'fp64', got '{precision}'")
    for rank, module in enumerate(modules):
        verify(module)
        if module.main.level is not Level.GRAPH:
            raise UnsupportedError(f"rank {rank}: expected a graph-level module, got one of tensor ops")
    with widened(precision == "fp64"), np.errstate(all="ignore"):
        ranks = [_Rank(r, m, bind_inputs(m, inputs[r])) for r, m in enumerate(modules)]
        _World(ranks).run()
        return [rank.results() for rank in ranks]


class _Rank:
    """One rank's progress through its @main."""

    def __init__(self, rank: int, module: Module, inputs: Sequence[np.ndarray]) -> None:
        self.rank, self.module, self.inputs = rank, module, inputs
        self.ops = module.main.body.ops
        self.env: dict[Value, np.ndarray] = dict(zip(module.main.params, inputs, strict=True))
        self.last = last_uses(module.main)
        self.at = 0

    @property
    def op(self) -> Op:
        """The op to be done next."""
        return self.ops[self.at]

    @property
    def done(self) -> bool:
        return self.at == len(self.ops) - 1

    @property
    def operand(self) -> np.ndarray:
        """The tensor that the next op communicates."""
        return self.env[self.op.operands[0]]

    @property
    def where(self) -> str:
        """The place for messages."""
        return f"rank {self.rank}, {self.op.name}{f' [{self.op.loc}]' if self.op.loc else ''}"

    def finish(self, results: Sequence[np.ndarray]) -> None:
        """Note the results of the next op and go on to the one after it."""
        op = self.op
        self.env.update(zip(op.results, results, strict=True))
        for v in {*op.operands, *op.results}:
            if self.last.get(v, self.at) <= self.at:
                del self.env[v]
        self.at += 1

    def results(self) -> list[np.ndarray]:
        shared = [*self.inputs, *self.module.constants.values()]
        return [own_array(self.env[v], shared) for v in self.op.operands]


@dataclass
class _World:
    """All ranks, the messages under way by (source, destination, tag), and who waits in which group."""

    ranks: list[_Rank]
    messages: dict[tuple[int, int, int], deque[tuple[TensorType, np.ndarray]]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def run(self) -> None:
        while not all(r.done for r in self.ranks):
            before = [r.at for r in self.ranks]
            for rank in self.ranks:
                self.advance(rank)
            if before == [r.at for r in self.ranks]:
                raise InputError(f"ranks wait for each other for ever: {self.waiting()}")
        for (source, to, tag), left in self.messages.items():
            if left:
                raise InputError(
                    f"rank {source}: what graph.send sent to rank {to} with tag {tag} is never received"
                )

    def advance(self, rank: _Rank) -> None:
        """Do ops of a rank up to one that has to wait for others."""
        while not rank.done:
            op = rank.op
            if op.name == "graph.send":
                self.send(rank)
            elif op.name == "graph.recv":
                if not self.receive(rank):
                    return
            elif op.name in _GROUP_OPS:
                if not self.meet(rank):
                    return
            elif "communicate" in op_def(op.name).effects:
                raise UnsupportedError("the interpreter of ranks does not know this op", where=rank.where)
            else:
                operands = [rank.env[v] for v in op.operands]
                rank.finish(evaluate_op(rank.module, rank.module.main, op, operands))

    def send(self, rank: _Rank) -> None:
        op, to = rank.op, rank.op.integer("to")
        self.check_peer(rank, to)
        key = rank.rank, to, op.integer("tag")
        self.messages[key].append((op.operands[0].tensor, rank.operand))
        rank.finish(())

    def receive(self, rank: _Rank) -> bool:
        op, source = rank.op, rank.op.integer("source")
        self.check_peer(rank, source)
        waiting = self.messages[source, rank.rank, op.integer("tag")]
        if not waiting:
            return False
        sent, array = waiting.popleft()
        if sent != op.result.type:
            raise InputError(
                f"expected {op.result.type} from rank {source} with tag {op['tag']}, got {sent}",
                where=rank.where,
            )
        rank.finish([array])
        return True

    def check_peer(self, rank: _Rank, peer: int) -> None:
        if not 0 <= peer < len(self.ranks) or peer == rank.rank:
            message = f"expected another rank among 0..{len(self.ranks) - 1}, got {peer}"
            raise InputError(message, where=rank.where)

    def meet(self, rank: _Rank) -> bool:
        """Do the group operation a rank stands at, when all of its members stand at it."""
        members = self.members(rank)
        there = [m for m in members if not m.done and m.op.name in _GROUP_OPS and _key(m.op) == _key(rank.op)]
        if len(there) < len(members):
            return False
        for member in members:
            self.check_group(rank, member)
        arrays = [m.operand for m in members]
        name, attrs = rank.op.name, dict(rank.op.attrs)
        for position, member in enumerate(members):
            member.finish([_joined(name, attrs, arrays, position)])
        return True

    def members(self, rank: _Rank) -> list[_Rank]:
        listed = _integers(rank.op["ranks"])
        place = rank.op.integer("rank")
        if listed[place] != rank.rank:
            raise InputError(
                f"expected position {place} of ranks {listed} to be this rank {rank.rank}",
                where=rank.where,
            )
        for other in listed:
            if other != rank.rank:
                self.check_peer(rank, other)
        return [self.ranks[r] for r in listed]

    def check_group(self, first: _Rank, member: _Rank) -> None:
        """Members must do the same operation on tensors that differ along the axis only."""
        self.members(member)
        a, b = first.op, member.op
        differing = [k for k, v in a.attrs if k not in _OWN and b.get(k) != v] if a.name == b.name else []
        if a.name != b.name or differing:
            what = f"{a.name} with another {', '.join(differing)}" if differing else a.name
            raise InputError(f"rank {first.rank} of the same group does {what}", where=member.where)
        x, y = a.operands[0].tensor, b.operands[0].tensor
        axis = a.integer("axis") % x.rank if a.get("axis") is not None else None
        alike = x.rank == y.rank and all(
            m == n for d, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if d != axis
        )
        if not alike or x.dtype != y.dtype:
            message = f"expected a tensor that goes with {x} of rank {first.rank}, got {y}"
            raise InputError(message, where=member.where)

    def waiting(self) -> str:
        """The op at which each rank stands that is not done."""
        parts = []
        for r in self.ranks:
            if r.done:
                parts.append(f"rank {r.rank} is done")
            else:
                keys = [k for k in ("source", "ranks", "tag") if r.op.get(k) is not None]
                listed = ", ".join(f"{k} {_plain(r.op.get(k))}" for k in keys)
                parts.append(f"{r.where} ({listed})")
        return "; ".join(parts)


def _integers(value: object) -> list[int]:
    assert isinstance(value, tuple)
    return [int(v) for v in value]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _key(op: Op) -> tuple[object, object]:
    return op.get("ranks"), op.get("tag")


def _joined(name: str, attrs: Mapping[str, Any], arrays: Sequence[np.ndarray], position: int) -> np.ndarray:
    """Return what the member at `position` gets out of all members' arrays."""
    if name == "graph.all_gather":
        return np.concatenate(arrays, axis=attrs["axis"])
    if name == "graph.halo_exchange":
        return _exchanged(attrs, arrays, position)
    if name == "graph.all_reduce" and attrs["reduction"] == "max":
        return np.maximum.reduce(list(arrays))
    dtype = dtype_of(arrays[0])
    total = wide(arrays[0], dtype)
    for x in arrays[1:]:
        total = total + wide(x, dtype)
    total = total.astype(arrays[0].dtype, copy=False)
    if name == "graph.all_reduce":
        return total
    cuts = np.cumsum(attrs["extents"])[:-1]
    return np.split(total, cuts, axis=attrs["axis"])[position]


def _exchanged(attrs: Mapping[str, Any], arrays: Sequence[np.ndarray], position: int) -> np.ndarray:
    axis, owned = attrs["axis"] % arrays[0].ndim, attrs["owned"]
    before = (slice(None),) * axis
    parts = [
        arrays[p.member][*before, slice(p.start - owned[p.member][0], p.end - owned[p.member][0])]
        for p in halo_pieces(owned, attrs["needed"], position)
    ]
    return np.concatenate(parts or [arrays[position][*before, slice(0, 0)]], axis=axis)
