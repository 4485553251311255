"""Intervals of the numbers that maps compute, from the types of what they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf, isnan

import ml_dtypes
import numpy as np

from tilewright.ir.nodes import Func, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.tensor.ops import fills
from tilewright.ir.types import FLOATS, storage_dtype

#: the least and the largest number
Interval = tuple[float, float]
ALL: Interval = (-inf, inf)

#: functions that rise wherever they are defined: an interval's ends give the ends of the result
_RISING = frozenset(f"scalar.{n}" for n in ("exp", "exp2", "erf", "tanh", "atan", "sigmoid"))
#: those that fall, and those that swing between -1 and 1
_FALLING, _SWINGING = frozenset({"scalar.erfc", "scalar.neg"}), frozenset({"scalar.sin", "scalar.cos"})
#: what is one of its last two operands: which of their lower and of their upper ends are those of the result
_ENDS = {"scalar.select": (min, max), "scalar.min": (min, min), "scalar.max": (max, max)}


def range_of_type(dtype: str) -> Interval:
    """The finite numbers of an element type; all numbers for float32 and wider."""
    if dtype == "bool":
        return (0.0, 1.0)
    if dtype not in FLOATS:
        limits = np.iinfo(storage_dtype(dtype))
        return (float(limits.min), float(limits.max))
    if dtype in ("f32", "f64"):
        return ALL
    largest = float(ml_dtypes.finfo(storage_dtype(dtype)).max)  # type: ignore[no-untyped-call]
    return (-largest, largest)


def ranges_in(kernel: Func) -> Callable[[Value], Interval]:
    """A function that gives the interval of the elements of a value of the kernel, by its maps.

    What is stored in a type is finite in it: a number beyond that range is no concern of those who read it.
    """
    made = {r: op for op in kernel.body.ops for r in op.results}
    known: dict[Value, Interval] = {}

    def element(v: Value) -> Interval:
        if v not in known:
            op, within = made.get(v), range_of_type(v.tensor.dtype)
            if op is not None and op.name == "tensor.map" and op.body is not None:
                filled = tuple(f for f in fills(op) if f is not None)
                given = [element(x) for x in op.operands]
                within = _meet(within, _yielded(op, given, filled))
            known[v] = within
        return known[v]

    return element


def _yielded(op: Op, operands: Sequence[Interval], filled: Sequence[object]) -> Interval:
    """The interval of the only result of a map; all numbers where it has several."""
    assert op.body is not None
    if len(op.results) != 1 or any(not isinstance(f, (int, float)) for f in filled):
        return ALL
    outside = [float(f) for f in filled if isinstance(f, (int, float))]
    given = [(min(low, *outside), max(high, *outside)) if outside else (low, high) for low, high in operands]
    env: dict[Value, Interval] = dict(zip(op.body.params, given, strict=True))
    for o in op.body.ops:
        if o.name == "scalar.yield":
            return env[o.operands[0]]
        for r in o.results:
            env[r] = _meet(_scalar(o, env), range_of_type(r.type.dtype))
    return ALL


def _scalar(op: Op, env: Mapping[Value, Interval]) -> Interval:
    """The interval of what a scalar op gives, whatever its type."""
    x = [env[v] for v in op.operands]
    if op.name == "scalar.const":
        number = float(op["value"])  # type: ignore[arg-type]
        return ALL if isnan(number) else (number, number)
    if op.name == "scalar.cast":
        return x[0]
    if op.name in _RISING or op.name in _FALLING:
        ends = sorted(_at(op.name, end) for end in x[0])
        return (ends[0], ends[1])
    if op.name in _SWINGING:
        return (-1.0, 1.0)
    if op.name in _ENDS:
        least, most = _ENDS[op.name]
        return (least(low for low, _ in x[-2:]), most(high for _, high in x[-2:]))
    if op.name == "scalar.add":
        return (x[0][0] + x[1][0], x[0][1] + x[1][1])
    if op.name == "scalar.sub":
        return (x[0][0] - x[1][1], x[0][1] - x[1][0])
    if op.name == "scalar.mul":
        return _products(x[0], x[1])
    if op.name == "scalar.div" and (x[1][0] > 0 or x[1][1] < 0):
        return _products(x[0], (1 / x[1][1], 1 / x[1][0]))
    return ALL


def _at(name: str, end: float) -> float:
    evaluate = op_def(name).evaluate
    assert evaluate is not None
    with np.errstate(all="ignore"):
        (found,) = evaluate([np.asarray(end)], {})
    return float(found)


def _products(a: Interval, b: Interval) -> Interval:
    """All products; an end of infinity stands for any large number, so that times zero is zero."""
    found = [0.0 if 0 in (x, y) else x * y for x, y in product(a, b)]
    return (min(found), max(found))


def _meet(a: Interval, b: Interval) -> Interval:
    return (max(a[0], b[0]), min(a[1], b[1]))
