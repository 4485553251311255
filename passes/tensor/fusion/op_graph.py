"""The computing ops of a flat tensor function as a graph of bit sets, with the index sets of their reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilewright.ir import Func, Op, Sym, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.analysis.index_sets import identity_read, is_view

#: ops of @main that compute nothing
NO_KERNEL = frozenset({"tensor.constant", "tensor.return", "tensor.call"})


@dataclass(frozen=True)
class Edge:
    """One operand of an op that another op of the graph makes.

    view: the operand is a reinterpretation of what `source` makes. data: it is what a gather takes elements
    of. own: point p of the reader reads element p, in bounds.
    """

    source: int
    operand: int
    view: bool
    data: bool
    own: bool


def members(ops: int) -> Iterator[int]:
    """Positions of the bits of a set, ascending."""
    while ops:
        low = ops & -ops
        yield low.bit_length() - 1
        ops ^= low


class OpGraph:
    """Ops that need a kernel, numbered in program order; sets of ops are integers with one bit per op.

    Views whose result is not returned are no ops here: `views` says what each stands for.
    """

    def __init__(self, func: Func) -> None:
        self.func = func
        self.views: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.producer: dict[Value, int] = {}
        self.edges: list[tuple[Edge, ...]] = []
        returned = set(func.body.ops[-1].operands)
        for op in func.body.ops:
            if op.name in NO_KERNEL:
                continue
            if is_view(op) and op.result not in returned:
                self.views[op.result] = op.operands[0]
                continue
            number = len(self.ops)
            self.ops.append(op)
            self.edges.append(tuple(self._edges(op)))
            self.producer.update(dict.fromkeys(op.results, number))
        self.returned = sum(1 << i for i, op in enumerate(self.ops) if returned & set(op.results))

    def resolve(self, v: Value) -> Value:
        """The value whose buffer holds `v`."""
        while v in self.views:
            v = self.views[v]
        return v

    def _edges(self, op: Op) -> Iterator[Edge]:
        for i, v in enumerate(op.operands):
            source = self.producer.get(self.resolve(v))
            if source is None:
                continue
            data = op.name in ("tensor.gather", "tensor.scatter") and i == 0
            own = not data and self._own(op, i)
            yield Edge(source, i, v in self.views, data, own)

    def _own(self, op: Op, operand: int) -> bool:
        if op.name == "tensor.map":
            return fills(op)[operand] is None and identity_read(op, operand)
        if op.name == "tensor.gather":
            return reads(op)[operand - 1] == tuple(map(Sym, dims(op, "par")))
        return False

    @cached_property
    def preds(self) -> list[int]:
        """Per op the ops whose results it reads, through views too, and of a communication the one before."""
        sources = [sum(1 << s for s in {e.source for e in edges}) for edges in self.edges]
        for earlier, later in pairwise(i for i, op in enumerate(self.ops) if op.name == COMMUNICATE):
            sources[later] |= 1 << earlier
        return sources

    @cached_property
    def succs(self) -> list[int]:
        """Per op the ops that read its results."""
        out = [0] * len(self.ops)
        for i, before in enumerate(self.preds):
            for s in members(before):
                out[s] |= 1 << i
        return out

    @cached_property
    def before(self) -> list[int]:
        """Per op all ops that must run earlier."""
        out: list[int] = []
        for preds in self.preds:
            earlier = preds
            for s in members(preds):
                earlier |= out[s]
            out.append(earlier)
        return out

    @cached_property
    def after(self) -> list[int]:
        """Per op all ops that must run later."""
        out = [0] * len(self.ops)
        for i in range(len(self.ops) - 1, -1, -1):
            out[i] = self.succs[i]
            for s in members(self.succs[i]):
                out[i] |= out[s]
        return out

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Per op the extents of its parallel domain."""
        return [tuple(dims(op, "par").values()) for op in self.ops]

    def convex(self, ops: int) -> bool:
        """Return whether no path leaves the set and comes back: then it can be one kernel."""
        before = after = 0
        for i in members(ops):
            before |= self.before[i]
            after |= self.after[i]
        return not before & after & ~ops

    def connected(self, ops: int) -> bool:
        """Return whether the set hangs together by reads between its ops."""
        reached = ops & -ops
        todo = reached
        while todo:
            i = todo.bit_length() - 1
            todo ^= 1 << i
            fresh = (self.preds[i] | self.succs[i]) & ops & ~reached
            reached |= fresh
            todo |= fresh
        return reached == ops

    def stored(self, ops: int) -> int:
        """Ops of the set with a result that others, or the caller, read."""
        return sum(1 << i for i in members(ops) if self.succs[i] & ~ops or self.returned >> i & 1)
