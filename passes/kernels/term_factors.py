"""Constant factors of terms in float32: taken out of them, and brought to where they cost nothing."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.types import ScalarType
from tilewright.passes.analysis.terms import Apply, Term, constant, number, peeled

_F32 = ScalarType("f32")


def times(term: Term, factor: float) -> Term:
    """The term times a number, which goes into the constants and sums of the term."""
    value = number(term)
    if value is not None:
        return constant(value * factor)
    if isinstance(term, Apply) and term.type == _F32:
        if term.name in ("scalar.add", "scalar.sub"):
            return replace(term, args=tuple(times(a, factor) for a in term.args))
        if term.name == "scalar.select":
            return replace(term, args=(term.args[0], *(times(a, factor) for a in term.args[1:])))
        if term.name == "scalar.mul":
            a, b = term.args
            for one, other in ((a, b), (b, a)):
                if (value := number(other)) is not None:
                    return replace(term, args=(one, constant(value * factor)))
    return Apply("scalar.mul", (), _F32, (term, constant(factor)))


def constant_factor(term: Term) -> tuple[float, Term]:
    """A constant factor of a term, and the term without it.

    rewrite:  p * ((kept ? 1.1 t : 0) - d) * 0.125   -->   0.125, p * fma(kept ? t : 0, 1.1, -d)

    Factors of summands come to the outside of each, where a product and a sum are one instruction.
    """
    inner = peeled(term)
    if not isinstance(inner, Apply) or inner.type != _F32:
        return 1.0, term
    if inner.name == "scalar.mul":
        first, second = inner.args
        for one, other in ((first, second), (second, first)):
            value = number(other)
            if value is not None and value != 0.0:
                factor, rest = constant_factor(one)
                return value * factor, rest
        (a, first), (b, second) = constant_factor(first), constant_factor(second)
        return a * b, replace(inner, args=(first, second))
    if inner.name == "scalar.select":
        condition, shown, hidden = inner.args
        if number(hidden) == 0.0:
            factor, rest = constant_factor(shown)
            return factor, replace(inner, args=(condition, rest, hidden))
        if number(shown) == 0.0:
            factor, rest = constant_factor(hidden)
            return factor, replace(inner, args=(condition, shown, rest))
    if inner.name in ("scalar.add", "scalar.sub"):
        return 1.0, _summed(inner)
    return 1.0, term


def _summed(total: Apply) -> Term:
    """A sum or difference whose summands have their constant factors outside: one product and sum at once."""
    (first, one), (second, other) = map(constant_factor, total.args)
    if total.name == "scalar.sub":
        second = -second
    if first == 1.0 and second in (1.0, -1.0):
        return replace(total, args=(one, other))
    if first in (1.0, -1.0):
        first, one, second, other = second, other, first, one
    return Apply("scalar.fma", (), _F32, (one, constant(first), _product(other, second)))


def _product(term: Term, factor: float) -> Term:
    if factor == -1.0:
        return Apply("scalar.neg", (), _F32, (term,))
    return term if factor == 1.0 else Apply("scalar.mul", (), _F32, (term, constant(factor)))
