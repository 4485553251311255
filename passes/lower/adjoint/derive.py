"""Derives the adjoint of a graph op: its lowering on a scratch builder, then every tensor op transposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Attr, Value, backward_slice
from tilewright.ir.types import TensorType
from tilewright.passes.lower.adjoint import indexed, ordered, structured  # noqa: F401  (register transposes)
from tilewright.passes.lower.adjoint.bodies import live_body
from tilewright.passes.lower.adjoint.transposes import TRANSPOSES, Cotangents
from tilewright.passes.lower.lowering import RULES, converted, elementwise, nothing


def adjoint(
    b: Builder,
    of: str,
    attrs: Mapping[str, Attr],
    operands: Sequence[Value],
    cotangents: Mapping[int, Value],
    wrt: Sequence[int],
) -> list[Value]:
    """Append tensor ops for the cotangents of the operands `wrt` of the graph op `of`, of their types.

    operands: lowered ones. cotangents: of results by position; those of the others are zero. 16-bit floats
    are summed in float32 and rounded once. Raises UnsupportedError where the op, or one it is lowered to, has
    no derivative.
    """
    # Every operand has a value of its own, so that one that is given twice is still two.
    stands = [Value(v.type, v.hint) for v in operands]
    scratch = Builder(b.loc)
    results = _lowered(scratch, of, attrs, stands)
    back = [(results[k], g) for k, g in cotangents.items()]
    out = transposed(scratch, of, back, [stands[k] for k in wrt])
    return _kept(b, scratch, out, dict(zip(stands, operands, strict=True)))


def transposed(
    b: Builder, of: str, cotangents: Sequence[tuple[Value, Value]], wrt: Sequence[Value]
) -> list[Value]:
    """Append to the tensor ops in `b` the cotangents of values `wrt`, from pairs of a result and its own.

    of: what errors name as the op whose lowering the ops are.
    """
    forward = tuple(b.ops)
    c = Cotangents(b, of, forward, wrt)
    for v, g in cotangents:
        c.add(v, g)
    for op in reversed(forward):
        if any(c.get(r) is not None for r in op.results) and any(v in c.active for v in op.operands):
            if op.name not in TRANSPOSES:
                raise c.refused(op, "which has no transpose")
            TRANSPOSES[op.name](c, op)
    return [_final(c, v) for v in wrt]


def _lowered(b: Builder, of: str, attrs: Mapping[str, Attr], operands: Sequence[Value]) -> Sequence[Value]:
    """The results of the op `of`, lowered."""
    types = Builder(b.loc)
    types.emit(of, operands, attrs)
    (op,) = types.ops
    if not any(r.tensor.size for r in op.results):
        return [nothing(b, r.tensor) for r in op.results]
    return RULES[of](b, op, operands)


def _final(c: Cotangents, v: Value) -> Value:
    t = v.tensor
    g = c.get(v)
    if g is not None:
        return converted(c.b, g, TensorType(t.dtype, t.shape))
    return elementwise(c.b, [], t, lambda i, p: i.const(0.0, t.dtype))


def _kept(b: Builder, scratch: Builder, results: Sequence[Value], same: Mapping[Value, Value]) -> list[Value]:
    """Append the ops that the results need, on the true operands."""
    for op in backward_slice(scratch.ops, results):
        op = op.with_operands(tuple(same.get(v, v) for v in op.operands))
        b.append(op if op.body is None else replace(op, body=live_body(op.body)))
    return [same.get(v, v) for v in results]
