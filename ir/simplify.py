"""Exact simplification of index expressions under known symbol ranges, and the facts derived from it.

An expression becomes a linear form: a constant plus integer multiples of atoms, where an atom is a symbol or
a simplified non-linear term (`//`, `%`, `min`, `max`, a product of symbols).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from tilewright.ir.expr import BinOp, Expr, Sym, show_expr
from tilewright.ir.slot_setters import slot_setters

#: inclusive bounds of each symbol; a symbol without an entry is unbounded.
Ranges = Mapping[str, tuple[int, int]]
_INF = float("inf")
_UNBOUNDED = (-_INF, _INF)


@dataclass(frozen=True, slots=True, init=False)
class Linear:
    """`constant + sum(coefficient * atom)`; atoms are distinct, coefficients non-zero."""

    terms: tuple[tuple[Sym | BinOp, int], ...]
    constant: int = 0

    def __init__(self, terms: tuple[tuple[Sym | BinOp, int], ...], constant: int = 0) -> None:
        _set_terms(self, terms)
        _set_constant(self, constant)

    @classmethod
    def of(cls, terms: Mapping[Sym | BinOp, int], constant: int) -> Linear:
        """Drop zero coefficients and order terms: largest multiple first, then by text."""
        nonzero = [(a, c) for a, c in terms.items() if c != 0]
        if len(nonzero) > 1:
            nonzero.sort(key=lambda t: (-abs(t[1]), show_expr(t[0])))
        return cls(tuple(nonzero), constant)

    def expr(self) -> Expr:
        """The expression, in canonical order."""
        out: Expr = 0
        for atom, c in self.terms:
            if c < 0 and out != 0:
                out -= atom * -c
            else:
                out += atom * c
        if self.constant < 0 and out != 0:
            return out - -self.constant
        return out + self.constant


_set_terms, _set_constant = slot_setters(Linear)


class _KnownRanges(dict[str, tuple[int, int]]):
    """Ranges with the linear forms found under them: kernels ask for the same ones thousands of times."""

    __slots__ = ("bounds", "forms", "simplified")

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.forms: dict[BinOp, Linear] = {}
        self.simplified: dict[BinOp, Expr] = {}
        self.bounds: dict[BinOp, tuple[float, float]] = {}


_SCOPES: dict[tuple[tuple[str, tuple[int, int]], ...], _KnownRanges] = {}
#: more ranges than these are not remembered, nor more forms under equal ranges
_MOST_SCOPES, _MOST_FORMS = 256, 4096
#: the ranges that were asked about last: most questions that follow one another are about the same ranges,
#: and to compare them takes a third of the time that it takes to hash them
_LAST = [_KnownRanges({})]


def _scope_of(ranges: Ranges) -> _KnownRanges:
    if type(ranges) is _KnownRanges:
        return ranges
    scope: _KnownRanges | None = _LAST[0]
    if scope == ranges:
        return scope
    key = tuple(ranges.items())
    scope = _SCOPES.get(key)
    if scope is None:
        if len(_SCOPES) >= _MOST_SCOPES:
            _SCOPES.clear()
        scope = _SCOPES[key] = _KnownRanges(ranges)
    _LAST[0] = scope
    return scope


def simplify(e: Expr, ranges: Ranges | None = None) -> Expr:
    """An equal expression in canonical form; exact for every value of the symbols within `ranges`."""
    if not isinstance(e, BinOp):
        return e if isinstance(e, int) else linear(e, ranges or {}).expr()
    scope = _scope_of(ranges or {})
    out = scope.simplified.get(e)
    if out is None:
        out = linear(e, scope).expr()
        if len(scope.simplified) >= _MOST_FORMS:
            scope.simplified.clear()
        scope.simplified[e] = out
    return out


def linear(e: Expr, ranges: Ranges) -> Linear:
    """The linear form of `e`, non-linear parts simplified into atoms."""
    if isinstance(e, int):
        return Linear((), e)
    if isinstance(e, Sym):
        lo, hi = ranges.get(e.name, _UNBOUNDED)
        return Linear((), int(lo)) if lo == hi else Linear(((e, 1),))
    scope = _scope_of(ranges)
    form = scope.forms.get(e)
    if form is None:
        form = _linear(e, scope)
        if len(scope.forms) >= _MOST_FORMS:
            scope.forms.clear()
        scope.forms[e] = form
    return form


def _linear(e: BinOp, ranges: Ranges) -> Linear:
    a, b = linear(e.lhs, ranges), linear(e.rhs, ranges)
    if e.op in ("//", "%") and not b.terms and b.constant <= 0:
        return Linear(((e, 1),))  # undefined at every point: kept as it is
    match e.op:
        case "+":
            return _add(a, b, 1, ranges)
        case "-":
            return _add(a, b, -1, ranges)
        case "*":
            return _multiply(a, b)
        case "//":
            return _floordiv(a, b, ranges)
        case "%":
            return _modulo(a, b, ranges)
    return _extreme(e.op, a, b, ranges)


def _add(a: Linear, b: Linear, sign: int, ranges: Ranges) -> Linear:
    terms = dict(a.terms)
    for atom, c in b.terms:
        terms[atom] = terms.get(atom, 0) + sign * c
    return _recombine(terms, a.constant + sign * b.constant, ranges)


def _recombine(terms: dict[Sym | BinOp, int], constant: int, ranges: Ranges) -> Linear:
    """Apply `(x // c) * c*k + (x % c) * k = x * k`."""
    for atom in list(terms):
        if not (isinstance(atom, BinOp) and atom.op == "%" and isinstance(atom.rhs, int)) or not terms.get(
            atom
        ):
            continue
        k = terms[atom]
        if k * atom.rhs not in terms.values():
            continue
        quotient = linear(atom.lhs // atom.rhs, ranges).expr()
        if not isinstance(quotient, BinOp | Sym):
            continue
        if terms.get(quotient, 0) == k * atom.rhs:
            del terms[atom], terms[quotient]
            whole = linear(atom.lhs, ranges)
            for inner, c in whole.terms:
                terms[inner] = terms.get(inner, 0) + k * c
            return _recombine(terms, constant + k * whole.constant, ranges)
    return Linear.of(terms, constant)


def _multiply(a: Linear, b: Linear) -> Linear:
    if not b.terms:
        a, b = b, a
    if not a.terms:
        return Linear.of({t: c * a.constant for t, c in b.terms}, b.constant * a.constant)
    lhs, rhs = sorted((a.expr(), b.expr()), key=show_expr)
    return Linear(((BinOp("*", lhs, rhs), 1),))


def _split(a: Linear, d: int) -> tuple[Linear, Linear]:
    """`a = d * q + r` with every coefficient of r in [0, d)... kept as given when not a multiple of d."""
    q = {t: c // d for t, c in a.terms if c % d == 0}
    r = {t: c for t, c in a.terms if c % d != 0}
    return Linear.of(q, a.constant // d), Linear.of(r, a.constant % d)


def _floordiv(a: Linear, b: Linear, ranges: Ranges) -> Linear:
    if b.terms:
        return Linear(((BinOp("//", a.expr(), b.expr()), 1),))
    d = b.constant
    q, r = _split(a, d)
    lo, hi = interval(r.expr(), ranges)
    if lo > -_INF and hi < _INF and lo // d == hi // d:
        return Linear(q.terms, q.constant + int(lo // d))
    g = gcd(d, *(c for _, c in r.terms))
    if g > 1:  # floor((g*x + k) / (g*m)) = floor((x + floor(k/g)) / m)
        r = Linear.of({t: c // g for t, c in r.terms}, r.constant // g)
        return _add(q, _floordiv(r, Linear((), d // g), ranges), 1, ranges)
    if (parts := _coarse(r, d, ranges)) is not None:  # floor((g*x + y) / (g*m)) = floor(x / m), 0 <= y < g
        return _add(q, _floordiv(parts[1], Linear((), d // parts[0]), ranges), 1, ranges)
    inner = r.terms[0][0] if len(r.terms) == 1 and r.terms[0][1] == 1 and r.constant == 0 else None
    if isinstance(inner, BinOp) and inner.op == "//" and isinstance(inner.rhs, int):
        nested = _floordiv(linear(inner.lhs, ranges), Linear((), inner.rhs * d), ranges)
        return _add(q, nested, 1, ranges)
    atom = BinOp("//", r.expr(), d)
    return _add(q, Linear(((atom, 1),)), 1, ranges)


def _modulo(a: Linear, b: Linear, ranges: Ranges) -> Linear:
    if b.terms:
        return Linear(((BinOp("%", a.expr(), b.expr()), 1),))
    d = b.constant
    _, r = _split(a, d)
    lo, hi = interval(r.expr(), ranges)
    if lo > -_INF and hi < _INF and lo // d == hi // d:
        return Linear(r.terms, r.constant - d * int(lo // d))
    g = gcd(d, *(c for _, c in r.terms))
    if g > 1:  # (g*x + k) % (g*m) = g * ((x + k//g) % m) + k % g
        small = Linear.of({t: c // g for t, c in r.terms}, r.constant // g)
        inner = _modulo(small, Linear((), d // g), ranges)
        return Linear.of({t: c * g for t, c in inner.terms}, inner.constant * g + r.constant % g)
    if (parts := _coarse(r, d, ranges)) is not None:  # (g*x + y) % (g*m) = g * (x % m) + y
        g, x, y = parts
        inner = _modulo(x, Linear((), d // g), ranges)
        return _add(Linear.of({t: c * g for t, c in inner.terms}, inner.constant * g), y, 1, ranges)
    return Linear(((BinOp("%", r.expr(), d), 1),))


def _coarse(r: Linear, d: int, ranges: Ranges) -> tuple[int, Linear, Linear] | None:
    """`r` as g * x + y with 0 <= y < g for a proper divisor g of `d`; None where no such g shows."""
    for g in sorted({gcd(d, c) for _, c in r.terms} - {1, d}, reverse=True):
        x = Linear.of({t: c // g for t, c in r.terms if c % g == 0}, r.constant // g)
        y = Linear.of({t: c for t, c in r.terms if c % g}, r.constant % g)
        if within(y.expr(), g, ranges):
            return g, x, y
    return None


def _extreme(op: str, a: Linear, b: Linear, ranges: Ranges) -> Linear:
    lo, hi = interval(_add(a, b, -1, ranges).expr(), ranges)
    if lo >= 0:
        return a if op == "max" else b
    if hi <= 0:
        return b if op == "max" else a
    lhs, rhs = sorted((a.expr(), b.expr()), key=show_expr)
    return Linear(((BinOp(op, lhs, rhs), 1),))


def interval(e: Expr, ranges: Ranges) -> tuple[float, float]:
    """Inclusive bounds of `e` (±inf where unknown): sound, exact for linear forms of independent symbols."""
    if isinstance(e, int):
        return e, e
    if isinstance(e, Sym):
        return ranges.get(e.name, _UNBOUNDED)
    if type(ranges) is not _KnownRanges:
        if not (isinstance(e.lhs, BinOp) or isinstance(e.rhs, BinOp)):
            return _interval(e, ranges)  # as fast as a look at what is remembered
        ranges = _scope_of(ranges)
    bounds = ranges.bounds.get(e)
    if bounds is None:
        bounds = _interval(e, ranges)
        if len(ranges.bounds) >= _MOST_FORMS:
            ranges.bounds.clear()
        ranges.bounds[e] = bounds
    return bounds


def within(e: Expr, extent: int, ranges: Ranges) -> bool:
    """Return whether an index is known to lie inside of a dimension of this extent."""
    low, high = interval(e, ranges)
    return low >= 0 and high < extent


def _interval(e: BinOp, ranges: Ranges) -> tuple[float, float]:
    (al, ah), (bl, bh) = interval(e.lhs, ranges), interval(e.rhs, ranges)
    match e.op:
        case "+":
            return al + bl, ah + bh
        case "-":
            return al - bh, ah - bl
        case "min":
            return min(al, bl), min(ah, bh)
        case "max":
            return max(al, bl), max(ah, bh)
        case "*":
            if bl == bh and bl > 0:
                return al * bl, ah * bl
            ends = [0 if 0 in (x, y) else x * y for x in (al, ah) for y in (bl, bh)]
            return min(ends), max(ends)
    if bl != bh or bl <= 0:
        return -_INF, _INF
    if e.op == "//":
        return (al if al == -_INF else al // bl), (ah if ah == _INF else ah // bl)
    if al > -_INF and ah < _INF and al // bl == ah // bl:
        return al - bl * (al // bl), ah - bl * (ah // bl)
    return 0, bl - 1


def coefficients(e: Expr, names: Iterable[str], ranges: Ranges) -> tuple[dict[str, int], Expr] | None:
    """`e = sum(c[n] * n for n in names) + rest`, rest free of `names`; None where e is not of that form."""
    asked_names = set(names)
    form = linear(e, ranges)
    out: dict[str, int] = {}
    rest: dict[Sym | BinOp, int] = {}
    for atom, c in form.terms:
        if isinstance(atom, Sym) and atom.name in asked_names:
            out[atom.name] = c
        elif isinstance(atom, BinOp) and any(_mentions(atom, n) for n in asked_names):
            return None
        else:
            rest[atom] = c
    return out, Linear.of(rest, form.constant).expr()


def _mentions(e: Expr, name: str) -> bool:
    if isinstance(e, Sym):
        return e.name == name
    return isinstance(e, BinOp) and (_mentions(e.lhs, name) or _mentions(e.rhs, name))


def multiple_of(e: Expr, ranges: Ranges) -> int:
    """The largest integer known to divide `e` for every value of its symbols; 0 for the constant 0."""
    form = linear(e, ranges)
    return gcd(form.constant, *(c * _atom_multiple(a, ranges) for a, c in form.terms))


def _atom_multiple(a: Sym | BinOp, ranges: Ranges) -> int:
    if isinstance(a, BinOp) and a.op == "*":
        return multiple_of(a.lhs, ranges) * multiple_of(a.rhs, ranges)
    if isinstance(a, BinOp) and a.op in ("min", "max", "%"):
        return gcd(multiple_of(a.lhs, ranges), multiple_of(a.rhs, ranges))
    return 1
