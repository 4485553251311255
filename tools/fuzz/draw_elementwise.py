"""Draws elementwise ops, casts and selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tilewright.ir import REQUIRED, InputError, OpDef, TensorType, op_defs
from tilewright.ir.facts import Elements
from tilewright.tools.fuzz.program import INTEGERS, DrawnValue, RandomGraph, Rejected

#: operands for which they are defined and not too steep
DOMAINS = {
    "log": (0.2, 4.0), "log2": (0.2, 4.0), "log10": (0.2, 4.0), "sqrt": (0.1, 4.0), "rsqrt": (0.2, 4.0),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.2, 4.0), "tan": (-1.2, 1.2),
}  # fmt: skip
STEPS = ("floor", "ceil", "round", "trunc", "sign")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _plain(d: OpDef, p: RandomGraph) -> None:
    """An op that takes what it is given: any numbers, or any floats where it takes no integers."""
    x = p.pick("number" if _takes(d, "i32") else "float")
    operands = [x, *(p.like(x) for _ in d.operands[1:])]
    p.emit(d.name.removeprefix("graph."), *(operands if p.chance(0.5) else operands[::-1]))


def _takes(d: OpDef, dtype: str) -> bool:
    """Return whether the op takes operands of this dtype, with the defaults of its attributes."""
    assert d.infer is not None
    try:
        d.infer([TensorType(dtype, (1,))] * len(d.operands), dict(d.complete({})))
    except InputError:
        return False
    return True


def _plain_ops() -> Mapping[str, OpDef]:
    """Elementwise ops of floats whose attributes all have defaults."""
    elementwise = (d for d in op_defs() if d.facts is not None and d.facts.elements is Elements.MAPS)
    complete = (d for d in elementwise if all(a.default is not REQUIRED for a in d.attrs.values()))
    return {d.name.removeprefix("graph."): d for d in complete if _takes(d, "f32")}


def _narrow(name: str, p: RandomGraph) -> None:
    """A smooth op with a bounded domain, on a fresh value in it or on one squeezed into it."""
    low, high = DOMAINS[name]
    if p.chance(0.5):
        p.emit(name, p.fresh(p.shape(), p.dtype(), low, high))
        return
    (squeezed,) = p.emit("clip", p.pick(), a_min=low, a_max=high)
    p.emit(name, squeezed)


def _step(name: str, p: RandomGraph) -> None:
    p.emit(name, p.pick(exact=True))


def _compare(name: str, p: RandomGraph) -> None:
    x = p.pick("number", exact=True)
    p.emit(name, x, p.like(x, exact=True))


def _divide(name: str, p: RandomGraph) -> None:
    x = p.pick("number")
    p.emit(name, x, p.like(x, *(1, 5) if x.dtype in INTEGERS else (0.5, 3.0)))


def _remainder(name: str, p: RandomGraph) -> None:
    """Divisors of both signs; C and Python disagree on the remainder of negative numbers."""
    x = p.pick("number", exact=True)
    divisors = p.like(
        x, *p.choose([(1, 5), (-5, -1)]) if x.dtype in INTEGERS else p.choose([(0.5, 3), (-3, -1)])
    )
    p.emit(name, x, divisors)


def _power(p: RandomGraph) -> None:
    x = p.fresh(p.shape(), p.dtype(), 0.2, 3.0)
    p.emit("power", x, p.like(x))


def _atan2(p: RandomGraph) -> None:
    x = p.pick()
    p.emit("atan2", x, p.like(x, 0.5, 2.0))


def _bits(name: str, p: RandomGraph) -> None:
    x = p.pick("integer")
    p.emit(name, x, p.like(x))


def _shift(name: str, p: RandomGraph) -> None:
    x = p.pick("integer", test=lambda e: bool((e.native >= 0).all()))
    p.emit(name, x, p.like(x, 0, 3))


def _logic(name: str, p: RandomGraph) -> None:
    x = _truth(p)
    p.emit(name, x, p.like(x))


def _truth(p: RandomGraph) -> DrawnValue:
    if p.chance(0.5):
        return p.pick("bool")
    x = p.pick("number", exact=True)
    return p.emit(p.choose(COMPARISONS), x, p.like(x, exact=True))[0]


def _where(p: RandomGraph) -> None:
    a = p.pick("any")
    condition = p.fresh([1 if p.chance(0.2) else n for n in a.shape], "bool")
    p.emit("where", condition, a, p.like(a))


def _cast(p: RandomGraph) -> None:
    x = p.pick("any")
    dtype = p.dtype("any")
    narrowing = dtype in (*INTEGERS, "bool") and x.dtype not in (*INTEGERS, "bool")
    if narrowing and not x.exact:
        raise Rejected("rounding would decide an integer")
    if dtype == "u8" and bool((x.wide < 0).any()):
        raise Rejected("negative numbers have no unsigned value")
    p.emit("cast", x, dtype=dtype)


def _clip(p: RandomGraph) -> None:
    x = p.pick("number")
    low = p.integer(-2, 0) if x.dtype != "u8" else 0
    p.emit("clip", x, a_min=low, a_max=low + p.integer(1, 3))


#: ops that must be drawn with more care than `_plain` takes: where they are defined, steep or have steps
_CAREFUL: dict[str, Callable[[RandomGraph], object]] = {
    **{n: partial(_narrow, n) for n in DOMAINS},
    **{n: partial(_step, n) for n in STEPS},
    **{n: partial(_compare, n) for n in COMPARISONS},
    **{n: partial(_logic, n) for n in ("logical_and", "logical_or", "logical_xor")},
    **{n: partial(_bits, n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{n: partial(_shift, n) for n in ("left_shift", "right_shift")},
    **{n: partial(_remainder, n) for n in ("floor_divide", "floor_mod", "mod")},
    "divide": partial(_divide, "divide"),
    "power": _power,
    "atan2": _atan2,
    "logical_not": lambda p: p.emit("logical_not", _truth(p)),
    "bitwise_not": lambda p: p.emit("bitwise_not", p.pick("integer")),
    "where": _where,
    "cast": _cast,
    "clip": _clip,
    "leaky_relu": lambda p: p.emit("leaky_relu", p.pick(), alpha=p.choose([0.01, 0.25])),
    "copy": lambda p: p.emit("copy", p.pick("number")),
    "stop_gradient": lambda p: p.emit("stop_gradient", p.pick("number")),
    "dropout": lambda p: p.emit("dropout", p.pick()),
}
#: all other elementwise ops are drawn as their definitions say
DRAWERS: Mapping[str, Callable[[RandomGraph], object]] = {
    **{name: partial(_plain, d) for name, d in _plain_ops().items()},
    **_CAREFUL,
}
