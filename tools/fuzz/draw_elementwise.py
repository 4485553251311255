"""Draws elementwise ops, casts and selections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.tools.fuzz.program import INTEGERS, Entry, Program, Rejected

SMOOTH = (
    "exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "sigmoid", "tanh", "erf", "sin", "cos", "tan",
    "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "dropout",
)  # fmt: skip
#: operands for which they are defined and not too steep
DOMAINS = {
    "log": (0.2, 4.0), "log2": (0.2, 4.0), "log10": (0.2, 4.0), "sqrt": (0.1, 4.0), "rsqrt": (0.2, 4.0),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.2, 4.0), "tan": (-1.2, 1.2),
}  # fmt: skip
STEPS = ("floor", "ceil", "round", "trunc", "sign")
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _smooth(name: str, p: Program) -> None:
    low, high = DOMAINS.get(name, (-2.0, 2.0))
    x = p.pick(test=lambda e: name not in DOMAINS or bool(((e.wide > low) & (e.wide < high)).all()))
    p.emit(name, x)


def _narrow(name: str, p: Program) -> None:
    """A smooth op with a bounded domain, on a fresh value in it or on one squeezed into it."""
    low, high = DOMAINS[name]
    if p.chance(0.5):
        p.emit(name, p.fresh(p.shape(), p.dtype(), low, high))
        return
    (squeezed,) = p.emit("clip", p.pick(), a_min=low, a_max=high)
    p.emit(name, squeezed)


def _any_number(name: str, p: Program) -> None:
    p.emit(name, p.pick("number"))


def _step(name: str, p: Program) -> None:
    p.emit(name, p.pick(exact=True))


def _test(name: str, p: Program) -> None:
    p.emit(name, p.pick())


def _arithmetic(name: str, p: Program) -> None:
    x = p.pick("number")
    pair = [x, p.like(x)]
    p.emit(name, *(pair if p.chance(0.5) else pair[::-1]))


def _compare(name: str, p: Program) -> None:
    x = p.pick("number", exact=True)
    p.emit(name, x, p.like(x, exact=True))


def _divide(name: str, p: Program) -> None:
    x = p.pick("number")
    p.emit(name, x, p.like(x, *(1, 5) if x.dtype in INTEGERS else (0.5, 3.0)))


def _remainder(name: str, p: Program) -> None:
    """Divisors of both signs; C and Python disagree on the remainder of negative numbers."""
    x = p.pick("number", exact=True)
    divisors = p.like(
        x, *p.choose([(1, 5), (-5, -1)]) if x.dtype in INTEGERS else p.choose([(0.5, 3), (-3, -1)])
    )
    p.emit(name, x, divisors)


def _power(p: Program) -> None:
    x = p.fresh(p.shape(), p.dtype(), 0.2, 3.0)
    p.emit("power", x, p.like(x))


def _atan2(p: Program) -> None:
    x = p.pick()
    p.emit("atan2", x, p.like(x, 0.5, 2.0))


def _bits(name: str, p: Program) -> None:
    x = p.pick("integer")
    p.emit(name, x, p.like(x))


def _shift(name: str, p: Program) -> None:
    x = p.pick("integer", test=lambda e: bool((e.native >= 0).all()))
    p.emit(name, x, p.like(x, 0, 3))


def _logic(name: str, p: Program) -> None:
    x = _truth(p)
    p.emit(name, x, p.like(x))


def _truth(p: Program) -> Entry:
    if p.chance(0.5):
        return p.pick("bool")
    x = p.pick("number", exact=True)
    return p.emit(p.choose(COMPARISONS), x, p.like(x, exact=True))[0]


def _where(p: Program) -> None:
    a = p.pick("any")
    condition = p.fresh([1 if p.chance(0.2) else n for n in a.shape], "bool")
    p.emit("where", condition, a, p.like(a))


def _cast(p: Program) -> None:
    x = p.pick("any")
    dtype = p.dtype("any")
    narrowing = dtype in (*INTEGERS, "bool") and x.dtype not in (*INTEGERS, "bool")
    if narrowing and not x.exact:
        raise Rejected("rounding would decide an integer")
    if dtype == "u8" and bool((x.wide < 0).any()):
        raise Rejected("negative numbers have no unsigned value")
    p.emit("cast", x, dtype=dtype)


def _clip(p: Program) -> None:
    x = p.pick("number")
    low = p.integer(-2, 0) if x.dtype != "u8" else 0
    p.emit("clip", x, a_min=low, a_max=low + p.integer(1, 3))


DRAWERS: dict[str, Callable[[Program], object]] = {
    **{n: partial(_narrow if n in DOMAINS else _smooth, n) for n in SMOOTH},
    **{n: partial(_step, n) for n in STEPS},
    **{n: partial(_any_number, n) for n in ("abs", "negative", "relu", "copy")},
    **{n: partial(_test, n) for n in ("isnan", "isinf", "isfinite")},
    **{n: partial(_arithmetic, n) for n in ARITHMETIC},
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
}
