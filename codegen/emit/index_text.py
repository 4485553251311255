"""Index expressions and masks as C: exact floor semantics, the narrowest safe type, few comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.expr import BinOp, Expr, Sym
from tilewright.ir.simplify import interval, simplify

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
#: what surrounds a subexpression: nothing or a comparison, the left and right of a sum, a product
_SUM, _SUM_RIGHT, _PRODUCT, _PRODUCT_RIGHT = 1, 2, 3, 4

Ranges = Mapping[str, tuple[int, int]]


class IndexText:
    """Renders simplified expressions; `symbol` names a symbol in C, `wide` is the 64-bit integer type.

    `need` asks for a helper function of the prelude and returns its name.
    """

    def __init__(self, symbol: Callable[[str], str], need: Callable[[str, str], str], wide: str) -> None:
        self.symbol, self.need, self.wide = symbol, need, wide

    def render(self, e: Expr, ranges: Ranges, precedence: int = 0) -> str:
        """C text of `e` within `ranges`, in `int` where every intermediate value fits, else in 64 bits."""
        e = simplify(e, ranges)
        wide = not _fits(e, ranges)
        return self._text(e, ranges, wide, precedence)

    def is_wide(self, e: Expr, ranges: Ranges) -> bool:
        """Whether `render` needs 64-bit arithmetic for `e`."""
        return not _fits(simplify(e, ranges), ranges)

    def condition(self, mask: Sequence[Sequence[Expr]], ranges: Ranges) -> str | None:
        """C text that is true where the mask holds; None where it always holds, `0` where it never does."""
        terms: list[str] = []
        for e, low, high in mask:
            term = self._term(simplify(e, ranges), low, high, ranges)
            if term == "0":
                return "0"
            if term is not None and term not in terms:
                terms.append(term)
        return " && ".join(terms) if terms else None

    def _term(self, e: Expr, low: Expr, high: Expr, ranges: Ranges) -> str | None:
        above, below = (
            interval(simplify(e - low, ranges), ranges),
            interval(simplify(e - high, ranges), ranges),
        )
        if above[1] < 0 or below[0] >= 0:
            return "0"
        check_low, check_high = above[0] < 0, below[1] >= 0
        if check_low and check_high and low == 0 and isinstance(high, int) and not self.is_wide(e, ranges):
            return f"(unsigned int)({self.render(e, ranges)}) < {high}u"
        parts = []
        if check_low:
            parts.append(f"{self.render(e, ranges, _SUM)} >= {self.render(low, ranges, _SUM)}")
        if check_high:
            parts.append(f"{self.render(e, ranges, _SUM)} < {self.render(high, ranges, _SUM)}")
        return " && ".join(parts) if parts else None

    def _text(self, e: Expr, ranges: Ranges, wide: bool, precedence: int) -> str:
        if isinstance(e, int):
            text = str(e) if INT_MIN < e <= INT_MAX else f"(({self.wide}){e})"
            return text if e >= 0 or precedence == 0 else f"({text})"
        if isinstance(e, Sym):
            name = self.symbol(e.name)
            return f"({self.wide}){name}" if wide else name
        if e.op in ("min", "max"):
            sign = "<" if e.op == "min" else ">"
            a, b = (self._text(x, ranges, wide, _SUM) for x in (e.lhs, e.rhs))
            return f"({a} {sign} {b} ? {a} : {b})"
        if e.op in ("//", "%"):
            return self._divide(e, ranges, wide, precedence)
        p = _SUM if e.op in "+-" else _PRODUCT
        lhs = self._text(e.lhs, ranges, wide, p)
        text = f"{lhs} {e.op} {self._text(e.rhs, ranges, wide, p + 1)}"
        return f"({text})" if p < precedence else text

    def _divide(self, e: BinOp, ranges: Ranges, wide: bool, precedence: int) -> str:
        """C's `/` and `%` truncate: shift a possibly negative dividend by a multiple of the divisor."""
        low, _ = interval(e.lhs, ranges)
        if not isinstance(e.rhs, int) or low == float("-inf"):
            name = self.need("floordiv" if e.op == "//" else "floormod", "i64")
            a, b = (self._text(x, ranges, wide, 0) for x in (e.lhs, e.rhs))
            return f"{name}({a}, {b})"
        turns = 0 if low >= 0 else -(int(low) // e.rhs)
        shifted = simplify(e.lhs + turns * e.rhs, ranges) if turns else e.lhs
        text = f"{self._text(shifted, ranges, wide, _PRODUCT)} {'/' if e.op == '//' else '%'} {e.rhs}"
        if turns and e.op == "//":
            text = f"{text} - {turns}"
            return f"({text})" if precedence > _SUM else text
        # C's `a * b / c` associates to the left, so a quotient inside a product needs brackets.
        return f"({text})" if precedence >= _PRODUCT else text


def _fits(e: Expr, ranges: Ranges) -> bool:
    """Whether every subexpression of `e`, as emitted, stays within 32 bits."""
    low, high = interval(e, ranges)
    if low < INT_MIN or high > INT_MAX:
        return False
    if not isinstance(e, BinOp):
        return True
    if e.op in ("//", "%") and isinstance(e.rhs, int):
        low, high = interval(e.lhs, ranges)
        turns = 0 if low >= 0 else -(low // e.rhs)
        if high + turns * e.rhs > INT_MAX:
            return False
    return _fits(e.lhs, ranges) and _fits(e.rhs, ranges)
