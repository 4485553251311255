"""Bands of keys that queries see by their positions: causal attention, sliding windows.

A band says which tiles of keys a tile of queries meets at all, and which of them hold hidden pairs: scores
are masked in those alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Expr
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.simplify import coefficients
from tilewright.passes.analysis.attention import KEY
from tilewright.passes.analysis.position_masks import HIDDEN
from tilewright.passes.analysis.terms import Apply, Position, Term, number, peeled
from tilewright.passes.kernels.attention.view import AttentionView, reach


@dataclass(frozen=True)
class Band:
    """Keys that a query sees: low <= key - query <= high; None where that side is open."""

    low: int | None = None
    high: int | None = None

    def meet(self, other: Band) -> Band:
        """The keys that both bands hold."""
        lows = [b.low for b in (self, other) if b.low is not None]
        highs = [b.high for b in (self, other) if b.high is not None]
        return Band(max(lows, default=None), min(highs, default=None))

    def everywhere(self, queries: int, keys: int) -> bool:
        """Whether every query sees some key."""
        low = -queries if self.low is None else self.low
        high = keys if self.high is None else self.high
        return low <= high and high >= 0 and queries - 1 + low < keys


@dataclass(frozen=True)
class BandedScore:
    """A score as `inner`, which `mask` hides outside of the band; no mask where `inner` is all of it.

    mask: a term of the product's place, where it takes a score.
    """

    inner: Term
    mask: Term | None
    band: Band


def banded_score(view: AttentionView) -> BandedScore:
    """The score of a view with a single dimension of rows, apart from the mask of a band around it."""
    score, row = view.score, view.rows[0]
    if isinstance(score, Apply) and score.name == "scalar.select" and score.type.dtype == "f32":
        seen, inner, hidden = score.args
        band, value = band_of(seen, row), number(hidden)
        hides = value is not None and value <= HIDDEN and _is_f32(inner, view)
        if hides and band is not None and band.everywhere(view.sizes[row], view.keys):
            mask = Apply("scalar.select", (), score.type, (seen, view.product, hidden))
            return BandedScore(inner, mask, band)
    return BandedScore(score, None, Band(high=reach(view)))


def _is_f32(term: Term, view: AttentionView) -> bool:
    return term == view.product or (isinstance(term, Apply) and term.type.dtype == "f32")


def band_of(seen: Term, row: str) -> Band | None:
    """The band in which a condition holds; None for another condition."""
    if not isinstance(seen, Apply):
        return None
    if seen.name == "scalar.select" and [number(a) for a in seen.args[1:]] == [1.0, 0.0]:
        return band_of(seen.args[0], row)
    if seen.name == "scalar.and":
        first, second = (band_of(a, row) for a in seen.args)
        return None if first is None or second is None else first.meet(second)
    if seen.name not in ("scalar.le", "scalar.lt", "scalar.ge", "scalar.gt"):
        return None
    one, other = (_linear(a, row) for a in seen.args)
    if one is None or other is None:
        return None
    of_row, of_key, rest = (a - b for a, b in zip(one, other, strict=True))
    strict = 1 if seen.name in ("scalar.lt", "scalar.gt") else 0
    if seen.name in ("scalar.ge", "scalar.gt"):  # the same with both sides changed: at most 0
        of_row, of_key, rest = -of_row, -of_key, -rest
    if (of_row, of_key) == (-1, 1):
        return Band(high=-rest - strict)
    if (of_row, of_key) == (1, -1):
        return Band(low=rest + strict)
    return None


def _linear(term: Term, row: str) -> tuple[int, int, int] | None:
    """An integer term as multiples of query and key, and a number; None for another term."""
    term = _uncast(term)
    if isinstance(term, Position):
        form = coefficients(term.at, [row, KEY], {})
        if form is None or not isinstance(form[1], int):
            return None
        return form[0].get(row, 0), form[0].get(KEY, 0), form[1]
    value = number(term)
    if value is not None:
        return (0, 0, int(value)) if value == int(value) else None
    if isinstance(term, Apply) and term.name in ("scalar.add", "scalar.sub"):
        one, other = (_linear(a, row) for a in term.args)
        if one is None or other is None:
            return None
        sign = 1 if term.name == "scalar.add" else -1
        return one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2]
    return None


def _uncast(term: Term) -> Term:
    """An integer term without the casts between integers around it."""
    while isinstance(term, Apply) and term.name == "scalar.cast" and term.type.dtype in ("i32", "i64"):
        term = term.args[0]
    return peeled(term)


@dataclass(frozen=True)
class Steps:
    """The tiles of keys that tiles of queries meet, from the last one to the first.

    rows, keys: of a tile; row_tiles, tiles: how many there are. masked: at the beginning of a walk so many
    tiles, at most, hold pairs beyond the band's upper end.
    """

    band: Band
    rows: int
    keys: int
    row_tiles: int
    tiles: int

    def last(self, row_tile: Expr) -> Expr:
        """The last tile of keys that a tile of queries meets."""
        if self.band.high is None:
            return self.tiles - 1
        return minimum((row_tile * self.rows + (self.rows - 1 + self.band.high)) // self.keys, self.tiles - 1)

    def first(self, row_tile: Expr) -> Expr:
        """The first tile of keys that a tile of queries meets."""
        if self.band.low is None:
            return 0
        return maximum((row_tile * self.rows + self.band.low) // self.keys, 0)

    def count(self, row_tile: Expr) -> Expr:
        """Tiles of keys that a tile of queries meets."""
        return self.last(row_tile) - self.first(row_tile) + 1

    @property
    def counts(self) -> Sequence[int]:
        """The same, of every tile of queries."""
        found = []
        for r in range(self.row_tiles):
            n = self.count(r)
            assert isinstance(n, int)
            found.append(n)
        return found

    @property
    def masked(self) -> int:
        if self.band.high is None:
            return 0
        most = 0
        for r in range(self.row_tiles):
            whole = (r * self.rows + self.band.high + 1) // self.keys  # tiles before this one are seen whole
            last = self.last(r)
            assert isinstance(last, int)
            most = max(most, last - min(whole, last + 1) + 1)
        return most

    @property
    def pairs(self) -> bool:
        """Whether the first and last tile of queries, the second and last but one, .. meet as many."""
        n = self.counts
        return (
            len(n) % 2 == 0
            and len({a + b for a, b in zip(n, reversed(n), strict=True)}) == 1
            and len(set(n)) > 1
        )

    @property
    def equal(self) -> bool:
        """Whether all tiles of queries meet as many tiles of keys."""
        return len(set(self.counts)) == 1
