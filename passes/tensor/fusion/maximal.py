"""The partition of "Data Movement Is All You Need": products alone, and all else in as few kernels as may be.

Source: Ivanov et al., MLSys 2021, section 4.2: ops that are no products are fused as far as their iteration
spaces are the same, or differ by one reduction; a product takes nothing but the scaling of what it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tilewright.ir import Op, Value
from tilewright.ir.tensor.ops import REDUCING, dims, domain
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.analysis.index_sets import is_scaling
from tilewright.passes.analysis.row_groups import row_dims, rows_of
from tilewright.passes.tensor.fusion.op_graph import OpGraph, members


def maximal_sets(graph: OpGraph) -> tuple[int, ...]:
    """The kernels of a flat tensor function as sets of its ops.

    A map runs in the kernel of the reduction that it depends on; a map that depends on none, or on one that
    waits for it, runs in the first kernel that reads it. A reduction joins the kernel that makes what it
    adds up, where that has reductions of the same dimensions or none. Of one iteration space, kernels that
    follow one another, reduce the same dimensions and do not wait for each other are one. Forward and
    backward pass share no kernel.
    """
    return _Maximal(graph).sets()


class _Maximal:
    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.forward = _forward(graph)
        self.groups: list[int] = []
        self.of: dict[int, int] = {}  # op -> number of its group

    def sets(self) -> tuple[int, ...]:
        graph = self.graph
        for i, op in enumerate(graph.ops):
            if op.name == "tensor.map":
                self._map(i)
                continue
            if op.name == "tensor.reduce":
                self._reduction(i)
                continue
            self._made(graph.preds[i])
            self._new(1 << i)
        self._made((1 << len(graph.ops)) - 1)
        self._join_neighbours()
        return tuple(g for g in self.groups if g)

    # -- one op after the other ------------------------------------------------------------------------------
    def _map(self, i: int) -> None:
        """Join the kernel that the map depends on; else it waits for the first that reads it."""
        graph = self.graph
        sources = {self.of[s] for s in members(graph.preds[i]) if s in self.of}
        for number in sorted(sources, reverse=True):
            group = self.groups[number]
            if self._is_product(group):
                if self._scales(i, group):
                    self._add(number, 1 << i)
                    return
            elif self._reductions(group) and self._claimed(number, i):
                return

    def _reduction(self, i: int) -> None:
        """Join the kernel that makes what is added up, or start one with the maps that wait for this."""
        sources = {self.of[s] for s in members(self.graph.preds[i]) if s in self.of}
        for number in sorted(sources, reverse=True):
            if not self._is_product(self.groups[number]) and self._claimed(number, i):
                return
        number = self._new(1 << i)
        if not self._claim(number, self._waiting(i)):
            self._made(self.graph.preds[i])

    def _claimed(self, number: int, i: int) -> bool:
        """Add an op to a kernel, with the maps that waited for it; return whether that could be."""
        waiting = self._waiting(i)
        if self._may_be(self.groups[number] | 1 << i | waiting, number):
            self._add(number, 1 << i | waiting)
            return True
        if waiting and self._may_be(self.groups[number] | 1 << i, number):
            self._made(waiting)
            if self._may_be(self.groups[number] | 1 << i, number):
                self._add(number, 1 << i)
                return True
        return False

    def _claim(self, number: int, waiting: int) -> bool:
        if not waiting or not self._may_be(self.groups[number] | waiting, number):
            return not waiting
        self._add(number, waiting)
        return True

    def _waiting(self, i: int) -> int:
        """Maps that no kernel has yet, up from what an op reads."""
        out, todo = 0, self.graph.preds[i]
        while todo:
            at = todo & -todo
            todo ^= at
            s = at.bit_length() - 1
            if s not in self.of and not out & at and self._side(s) == self._side(i):
                out |= at
                todo |= self.graph.preds[s] & ~out
        return out

    def _made(self, ops: int) -> None:
        """Give maps that wait a kernel of maps, each with those that it reads where they fit."""
        for i in sorted(members(ops), reverse=True):
            if i in self.of:
                continue
            number = self._new(1 << i)
            waiting = self._waiting(i)
            if not self._claim(number, waiting):
                for s in sorted(members(waiting), reverse=True):
                    joined = self.groups[number] | 1 << s
                    if self.graph.succs[s] & self.groups[number] and self._may_be(joined, number):
                        self._add(number, 1 << s)
                self._made(waiting)

    # -- kernels ---------------------------------------------------------------------------------------------
    def _new(self, ops: int) -> int:
        self.groups.append(0)
        self._add(len(self.groups) - 1, ops)
        return len(self.groups) - 1

    def _add(self, number: int, ops: int) -> None:
        self.groups[number] |= ops
        self.of.update(dict.fromkeys(members(ops), number))

    def _side(self, i: int) -> bool:
        return bool(self.forward >> i & 1)

    def _is_product(self, group: int) -> bool:
        return any(self.graph.ops[i].name not in ("tensor.map", "tensor.reduce") for i in members(group))

    def _reductions(self, group: int) -> list[Op]:
        return [self.graph.ops[i] for i in members(group) if self.graph.ops[i].name in REDUCING]

    def _scales(self, i: int, group: int) -> bool:
        """Return whether a map does no more than scale or round what only it reads of a product."""
        op, graph = self.graph.ops[i], self.graph
        edges = graph.edges[i]
        return (
            is_scaling(op)
            and len(edges) == 1
            and not edges[0].view
            and graph.succs[edges[0].source] == 1 << i
            and not graph.returned >> edges[0].source & 1
            and group >> edges[0].source & 1 == 1
        )

    def _may_be(self, ops: int, number: int) -> bool:
        """Return whether these ops may be the kernel of this number: one walk, and no kernel waits for it
        that it waits for."""
        sides = {self._side(i) for i in members(ops)}
        return len(sides) == 1 and walks_once(self.graph, ops) and not self._waits_for_itself(ops)

    def _waits_for_itself(self, ops: int) -> bool:
        """Return whether a path over other kernels leads from the ops back to them."""
        graph = self.graph
        reached, todo = 0, 0
        for i in members(ops):
            todo |= graph.succs[i] & ~ops
        while todo:
            at = todo & -todo
            i = at.bit_length() - 1
            number = self.of.get(i)
            group = at if number is None else self.groups[number] & ~ops
            reached |= group | at
            todo &= ~reached
            for member in members(group | at):
                after = graph.succs[member]
                if after & ops:
                    return True
                todo |= after & ~reached
        return False

    # -- neighbours ------------------------------------------------------------------------------------------
    def _join_neighbours(self) -> None:
        """Kernels of one space that follow one another and reduce the same share a launch."""
        last: dict[tuple[int, ...], int] = {}
        for number in sorted(range(len(self.groups)), key=self._position):
            group = self.groups[number]
            if self._is_product(group):
                continue
            space = self._space(group)
            before = last.get(space)
            if before is not None and self._alike(before, number):
                joined = self.groups[before] | group
                if self._may_be(joined, before):
                    self.groups[number] = 0
                    self._add(before, group)
                    continue
            last[space] = number

    def _alike(self, first: int, second: int) -> bool:
        one, other = (self._reductions(self.groups[n]) for n in (first, second))
        return bool(one) == bool(other)

    def _position(self, number: int) -> int:
        """The place of the op that shapes a kernel in the program."""
        group = self.groups[number]
        anchors = [i for i in members(group) if self.graph.ops[i].name in REDUCING]
        return min(anchors, default=max(members(group), default=0))

    def _space(self, group: int) -> tuple[int, ...]:
        """The extents that a kernel walks along, in ascending order."""
        widest = max((self.graph.ops[i] for i in members(group)), key=lambda op: prod(domain(op).values()))
        return tuple(sorted(_wide(domain(widest).values())))


def _forward(graph: OpGraph) -> int:
    """The ops of the forward pass, with those that round for storing what it computes."""
    forward = forward_ops(graph.func)
    out = 0
    for i, op in enumerate(graph.ops):
        body = [o.name for o in op.body.ops] if op.name == "tensor.map" and op.body is not None else []
        narrows = body == ["scalar.cast", "scalar.yield"]
        narrows = narrows and op.result.tensor.nbytes < op.operands[0].tensor.nbytes
        out |= (op in forward or (narrows and bool(out & graph.preds[i]))) << i
    return out


def walks_once(graph: OpGraph, ops: int) -> bool:
    """Return whether ops are one walk over an iteration space: maps of equal points, or with reductions of
    the same dimensions.

    What others read must be computed at the points of that walk, or once per row of it.
    """
    inside = [graph.ops[i] for i in members(ops)]
    if any(op.name not in ("tensor.map", "tensor.reduce") for op in inside):
        return False
    if any(e.view or e.data for i in members(ops) for e in graph.edges[i] if ops >> e.source & 1):
        return False
    reductions = [op for op in inside if op.name == "tensor.reduce"]
    if not reductions:
        own = all(e.own for i in members(ops) for e in graph.edges[i] if ops >> e.source & 1)
        return own and len({_wide(dims(op, "par").values()) for op in inside}) == 1
    if len({(_wide(dims(op, "par").values()), _wide(dims(op, "red").values())) for op in reductions}) > 1:
        return False
    rows = rows_of(inside, reductions[0])
    if rows is None:
        return False
    points = prod(domain(reductions[0]).values())
    for i in members(ops):
        op = graph.ops[i]
        stored = bool(graph.succs[i] & ~ops or graph.returned >> i & 1)
        if stored and row_dims(op, inside, reductions[0]) is None:
            return False
        if op not in rows and prod(dims(op, "par").values()) > points:
            return False
    return True


def _wide(extents: Iterable[int]) -> tuple[int, ...]:
    return tuple(n for n in extents if n > 1)


def sums_first(ops: Sequence[Op]) -> list[Op]:
    """The ops of a kernel in an order in which reductions come before all that none of them needs: sums that
    do not wait for each other share a walk."""
    needed: set[Value] = set()
    early: set[Op] = set()
    for op in reversed(ops):
        if op.name == "tensor.reduce" or not needed.isdisjoint(op.results):
            early.add(op)
            needed.update(op.operands)
    return [*(op for op in ops if op in early), *(op for op in ops if op not in early)]
