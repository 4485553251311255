"""Pass sum-of-products: a sum of products becomes one product over all that the products sum over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tilewright.costmodel import load_hardware
from tilewright.ir import Builder, Func, Level, Op, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import producers, replace_in_op, use_counts


@register_pass(Level.GRAPH, requires={"shapes-known"})
def sum_of_products(func: Func, ctx: PassContext, *, always: bool = False) -> Func:
    """Compute sums of products a_t b_t, such as the gradient of a weight used at every step, at once.

    rewrite:  %0 = graph.matmul(%a, %b, transpose_a = true); %1 = graph.matmul(%c, %d, transpose_a = true);
              %2 = graph.add(%0, %1)
        -->   %0 = graph.concatenate(%a, %c, axis = 0); %1 = graph.concatenate(%b, %d, axis = 0);
              %2 = graph.matmul(%0, %1, transpose_a = true)

    So is what comes back from queries, keys and values, which are products of one input: a stacked sum, and a
    sum of sums over dimensions, such as the gradient of a bias that is added at every step. Only
    functions with a backward pass have such sums. They are rewritten where the estimate of the product
    and of both copies is not above that of the products and additions; what joins in place later takes less.
    always: whatever the estimates say.
    """
    return summed(func, ctx, always=always)


def seconds_beside(func: Func, ctx: PassContext) -> Callable[[Sequence[Op]], float]:
    """The estimate of ops beside a function: concatenations that it has already cost nothing."""
    known = {(op.operands, op.attrs) for op in func.body.ops if op.name == "graph.concatenate"}
    hardware = ctx.hardware or load_hardware(ctx.target)

    def seconds(ops: Sequence[Op]) -> float:
        new = (op for op in ops if op.name != "graph.concatenate" or (op.operands, op.attrs) not in known)
        return sum(ctx.estimator.op_s(op, hardware) for op in new)

    return seconds


@dataclass(frozen=True, eq=False)
class _Sum:
    """A sum: its values in order, the additions, and groups of products that may be one product each."""

    end: Op
    leaves: list[Value]
    additions: list[Op]
    merged: list[list[Op]]

    @property
    def factors(self) -> list[frozenset[Value]]:
        """What each of the products would join: first factors, and second ones."""
        return [
            frozenset(p.operands[k] for p in group)
            for group in self.merged
            for k in range(len(group[0].operands))
        ]


def joined_values(func: Func) -> list[list[frozenset[Value]]]:
    """The sets of factors that each sum of products of a function would join."""
    return [x.factors for x in _sums_of(func)]


def _sums_of(func: Func) -> Iterator[_Sum]:
    """The sums of a function that have products to join, the last one first."""
    made_by, uses = producers(func.body), use_counts(func.body)
    taken: set[Op] = set()
    for op in reversed(func.body.ops):
        if op.name != "graph.add" or op in taken:
            continue
        leaves, additions = _summands(op, made_by, uses)
        taken.update(additions)
        groups: dict[object, list[Op]] = defaultdict(list)
        for leaf in leaves:
            made = made_by.get(leaf)
            if made is None or uses[leaf] != 1:
                continue
            if _is_product(made):
                groups[made.attrs].append(made)
            elif _summed_axis(made) >= 0:
                groups[made.attrs, made.operands[0].type].append(made)
        merged = [g for g in groups.values() if len(g) > 1]
        if merged:
            yield _Sum(op, leaves, additions, merged)


def summed(func: Func, ctx: PassContext, values: Collection[frozenset[Value]] = (), *, always: bool) -> Func:
    """The function with sums of products as products; see the pass. What is joined already costs nothing.

    values: sets of factors that are joined at any price.
    """
    if not forward_ops(func):
        return func
    seconds = None if always else seconds_beside(func, ctx)
    replaced: dict[Value, Value] = {}
    before: dict[Op, list[Op]] = {}
    for found in _sums_of(func):
        op, leaves, additions, merged = found.end, found.leaves, found.additions, found.merged
        b = Builder(op.loc)
        members = {p.result for g in merged for p in g}
        total = None
        for value in (*(_joined(b, g) for g in merged), *(v for v in leaves if v not in members)):
            total = value if total is None else b.value("graph.add", total, value)
        old = [*additions, *(p for g in merged for p in g)]
        wanted = any(v in values for v in found.factors)
        if seconds is not None and not wanted and seconds(b.ops) > seconds(old):
            continue
        assert total is not None
        before[op] = b.ops
        replaced[op.result] = total
    if not replaced:
        return func
    ops: list[Op] = []
    for op in func.body.ops:
        ops += [replace_in_op(new, replaced) for new in before.get(op, ())]
        ops.append(replace_in_op(op, replaced))
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block)))


def _summands(last: Op, made_by: dict[Value, Op], uses: dict[Value, int]) -> tuple[list[Value], list[Op]]:
    """The values that a tree of additions adds, in order, and the additions; sums used elsewhere stay."""
    leaves: list[Value] = []
    additions: list[Op] = []
    pending = [last.result]
    while pending:
        value = pending.pop()
        op = made_by.get(value)
        inner = op is not None and op.name == "graph.add" and (op is last or uses[value] == 1)
        if op is not None and inner and all(v.type == value.type for v in op.operands):
            additions.append(op)
            pending += reversed(op.operands)
        else:
            leaves.append(value)
    return leaves, additions


def _is_product(op: Op) -> bool:
    """Whether an op is a product of two matrices."""
    return op.name == "graph.matmul" and op.result.tensor.rank == 2


def _summed_axis(op: Op) -> int:
    """The first dimension that a sum is over; -1 of other ops, and of sums that name none."""
    axes = op["axis"] if op.name == "graph.sum" else ()
    if not isinstance(axes, tuple) or not axes or not isinstance(axes[0], int):
        return -1
    return axes[0] % op.operands[0].tensor.rank


def _joined(b: Builder, products: Sequence[Op]) -> Value:
    """One product over what all sum over: rows of a first factor that is transposed, else columns.

    Of sums over dimensions, one sum over the first of these, along which their operands are joined.
    """
    first = products[0]
    if _is_product(first):
        axes: tuple[int, ...] = (0 if first["transpose_a"] else 1, 1 if first["transpose_b"] else 0)
    else:
        axes = (_summed_axis(first),)
    joined = [
        b.emit("graph.concatenate", [p.operands[k] for p in products], {"axis": axis})[0]
        for k, axis in enumerate(axes)
    ]
    (result,) = b.emit(first.name, joined, dict(first.attrs))
    return result
