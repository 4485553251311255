"""Maps written into the bodies of the ops that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir import Op, Value
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.nodes import Attr
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.passes.rewriting.values import copied_ops, with_indices


def with_bodies(op: Op, maps: Mapping[Value, Op]) -> Op:
    """The map or sum with the bodies of the maps that it reads in the place of their results.

    maps: by their results. What is read beyond the bounds of a result stays as it is.
    """
    inside = {i for i, v in enumerate(op.operands) if v in maps and fills(op)[i] is None}
    if not inside or op.body is None:
        return op
    operands: list[Value] = []
    indices: list[tuple[Expr, ...]] = []
    outside: list[Attr] = []
    params: list[Value] = []
    body: list[Op] = []
    new: dict[Value, Value] = {}
    for i, value in enumerate(op.operands):
        if i not in inside:
            operands.append(value)
            indices.append(tuple(reads(op)[i]))
            outside.append(fills(op)[i])
            params.append(op.body.params[i])
            continue
        source = maps[value]
        assert source.body is not None
        env = dict(zip(dims(source, "par"), reads(op)[i], strict=True))
        own = [Value(p.type, p.hint) for p in source.body.params]
        operands += source.operands
        indices += [_placed(at, env, op) for at in reads(source)]
        outside += fills(source)
        params += own
        values = dict(zip(source.body.params, own, strict=True))
        *ops, last = _indexed(source, env, op).body.ops  # type: ignore[union-attr]
        body += copied_ops(ops, values)
        new[op.body.params[i]] = values.get(last.operands[0], last.operands[0])
    body += [o.with_operands(tuple(new.get(v, v) for v in o.operands)) for o in op.body.ops]
    attrs: dict[str, Attr] = {"reads": tuple(indices)}
    if op.get("fill") or any(fill is not None for fill in outside):
        attrs["fill"] = tuple(outside)
    params += op.body.params[len(op.operands) :]  # the totals of a sum
    block = replace(op.body, params=tuple(params), ops=tuple(body))
    return replace(op.with_attrs(**attrs), operands=tuple(operands), body=block)


def _placed(at: Sequence[Expr], env: dict[str, Expr], reader: Op) -> tuple[Expr, ...]:
    return tuple(simplify(substitute(e, env), ranges_of(reader)) for e in at)


def _indexed(source: Op, env: dict[str, Expr], reader: Op) -> Op:
    """The map with the indices in its body as its reader has them."""
    return with_indices(source, lambda e: simplify(substitute(e, env), ranges_of(reader)))
