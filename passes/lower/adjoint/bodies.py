"""Scalar bodies of tensor ops, differentiated: cotangents of parameters, tangents of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import eq, ge, gt, le, lt, ne

from tilewright.ir.builder import Builder
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.simplify import Ranges, interval, simplify
from tilewright.ir.types import FLOATS


def wide(dtype: str) -> str:
    """The dtype in which cotangents of values of a dtype are calculated: float32 for 16 bits."""
    return {"f16": "f32", "bf16": "f32"}.get(dtype, dtype)


class Linearised:
    """The ops of a body written once more, and what is linear in cotangents or tangents behind them.

    values: of the parameters of the body. Derivatives are calculated in the `wide` dtypes.
    """

    def __init__(self, i: Scalars, body: Block, values: Sequence[Scalar]) -> None:
        self.i, self.body = i, body
        self.env: dict[Value, Scalar] = dict(zip(body.params, values, strict=True))
        self._wide: dict[Value, Scalar] = {}
        for op in body.ops[:-1]:
            results = i.builder.emit(
                op.name,
                [self.env[v].value for v in op.operands],
                op.attributes,
                types=[r.type for r in op.results],
            )
            self.env.update((r, Scalar(i.builder, v)) for r, v in zip(op.results, results, strict=True))

    def wide_value(self, v: Value) -> Scalar:
        """A value of the body in the dtype of its cotangent."""
        if v not in self._wide:
            x = self.env[v]
            self._wide[v] = self.i.cast(x, wide(x.dtype))
        return self._wide[v]

    def depends_on(self, sources: Sequence[Value]) -> set[Value]:
        """Values of floats of the body with a derivative by one of `sources` that is not zero everywhere."""
        active = set(sources)
        for op in self.body.ops[:-1]:
            if any(v in active and p is not None for v, p in zip(op.operands, partials_of(op), strict=True)):
                active.update(r for r in op.results if r.type.dtype in FLOATS)
        return active

    def cotangents(self, seeds: Mapping[Value, Scalar], wrt: Sequence[Value]) -> dict[Value, Scalar]:
        """What comes back to values `wrt` of the body from cotangents of some of its values."""
        active = self.depends_on(wrt)
        back = dict(seeds)
        for op in reversed(self.body.ops[:-1]):
            (result,) = op.results
            if result not in back or result not in active or result in wrt:
                continue
            for v, g in self._parts(op, dict.fromkeys(op.operands, back[result]), active):
                back[v] = back[v] + g if v in back else g
        return {v: back[v] for v in wrt if v in back}

    def tangents(self, seeds: Mapping[Value, Scalar]) -> dict[Value, Scalar]:
        """Tangents of all values of the body that depend on `seeds`, the tangents of some of them."""
        forward = dict(seeds)
        for op in self.body.ops[:-1]:
            (result,) = op.results
            for _, t in self._parts(op, forward, set(forward)):
                t = self.i.cast(t, wide(result.type.dtype))
                forward[result] = forward[result] + t if result in forward else t
        return forward

    def _parts(
        self, op: Op, factor: Mapping[Value, Scalar], active: set[Value]
    ) -> list[tuple[Value, Scalar]]:
        """Per active operand a factor times the derivative by it."""
        operands = [self.wide_value(v) for v in op.operands]
        result = self.wide_value(op.result)
        parts = []
        for v, partial in zip(op.operands, partials_of(op), strict=True):
            if partial is None or v not in active:
                continue
            part = partial(operands, result, factor[v])
            parts.append((v, self.i.cast(part, wide(v.type.dtype))))
        return parts


def partials_of(op: Op) -> Sequence[Callable[..., Scalar] | None]:
    """The partial derivatives of a scalar op by its operands; none by those that are no floats."""
    partials = op_def(op.name).partials
    if partials is None or len(op.results) != 1:
        raise UnsupportedError(f"{op.name} has no partial derivatives")
    smooth = op.result.type.dtype in FLOATS
    return [
        p if smooth and v.type.dtype in FLOATS else None for v, p in zip(op.operands, partials, strict=True)
    ]


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "scalar.lt": lt,
    "scalar.le": le,
    "scalar.gt": gt,
    "scalar.ge": ge,
    "scalar.eq": eq,
    "scalar.ne": ne,
}


def live_body(block: Block) -> Block:
    """The body without ops that nothing reads; parameters stay."""
    needed = set(block.ops[-1].operands)
    ops = [block.ops[-1]]
    for op in reversed(block.ops[:-1]):
        if needed.intersection(op.results):
            ops.append(op)
            needed.update(op.operands)
    return block.with_ops(tuple(reversed(ops)))


def used_params(block: Block) -> list[bool]:
    """Whether each parameter of a body is read."""
    read = {v for op in block.ops for v in op.operands}
    return [p in read for p in block.params]


def substituted(block: Block, env: Mapping[str, Expr], ranges: Ranges) -> Block:
    """The body with other dimensions in its index expressions; comparisons decided by `ranges` are folded."""
    b = Builder()
    same: dict[Value, Value] = {p: p for p in block.params}
    bounds: dict[Value, tuple[float, float]] = {}
    truth: dict[Value, bool] = {}
    for op in block.ops:
        operands = [same.get(v, v) for v in op.operands]
        attrs = op.attributes
        if op.name == "scalar.index":
            attrs["at"] = simplify(substitute(op.expr("at"), env), ranges)
            bounds[op.result] = interval(attrs["at"], ranges)
        elif op.name == "scalar.const" and type(attrs["value"]) is not bool:
            bounds[op.result] = (attrs["value"], attrs["value"])
        elif op.name in _COMPARISONS and all(v in bounds for v in op.operands):
            known = _decided(op.name, bounds[op.operands[0]], bounds[op.operands[1]])
            if known is not None:
                truth[op.result] = known
                same[op.result] = b.const(known, "bool")
                continue
        elif op.name in ("scalar.and", "scalar.or") and any(v in truth for v in op.operands):
            x, y = op.operands
            if x not in truth:
                x, y = y, x
            absorbing = truth[x] is (op.name == "scalar.or")
            kept = x if absorbing else y
            same[op.result] = same.get(kept, kept)
            if kept in truth:
                truth[op.result] = truth[kept]
            continue
        elif op.name == "scalar.not" and op.operands[0] in truth:
            truth[op.result] = not truth[op.operands[0]]
            same[op.result] = b.const(truth[op.result], "bool")
            continue
        elif op.name == "scalar.select" and op.operands[0] in truth:
            same[op.result] = operands[1 if truth[op.operands[0]] else 2]
            continue
        results = b.emit(op.name, operands, attrs, types=[r.type for r in op.results])
        same.update(zip(op.results, results, strict=True))
    return live_body(b.block(block.params))


def _decided(name: str, a: tuple[float, float], c: tuple[float, float]) -> bool | None:
    """The truth of a comparison of two intervals; none where it depends."""
    (al, ah), (cl, ch) = a, c
    if name in ("scalar.eq", "scalar.ne"):
        equal = False if ah < cl or ch < al else True if al == ah == cl == ch else None
        return equal if equal is None or name == "scalar.eq" else not equal
    compare, falls = _COMPARISONS[name], name in ("scalar.gt", "scalar.ge")
    always, sometimes = ((al, ch), (ah, cl)) if falls else ((ah, cl), (al, ch))
    if compare(*always):
        return True
    return None if compare(*sometimes) else False


def factors(block: Block) -> list[int] | None:
    """Positions of parameters whose product (each possibly cast to more bits) the body is; else None."""
    places = {p: k for k, p in enumerate(block.params)}
    made: dict[Value, list[int]] = {p: [k] for p, k in places.items()}
    for op in block.ops[:-1]:
        if op.name == "scalar.cast" and op.operands[0] in made and widens(op):
            made[op.result] = made[op.operands[0]]
        elif op.name == "scalar.mul" and all(v in made for v in op.operands):
            made[op.result] = made[op.operands[0]] + made[op.operands[1]]
    (out,) = block.ops[-1].operands
    product = made.get(out)
    return product if product is not None and len(set(product)) == len(product) else None


_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def widens(op: Op) -> bool:
    """Whether a cast of floats keeps every value."""
    source, target = op.operands[0].type.dtype, op.result.type.dtype
    return source == target or (source in FLOATS and target in FLOATS and _BITS[target] > _BITS[source])
