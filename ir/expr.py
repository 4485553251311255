"""Index expressions: integer arithmetic over named symbols (loop variables, thread and block indices).

`//` and `%` are floor division and its remainder (divisor positive), so the usual identities hold exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.slot_setters import slot_setters

OPERATORS = ("+", "-", "*", "//", "%", "min", "max")
_KNOWN = frozenset(OPERATORS)


#: words that mean something else where an expression may stand
_RESERVED = frozenset({"true", "false", "none", "inf", "nan"})
_SYMBOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*(\.[a-zA-Z0-9_]+)*")


@lru_cache(maxsize=4096)
def check_symbol(name: str) -> None:
    """Raise InputError unless `name` can be written as a symbol: plain or dotted, no literal."""
    if not _SYMBOL.fullmatch(name) or name in _RESERVED:
        raise InputError(f"expected a symbol such as n, kh or bid.x, got '{name}'")


class _Arithmetic:
    """Operators that build expressions; constants fold at once.

    Between two plain integers Python's own operators give the same integer, so `a * n + b` is right for any
    mix of integers and expressions. `minimum` and `maximum` below stand where Python has no operator.
    """

    __slots__ = ()

    def __add__(self, other: Expr) -> Expr:
        return binary("+", self, other)  # type: ignore[arg-type]

    def __radd__(self, other: Expr) -> Expr:
        return binary("+", other, self)  # type: ignore[arg-type]

    def __sub__(self, other: Expr) -> Expr:
        return binary("-", self, other)  # type: ignore[arg-type]

    def __rsub__(self, other: Expr) -> Expr:
        return binary("-", other, self)  # type: ignore[arg-type]

    def __mul__(self, other: Expr) -> Expr:
        return binary("*", self, other)  # type: ignore[arg-type]

    def __rmul__(self, other: Expr) -> Expr:
        return binary("*", other, self)  # type: ignore[arg-type]

    def __floordiv__(self, other: Expr) -> Expr:
        return binary("//", self, other)  # type: ignore[arg-type]

    def __mod__(self, other: Expr) -> Expr:
        return binary("%", self, other)  # type: ignore[arg-type]

    def __rfloordiv__(self, other: Expr) -> Expr:
        return binary("//", other, self)  # type: ignore[arg-type]

    def __rmod__(self, other: Expr) -> Expr:
        return binary("%", other, self)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, init=False)
class Sym(_Arithmetic):
    """A named integer: an iteration dimension, a loop variable, `tid`, `bid.x`, ..."""

    name: str

    def __init__(self, name: str) -> None:
        check_symbol(name)
        _set_name(self, name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


(_set_name,) = slot_setters(Sym)


@dataclass(frozen=True, slots=True, init=False)
class BinOp(_Arithmetic):
    """`lhs op rhs` with op one of `OPERATORS`."""

    op: str
    lhs: Expr
    rhs: Expr
    #: expressions are keys of memos: hashing one again must not walk its tree
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(self, op: str, lhs: Expr, rhs: Expr) -> None:
        if op not in _KNOWN:
            raise InputError(f"expected an index operator among {' '.join(OPERATORS)}, got '{op}'")
        _set_op(self, op)
        _set_lhs(self, lhs)
        _set_rhs(self, rhs)
        _set_hash(self, hash((op, lhs, rhs)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not BinOp:
            return NotImplemented
        return (
            self._hash == other._hash
            and self.op == other.op
            and self.lhs == other.lhs
            and self.rhs == other.rhs
        )

    def __reduce__(self) -> tuple[type[BinOp], tuple[str, Expr, Expr]]:
        return BinOp, (self.op, self.lhs, self.rhs)  # hashes of text differ between processes

    def __str__(self) -> str:
        return show_expr(self)


_set_op, _set_lhs, _set_rhs, _set_hash = slot_setters(BinOp)

Expr = int | Sym | BinOp


def binary(op: str, lhs: Expr, rhs: Expr) -> Expr:
    """`lhs op rhs`, folded for constants and neutral elements; InputError for a constant divisor <= 0."""
    if isinstance(rhs, int):
        if rhs <= 0 and op in ("//", "%"):
            raise InputError(f"expected a positive divisor in an index expression, got {rhs}")
        if isinstance(lhs, int):
            return _fold(op, lhs, rhs)
        if rhs == 0:
            if op in ("+", "-"):
                return lhs
            if op == "*":
                return 0
        elif rhs == 1:
            if op in ("*", "//"):
                return lhs
            if op == "%":
                return 0
    elif isinstance(lhs, int):
        if lhs == 0:
            if op == "+":
                return rhs
            if op == "*":
                return 0
        elif lhs == 1 and op == "*":
            return rhs
    return BinOp(op, lhs, rhs)


def _fold(op: str, a: int, b: int) -> int:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "min":
            return min(a, b)
    return max(a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """The smaller of two index expressions."""
    return binary("min", a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger of two index expressions."""
    return binary("max", a, b)


def symbols(e: Expr) -> Iterator[str]:
    """Names of all symbols in `e`, with repetitions, left to right."""
    stack: list[Expr] = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Sym):
            yield x.name
        elif isinstance(x, BinOp):
            stack += (x.rhs, x.lhs)


def substitute(e: Expr, env: Mapping[str, Expr]) -> Expr:
    """`e` with every symbol of `env` replaced."""
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return env.get(e.name, e)
    lhs, rhs = substitute(e.lhs, env), substitute(e.rhs, env)
    return e if lhs is e.lhs and rhs is e.rhs else binary(e.op, lhs, rhs)


def evaluate(e: Expr, env: Mapping[str, int | np.ndarray]) -> int | np.ndarray:
    """Value of `e`; symbols are integers or broadcastable arrays. KeyError names a missing symbol."""
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return env[e.name]
    a, b = evaluate(e.lhs, env), evaluate(e.rhs, env)
    if isinstance(a, int) and isinstance(b, int):
        return _fold(e.op, a, b)
    match e.op:
        case "min":
            return np.minimum(a, b)
        case "max":
            return np.maximum(a, b)
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
    return a % b


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def show_expr(e: Expr, precedence: int = 0) -> str:
    """Text of `e` with the fewest parentheses; parses back to the same tree."""
    if isinstance(e, int):
        return str(e) if e >= 0 or precedence == 0 else f"({e})"
    if isinstance(e, Sym):
        return e.name
    if e.op in ("min", "max"):
        return f"{e.op}({show_expr(e.lhs)}, {show_expr(e.rhs)})"
    p = _PRECEDENCE[e.op]
    lhs = show_expr(e.lhs, p) if not (isinstance(e.lhs, int) and e.lhs < 0) else f"({e.lhs})"
    text = f"{lhs} {e.op} {show_expr(e.rhs, p + 1)}"
    return f"({text})" if p < precedence else text
