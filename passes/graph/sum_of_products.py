"""Pass sum-of-products: a sum of products over different rows becomes one product over all of the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tilewright.costmodel import load_hardware
from tilewright.ir import Builder, Func, Level, Op, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import producers, replace_in_op, use_counts


@register_pass(Level.GRAPH, requires={"shapes-known"})
def sum_of_products(func: Func, ctx: PassContext, *, always: bool = False) -> Func:
    """Compute sums of products a_t^T b_t, such as the gradient of a weight used at every step, at once.

    rewrite:  %0 = graph.matmul(%a, %b, transpose_a = true); %1 = graph.matmul(%c, %d, transpose_a = true);
              %2 = graph.add(%0, %1)
        -->   %0 = graph.concatenate(%a, %c, axis = 0); %1 = graph.concatenate(%b, %d, axis = 0);
              %2 = graph.matmul(%0, %1, transpose_a = true)

    Only functions with a backward pass have such sums. They are rewritten where the estimate of the product
    and of both copies is not above that of the products and additions; what joins in place later takes less.
    always: whatever the estimates say.
    """
    if not forward_ops(func):
        return func
    hardware = None if always else ctx.hardware or load_hardware(ctx.target)

    def seconds(ops: Sequence[Op]) -> float:
        assert hardware is not None
        return sum(ctx.estimator.op_s(op, hardware) for op in ops)

    made_by, uses = producers(func.body), use_counts(func.body)
    replaced: dict[Value, Value] = {}
    before: dict[Op, list[Op]] = {}
    taken: set[Op] = set()
    for op in reversed(func.body.ops):
        if op.name != "graph.add" or op in taken:
            continue
        leaves, additions = _summands(op, made_by, uses)
        taken.update(additions)
        groups: dict[object, list[Op]] = defaultdict(list)
        for leaf in leaves:
            product = made_by.get(leaf)
            if product is not None and uses[leaf] == 1 and _over_rows(product):
                groups[product.attrs].append(product)
        merged = [g for g in groups.values() if len(g) > 1]
        if not merged:
            continue
        b = Builder(op.loc)
        members = {p.result for g in merged for p in g}
        total = None
        for value in (*(_joined(b, g) for g in merged), *(v for v in leaves if v not in members)):
            total = value if total is None else b.value("graph.add", total, value)
        old = [*additions, *(p for g in merged for p in g)]
        if hardware is not None and seconds(b.ops) > seconds(old):
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


def _over_rows(op: Op) -> bool:
    """Whether an op is a product of two matrices over their rows."""
    return (
        op.name == "graph.matmul"
        and op.result.tensor.rank == 2
        and op["transpose_a"] is True
        and op["transpose_b"] is False
    )


def _joined(b: Builder, products: Sequence[Op]) -> Value:
    """One product over the rows of all."""
    a, c = ([p.operands[k] for p in products] for k in (0, 1))
    joined = [b.emit("graph.concatenate", values, {"axis": 0})[0] for values in (a, c)]
    (result,) = b.emit("graph.matmul", joined, dict(products[0].attrs))
    return result
