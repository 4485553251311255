"""The value of a scalar body where some of its parameters are known: numbers, or other values unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import ScalarType, numpy_dtype


@dataclass(frozen=True)
class Number:
    """A scalar that is this number."""

    value: float | int | bool


@dataclass(frozen=True)
class Unknown:
    """A scalar that is an element of this value, or whatever the op that makes this value gives."""

    of: object


Known = Number | Unknown


def yielded(body: Block, params: Sequence[Known]) -> list[Known]:
    """What a body yields where its parameters are known so far.

    Numbers that nothing is known of count as finite and as no divisor of zero: zero times them is zero. What
    is added to zero, or multiplied by one, is that value itself, up to the sign of a zero.
    """
    env: dict[Value, Known] = dict(zip(body.params, params, strict=True))
    for op in body.ops[:-1]:
        for r in op.results:
            env[r] = _result(op, r, [env[v] for v in op.operands])
    return [env[v] for v in body.ops[-1].operands]


def _result(op: Op, result: Value, x: Sequence[Known]) -> Known:
    numbers = [k.value for k in x if isinstance(k, Number)]
    if len(numbers) == len(x) and len(op.results) == 1 and op.name != "scalar.index":
        return _evaluated(op, numbers)
    rule = _RULES.get(op.name)
    known = rule(x) if rule is not None else None
    return Unknown(result) if known is None else known


def _evaluated(op: Op, numbers: Sequence[float | int | bool]) -> Known:
    definition, (result,) = op_def(op.name), op.results
    if definition.evaluate is None:
        return Unknown(result)
    kinds = [v.type for v in op.operands]
    arrays = [
        np.asarray(n).astype(numpy_dtype(t.dtype))
        for n, t in zip(numbers, kinds, strict=True)
        if isinstance(t, ScalarType)
    ]
    with np.errstate(all="ignore"):
        (value,) = definition.evaluate(arrays, op.attributes)
    return Number(np.asarray(value).astype(np.float64).item() if arrays else _plain(op["value"]))


def _plain(value: object) -> float | int | bool:
    assert isinstance(value, float | int | bool)
    return value


def _is(x: Known, number: float) -> bool:
    return isinstance(x, Number) and x.value == number


def _sum(x: Sequence[Known]) -> Known | None:
    a, b = x
    return b if _is(a, 0) else a if _is(b, 0) else None


def _difference(x: Sequence[Known]) -> Known | None:
    a, b = x
    return a if _is(b, 0) else None


def _product(x: Sequence[Known]) -> Known | None:
    a, b = x
    if _is(a, 0) or _is(b, 0):
        return Number(0)
    return b if _is(a, 1) else a if _is(b, 1) else None


def _quotient(x: Sequence[Known]) -> Known | None:
    a, b = x
    return a if _is(a, 0) or _is(b, 1) else None


def _fma(x: Sequence[Known]) -> Known | None:
    a, b, c = x
    return c if _is(a, 0) or _is(b, 0) else None


def _either(x: Sequence[Known]) -> Known | None:
    a, b = x
    return a if a == b else None


def _selected(x: Sequence[Known]) -> Known | None:
    condition, a, b = x
    if isinstance(condition, Number):
        return a if condition.value else b
    return a if a == b else None


_RULES: Mapping[str, Callable[[Sequence[Known]], Known | None]] = {
    "scalar.add": _sum,
    "scalar.sub": _difference,
    "scalar.mul": _product,
    "scalar.div": _quotient,
    "scalar.fma": _fma,
    "scalar.min": _either,
    "scalar.max": _either,
    "scalar.select": _selected,
}
