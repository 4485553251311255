"""Which sets of ops can be one kernel, by index sets and not by op classes; and all such sets of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.ir import BinOp, Expr, Op
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import REDUCING, fills, reads
from tilewright.passes.analysis.index_sets import POINTWISE, recompute_cost
from tilewright.passes.analysis.row_groups import row_dims, rows_of
from tilewright.passes.tensor.fusion.op_graph import OpGraph, members

#: most additions per element that ops may cost which a kernel computes wherever it reads them
MAX_PROLOGUE_COST = 8
#: additions that a read with bounds checks counts for
CHECKED_READ_COST = 4
#: sets to look at for one function at most
MAX_SETS = 40_000
#: ops of one kernel at most
MAX_OPS = 24
#: ops that run in an order of their own: nothing shares a kernel with them
ORDERED = frozenset(
    {
        "tensor.scan",
        "tensor.scatter",
        "tensor.update_rows",
        "tensor.join_updates",
        "tensor.recur",
        COMMUNICATE,
    }
)


@dataclass(frozen=True)
class Refusal:
    """The reason why a set of ops is no kernel; `curable` where more ops can make it one."""

    reason: str
    curable: bool = False


def prologue_cost(op: Op) -> int:
    """Additions per point, and what bounds checks and divided indices of its operands cost."""
    divided = sum(_divides(e) for at in reads(op) for e in at) if op.name == "tensor.map" else 0
    checked = sum(f is not None for f in fills(op))
    return recompute_cost(op) + CHECKED_READ_COST * (checked + divided)


def _divides(e: Expr) -> bool:
    return isinstance(e, BinOp) and (e.op in ("//", "%") or _divides(e.lhs) or _divides(e.rhs))


def refusal(graph: OpGraph, ops: int) -> Refusal | None:
    """The reason why no kernel family lowers these ops as one kernel; None where one does.

    One contraction or window: what depends on it must be computed point by point, each from what the same
    thread has; it may be read by ops outside. Reductions: what depends on them stays within a row. Neither:
    all results that are stored have one shape. Ops that depend on no reduction of the set are computed
    wherever they are read, at most `MAX_PROLOGUE_COST` in all, and only stored where each point is computed
    once, or by reductions over rows where all that reads a map reads it within its row. A reason that is not
    curable holds for every larger set as well.
    """
    if not ops & (ops - 1):
        return None
    inside = list(members(ops))
    if len(inside) > MAX_OPS:
        return Refusal(f"more than {MAX_OPS} ops")
    anchors = [i for i in inside if graph.ops[i].name in REDUCING]
    if any(graph.ops[i].name not in POINTWISE and i not in anchors for i in inside):
        return Refusal("an op runs in an order of its own")
    facts = _Facts.of(graph, ops, inside, anchors)
    reason = _refused_reads(graph, facts) or _refused_recomputation(graph, facts)
    if reason is not None:
        return reason
    if any(graph.ops[i].name != "tensor.reduce" for i in anchors):
        return _refused_points(graph, facts)
    return _refused_rows(graph, facts) if anchors else _refused_maps(graph, facts)


def legal(graph: OpGraph, ops: int) -> str | None:
    """The reason why a set of ops cannot be one kernel; None where it can: it is connected and convex, and a
    kernel family lowers it."""
    if not graph.connected(ops):
        return "its ops share no values"
    if not graph.convex(ops):
        return "it would wait for itself"
    refused = refusal(graph, ops)
    return refused.reason if refused is not None else None


@dataclass(frozen=True)
class _Facts:
    """Members, reductions, what depends on one, what is computed wherever it is read, what is stored."""

    ops: int
    inside: list[int]
    anchors: list[int]
    bound: int
    again: int
    stored: int

    @classmethod
    def of(cls, graph: OpGraph, ops: int, inside: list[int], anchors: list[int]) -> _Facts:
        made = sum(1 << i for i in anchors)
        bound = 0
        for i in inside:
            if graph.preds[i] & (bound | made):
                bound |= 1 << i
        again = 0
        for i in reversed(inside):
            wherever = made >> i & 1 or again >> i & 1
            for e in graph.edges[i]:
                free = ops >> e.source & 1 and not (bound | made) >> e.source & 1
                if free and (wherever or not e.own):
                    again |= 1 << e.source
        return cls(ops, inside, anchors, bound, again, graph.stored(ops))


def _refused_reads(graph: OpGraph, facts: _Facts) -> Refusal | None:
    for i in facts.inside:
        for e in graph.edges[i]:
            if facts.ops >> e.source & 1:
                if e.view:
                    return Refusal("it reads a reinterpreted buffer, which needs the whole buffer")
                if e.data:
                    return Refusal("it gathers from what it computes, which must be in memory")
    return None


def _refused_recomputation(graph: OpGraph, facts: _Facts) -> Refusal | None:
    cost = sum(prologue_cost(graph.ops[i]) for i in members(facts.again))
    if cost > MAX_PROLOGUE_COST:
        return Refusal(f"{cost} additions per element would be computed wherever they are read")
    return None


def _refused_points(graph: OpGraph, facts: _Facts) -> Refusal | None:
    """Around one contraction or window: what depends on it reads what the same thread has."""
    if len(facts.anchors) > 1:
        return Refusal("two reductions, each with tiles of its own")
    (anchor,) = facts.anchors
    made = facts.bound | 1 << anchor
    for i in members(facts.bound):
        if graph.shapes[i] != graph.shapes[anchor]:
            return Refusal("an epilogue has another domain")
        if any(made >> e.source & 1 and not e.own for e in graph.edges[i]):
            return Refusal("an epilogue reads what another thread computes")
    if facts.stored & ~made:
        return Refusal("it stores what it computes before its reduction", curable=True)
    return None


def _refused_maps(graph: OpGraph, facts: _Facts) -> Refusal | None:
    shapes = {graph.shapes[i] for i in members(facts.stored)}
    if len(shapes) > 1:
        return Refusal("its results have different shapes", curable=True)
    if facts.stored & facts.again:
        return Refusal("it stores what it computes wherever it is read", curable=True)
    return None


def _refused_rows(graph: OpGraph, facts: _Facts) -> Refusal | None:
    """Around reductions: whatever depends on one stays within its row."""
    anchor = graph.ops[facts.anchors[0]]
    if any(graph.ops[i].name == "tensor.gather" for i in members(facts.bound)):
        return Refusal("a gather depends on a reduction over rows")
    group = [graph.ops[i] for i in facts.inside]
    rows = rows_of(group, anchor)
    if rows is None:
        return Refusal("an op crosses the rows of a reduction")
    before = [op for i in members(facts.stored) if (op := graph.ops[i]) not in rows]
    if any(op.name != "tensor.map" or row_dims(op, group, anchor) is None for op in before):
        return Refusal("it stores what it computes before its reduction, in no row", curable=True)
    return None


@dataclass(frozen=True)
class KernelSets:
    """Sets that can be one kernel, single ops included; `complete` unless there were too many to look at."""

    sets: list[int]
    complete: bool


def candidates(graph: OpGraph, most: int = MAX_SETS) -> KernelSets:
    """Every connected, convex set of ops that a kernel family lowers as one kernel.

    Sets grow by one neighbour at a time. That reaches all: a connected convex set always has a first or last
    op without which it stays connected and convex, and a reason that is not curable holds for every larger
    set.
    """
    singles = [1 << i for i in range(len(graph.ops))]
    kernel_sets = list(singles)
    seen: set[int] = set(singles)
    level = singles
    while level:
        grown: list[int] = []
        for ops in level:
            for v in _neighbours(graph, ops):
                larger = ops | 1 << v
                if larger in seen:
                    continue
                seen.add(larger)
                if not graph.convex(larger):
                    continue
                reason = refusal(graph, larger)
                if reason is None:
                    kernel_sets.append(larger)
                if reason is None or reason.curable:
                    grown.append(larger)
                if len(grown) + len(kernel_sets) > most:
                    return KernelSets(kernel_sets, False)
        level = grown
    return KernelSets(kernel_sets, True)


def _neighbours(graph: OpGraph, ops: int) -> Iterable[int]:
    around = 0
    for i in members(ops):
        around |= graph.preds[i] | graph.succs[i]
    return members(around & ~ops)
