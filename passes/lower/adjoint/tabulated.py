"""Index expressions that are understood by their values: linear ones, and ones that rise along a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.expr import BinOp, Expr, Sym, evaluate, maximum, minimum, symbols

#: points of a domain at which expressions are compared
_MOST_POINTS = 1 << 23
#: the largest divisor of a line that is looked for
_MOST_STEPS = 64
#: runs of an index that rises and falls that are taken one by one
_MOST_RUNS = 4


def linear_at(e: Expr, domain: Mapping[str, int]) -> tuple[dict[str, int], int] | None:
    """Coefficients and constant of an expression that is linear on a whole domain; None where it is not."""
    names = list(dict.fromkeys(symbols(e)))
    if np.prod([domain[k] for k in names], dtype=object) > _MOST_POINTS:
        return None
    origin = dict.fromkeys(names, 0)
    constant = int(evaluate(e, origin))
    slopes = {k: int(evaluate(e, {**origin, k: 1})) - constant for k in names if domain[k] > 1}
    points = _points(names, domain)
    expected: int | np.ndarray = constant
    for k, slope in slopes.items():
        expected = expected + slope * points[k]
    same = np.array_equal(np.broadcast_arrays(evaluate(e, points), expected)[0], expected)
    return ({k: c for k, c in slopes.items() if c}, constant) if same else None


def _points(names: Sequence[str], domain: Mapping[str, int]) -> dict[str, np.ndarray]:
    shapes = np.ix_(*(np.arange(domain[k]) for k in names))
    return dict(zip(names, shapes, strict=True))


@dataclass(frozen=True)
class Rising:
    """A dimension along which an index never falls: element e is read from place `first` up to `stop`.

    most: the most places that read one element.
    """

    first: Expr
    stop: Expr
    most: int


def rising(e: Expr, line: str, extent: int, target: str, size: int) -> Rising | None:
    """The places along `line`, of `extent`, at which `e` is the index `target` of a dimension of `size`.

    None where the index falls somewhere, or where the places are not a line with bends at its ends.
    """
    values = np.broadcast_to(np.asarray(evaluate(e, {line: np.arange(extent)})), (extent,))
    if np.any(np.diff(values) < 0):
        return None
    firsts, stops = (np.searchsorted(values, np.arange(size), side) for side in ("left", "right"))
    first, stop = _line(firsts, Sym(target), extent), _line(stops, Sym(target), extent)
    if first is None or stop is None:
        return None
    return Rising(first, stop, int((stops - firsts).max()))


def _line(table: np.ndarray, e: Sym, most: int) -> Expr | None:
    """An expression of e that has the values of a table from 0 to `most`; None where no simple one has.

    It is (a * e + b) // c, kept between 0 and `most`, with values of their own at the first and last place.
    """
    n, places = len(table), np.arange(len(table))
    for inner in ((0, n), (1, n), (0, n - 1), (1, n - 1)):
        chosen = (places >= inner[0]) & (places < inner[1])
        whole = _fitted(places[chosen], table[chosen], e, most)
        if whole is None:
            continue
        if inner[0]:
            whole = whole + maximum(0, 1 - e) * int(table[0] - evaluate(whole, {e.name: 0}))
        if inner[1] < n:
            whole = whole + maximum(0, e - (n - 2)) * int(table[-1] - evaluate(whole, {e.name: n - 1}))
        if np.array_equal(np.broadcast_to(np.asarray(evaluate(whole, {e.name: places})), n), table):
            return whole
    return None


def _fitted(places: np.ndarray, table: np.ndarray, e: Sym, most: int) -> Expr | None:
    """(a * e + b) // c at places whose value lies between 0 and `most`, kept to those bounds elsewhere."""
    free = (table > 0) & (table < most)
    if free.sum() < 2:
        free = np.ones(len(table), bool)
    if not free.any():
        return None
    x, y = places[free], table[free]
    slope = (y[-1] - y[0]) / max(1, x[-1] - x[0])
    for c in range(1, _MOST_STEPS):
        for a in {int(np.floor(slope * c)), int(np.ceil(slope * c))}:
            low, high = int((c * y - a * x).max()), int((c * y - a * x).min()) + c - 1
            if low <= high:
                return _between((e * a + low) // c, places, e, most)
    return None


def _between(whole: Expr, places: np.ndarray, e: Sym, most: int) -> Expr:
    values = np.asarray(evaluate(whole, {e.name: places}))
    if values.size and values.max() > most:
        whole = minimum(whole, most)
    return maximum(0, whole) if values.size and values.min() < 0 else whole


@dataclass(frozen=True)
class Run:
    """Places `first` to `last` along a dimension, in which an index rises, or falls."""

    first: int
    last: int
    falls: bool


def bent_line(read: Sequence[Expr], domain: Mapping[str, int]) -> tuple[str, list[Run]] | None:
    """A dimension along which an index of a read, that no other dimension is part of, both rises and falls.

    None where there is none, or where it turns more than a few times. Reflections at the ends of an axis do.
    """
    for e in read:
        lines = set(symbols(e))
        if len(lines) != 1 or not _has_extremes(e):
            continue
        (line,) = lines
        runs = _runs(np.asarray(evaluate(e, {line: np.arange(domain[line])})))
        if 1 < len(runs) <= _MOST_RUNS:
            return line, runs
    return None


def _has_extremes(e: Expr) -> bool:
    return isinstance(e, BinOp) and (e.op in ("min", "max") or _has_extremes(e.lhs) or _has_extremes(e.rhs))


def _runs(values: np.ndarray) -> list[Run]:
    """The fewest runs that cover all places."""
    runs, first = [], 0
    while first < len(values):
        steps = np.sign(np.diff(values[first:]))
        moving = steps[steps != 0]
        falls = bool(moving.size and moving[0] < 0)
        against = np.flatnonzero(steps == (1 if falls else -1))
        last = first + int(against[0]) if against.size else len(values) - 1
        runs.append(Run(first, last, falls))
        first = last + 1
    return runs
