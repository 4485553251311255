"""The boxes of intermediates that one block of a chain needs: spans walked back through affine reads.

A span is affine in the first indices ("origins") that the block owns of the final result's dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tilewright.ir import Expr, Op, Sym, UnsupportedError
from tilewright.ir.simplify import Linear, interval, linear
from tilewright.ir.tensor.ops import dims, ranges_of


@dataclass(frozen=True)
class Span:
    """Indices base .. base + extent - 1, where base = constant + sum(terms[d] * origin of d)."""

    terms: tuple[tuple[str, int], ...]
    constant: int
    extent: int

    def base(self, origins: Mapping[str, Expr]) -> Expr:
        """The first index, given the first index the block owns of each tiled dimension."""
        e: Expr = self.constant
        for d, c in self.terms:
            e += origins[d] * c
        return e

    def scaled(self, factor: int) -> Span:
        """All `factor * i` for i of the span, as the box around them."""
        reach = factor * (self.extent - 1)
        terms = tuple((d, c * factor) for d, c in self.terms) if factor else ()
        return Span(terms, self.constant * factor + min(0, reach), abs(reach) + 1)

    def plus(self, other: Span) -> Span:
        """All sums of an index of each."""
        terms = dict(self.terms)
        for d, c in other.terms:
            terms[d] = terms.get(d, 0) + c
        kept = tuple(sorted((d, c) for d, c in terms.items() if c))
        return Span(kept, self.constant + other.constant, self.extent + other.extent - 1)

    def reach(self, last_origins: Mapping[str, int]) -> tuple[int, int]:
        """The smallest and largest index over all blocks."""
        low = self.constant + sum(min(0, c * last_origins[d]) for d, c in self.terms)
        high = self.constant + sum(max(0, c * last_origins[d]) for d, c in self.terms)
        return low, high + self.extent - 1

    def hull(self, other: Span, last_origins: Mapping[str, int]) -> Span:
        """The smallest span around both; the same for every block where they move differently."""
        if self.terms == other.terms:
            low = min(self.constant, other.constant)
            high = max(self.constant + self.extent, other.constant + other.extent)
            return Span(self.terms, low, high - low)
        (a, b), (c, d) = self.reach(last_origins), other.reach(last_origins)
        return Span((), min(a, c), max(b, d) - min(a, c) + 1)


Box = tuple[Span, ...]


def whole(extent: int) -> Span:
    """All indices of a dimension."""
    return Span((), 0, extent)


def read_box(op: Op, at: Sequence[Expr], domain: Box, reduced: Mapping[str, Span] | None = None) -> Box:
    """The box that `op` reads at index `at` while its parallel dimensions run over `domain`.

    reduced: what reduced dimensions run over, where that is not the whole of them. Quotients and remainders
    count with all values they can have. Raises UnsupportedError where an index is unbounded.
    """
    spans = dict(zip(dims(op, "par"), domain, strict=True))
    spans.update({d: whole(n) for d, n in dims(op, "red").items()})
    spans.update(reduced or {})
    ranges = ranges_of(op)
    out = []
    for form in _forms(op, tuple(at)):
        total = Span((), form.constant, 1)
        for atom, c in form.terms:
            total = total.plus(_atom(op, atom, spans, ranges).scaled(c))
        out.append(total)
    return tuple(out)


@lru_cache(maxsize=4096)
def _forms(op: Op, at: tuple[Expr, ...]) -> tuple[Linear, ...]:
    """The linear form of each index expression over the op's domain."""
    ranges = ranges_of(op)
    return tuple(linear(e, ranges) for e in at)


def _atom(op: Op, atom: Expr, spans: Mapping[str, Span], ranges: Mapping[str, tuple[int, int]]) -> Span:
    if isinstance(atom, Sym):
        return spans[atom.name]
    low, high = interval(atom, ranges)
    if low == -inf or high == inf:
        raise UnsupportedError("a chain reads an intermediate at an index without bounds", where=op.loc)
    return Span((), int(low), int(high - low) + 1)
