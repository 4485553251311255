"""Pass cse: equal ops are computed once, at the graph and the tensor level."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from tilewright.ir.nodes import Attr, Block, Func, Level, Op, Pairs, Value
from tilewright.ir.opdef import op_def
from tilewright.passes.analysis.backward_pass import ops_before_boundary
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.values import replace_in_op


@register_pass(Level.GRAPH, Level.TENSOR)
def cse(func: Func, ctx: PassContext) -> Func:
    """Replace an op without effects by an earlier one of the same name, operands, attributes, types and body.

    rewrite: %0 = graph.relu(%x); %1 = graph.relu(%x); graph.add(%0, %1)
        -->   %0 = graph.relu(%x); graph.add(%0, %0)

    What a backward pass computes again is not replaced by what the forward pass computed.
    """
    return func.with_body(_merge(func.body, ops_before_boundary(func)))


def _merge(block: Block, forward: Collection[Op] = ()) -> Block:
    alike: dict[Hashable, Op] = {}  # the first op of each name, operands and types
    compared: set[Hashable] = set()
    seen: dict[Hashable, Op] = {}
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    for original in block.ops:
        op = replace_in_op(original, new)
        if op.body is not None:
            body = _merge(op.body)
            op = op if body is op.body else replace(op, body=body)
        if not op_def(op.name).effects:
            side = bool(op.operands) and original in forward
            # Most ops differ in what they read: whole keys are made where two do not.
            brief = side, op.name, op.operands, tuple(r.type for r in op.results)
            first = alike.setdefault(brief, op)
            if first is not op:
                if brief not in compared:
                    compared.add(brief)
                    seen.setdefault((side, _op_key(first, {})), first)
                earlier = seen.setdefault((side, _op_key(op, {})), op)
                if earlier is not op:
                    new.update(zip(op.results, earlier.results, strict=True))
                    continue
        ops.append(op)
    return block.with_ops(tuple(ops))


def _op_key(op: Op, inner: Mapping[Value, int]) -> Hashable:
    """Equal for ops that compute the same; values of a surrounding body count by their number there."""
    operands = tuple(inner.get(v, v) for v in op.operands)
    types = tuple(r.type for r in op.results)
    attrs = tuple((k, _attr_key(a)) for k, a in op.attrs)
    return op.name, operands, attrs, types, None if op.body is None else _body_key(op.body, inner)


def _body_key(body: Block, outer: Mapping[Value, int]) -> Hashable:
    numbers = dict(outer)
    for p in body.params:
        numbers[p] = len(numbers)
    keys: list[Hashable] = [tuple(p.type for p in body.params)]
    for op in body.ops:
        keys.append(_op_key(op, numbers))
        for r in op.results:
            numbers[r] = len(numbers)
    return tuple(keys)


def _attr_key(a: Attr) -> Hashable:
    """A key that tells `1`, `1.0` and `true`, and `0.0` and `-0.0`, apart."""
    if isinstance(a, tuple):
        return tuple(map(_attr_key, a))
    if isinstance(a, Pairs):
        return tuple((k, _attr_key(v)) for k, v in a.items)
    return type(a), a.hex() if isinstance(a, float) else a
