"""Orders along an axis from folds, maps and gathers: ranks by counting within chunks, merges of chunks.

An element before which r others of its chunk come has rank r; ties are broken by place, so orders are stable.
Sorted chunks merge pairwise: a binary search finds how many elements of each chunk come before every place
(the merge path of Green, McColl and Bader, 2012), so that a level of merges is one kernel without order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Builder, Expr, Sym, TensorType, Value
from tilewright.ir.expr import minimum
from tilewright.ir.graph_ops.operands import highest, lowest
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import dim_names, looked_up, mapped, point_names, reduced
from tilewright.passes.lower.scalars import Body, Scalar, Scalars

#: the longest axis, and the chunk of longer ones, that is sorted by comparing all pairs
CHUNK = 2048


@dataclass(frozen=True)
class Order:
    """Sorting along `axis`, smallest or largest first; nan counts as the largest."""

    axis: int
    ascending: bool

    def at(self, rank: int, place: Expr) -> tuple[Expr, ...]:
        """The element of the current point's line that stands at `place`; dimensions are i0, i1, ..."""
        return tuple(place if d == self.axis else Sym(n) for d, n in enumerate(dim_names(rank)))

    def resized(self, t: TensorType, extent: int, dtype: str = "") -> TensorType:
        """`t` with another extent along the axis (and another dtype)."""
        shape = (*t.shape[: self.axis], extent, *t.shape[self.axis + 1 :])
        return TensorType(dtype or t.dtype, shape)

    def par(self, t: TensorType) -> dict[str, int]:
        """The parallel dimensions of a result of type `t`."""
        return dict(zip(dim_names(t.rank), t.shape, strict=True))

    def precedes(self, i: Scalars, a: Scalar, c: Scalar, earlier: Scalar) -> Scalar:
        """Scalar: a comes before c, where `earlier` decides between equals."""
        if a.type.dtype == "bool":
            a, c = i.cast(a, "i32"), i.cast(c, "i32")
        before = i.value("scalar.lt" if self.ascending else "scalar.gt", a, c)
        equal = a.equals(c)
        if a.type.dtype in FLOATS:
            nan_a, nan_c = a.apply("isnan"), c.apply("isnan")
            first, second = (nan_c, nan_a) if self.ascending else (nan_a, nan_c)
            only = first & ~second
            before = before | only
            equal = equal | nan_a & nan_c
        return before | equal & earlier

    def last(self, dtype: str) -> float | int | bool:
        """A value that nothing comes after but equal ones."""
        if not self.ascending:
            return lowest(dtype)
        return float("nan") if dtype in FLOATS else highest(dtype)


def gathered(b: Builder, data: Value, index: Value, axis: int) -> Value:
    """result[.., i, ..] = data[.., index[.., i, ..], ..] along `axis`; indices are known to be in bounds."""
    names = point_names(index.tensor.rank)
    at = [Sym("i0") if d == axis else Sym(n) for d, n in enumerate(names)]
    par = dict(zip(names, index.tensor.shape, strict=True))
    return looked_up(b, data, [index], par, [tuple(map(Sym, names))], at)


def chunk_order(b: Builder, x: Value, order: Order, chunk: int, keep: int) -> Value:
    """Places (i32) along the axis of the first `keep` elements of every chunk, chunk after chunk.

    The axis of `x` must be a multiple of `chunk`.
    """
    t = x.tensor
    chunks = t.shape[order.axis] // max(1, chunk)
    line = dim_names(t.rank)[order.axis]
    ranked = _ranks(b, x, order, chunk)
    out = order.resized(t, chunks * keep, "i32")
    place = _within(line, keep, "j", chunk, chunks)

    def pick(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        rank = i.index(Sym(line) if chunks == 1 else Sym(line) % keep)
        here = p[0].equals(rank)
        return here.select(i.index(place), 0) + p[1]

    read = [order.at(t.rank, place)]
    return reduced(b, "tensor.reduce", [ranked], out, order.par(out), {"j": chunk}, read, pick, init=0)


def _within(line: str, per_chunk: int, inner: str, chunk: int, chunks: int) -> Expr:
    """Element `inner` of the chunk of place `line`; each chunk gives `per_chunk` places."""
    if chunks == 1:
        return Sym(inner)
    return Sym(line) // per_chunk * chunk + Sym(inner)


def _ranks(b: Builder, x: Value, order: Order, chunk: int) -> Value:
    """For every element, how many of its chunk come before it."""
    t = x.tensor
    line = dim_names(t.rank)[order.axis]
    other = _within(line, chunk, "j", chunk, t.shape[order.axis] // max(1, chunk))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        earlier = i.index(other) < i.index(Sym(line))
        before = order.precedes(i, p[1], p[0], earlier)
        return i.cast(before, "i32") + p[2]

    reads = [order.at(t.rank, Sym(line)), order.at(t.rank, other)]
    out = TensorType("i32", t.shape)
    return reduced(b, "tensor.reduce", [x, x], out, order.par(t), {"j": chunk}, reads, body, init=0)


def padded(b: Builder, x: Value, order: Order, extent: int) -> Value:
    """`x` with elements that come last behind it, up to `extent`."""
    t = order.resized(x.tensor, extent)
    size = x.tensor.shape[order.axis]
    if size == extent:
        return x
    line = dim_names(t.rank)[order.axis]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        inside = i.index(Sym(line)) < size
        return inside.select(p[0], order.last(t.dtype))

    read = order.at(t.rank, minimum(Sym(line), size - 1))
    return mapped(b, [x], t, order.par(t), [read], body)


def merged(b: Builder, keys: Value, places: Value, order: Order, chunk: int) -> tuple[Value, Value]:
    """Keys and places in order along the whole axis, from chunks in order.

    The extent must be `chunk` times a power of two, and so must be `chunk`.
    """
    while chunk < keys.tensor.shape[order.axis]:
        source = _Merge(b, keys, order, chunk).source()
        keys, places = gathered(b, keys, source, order.axis), gathered(b, places, source, order.axis)
        chunk *= 2
    return keys, places


class _Merge:
    """Pairs of neighbouring runs, each of `length` keys in order; among equal keys the first run leads."""

    def __init__(self, b: Builder, keys: Value, order: Order, length: int) -> None:
        self.b, self.keys, self.order, self.length = b, keys, order, length
        self.t = TensorType("i32", keys.tensor.shape)
        self.start, self.rank = self._pair(dim_names(self.t.rank)[order.axis])

    def _pair(self, line: str) -> tuple[Expr, Expr]:
        """Return where the two runs of place `line` start, and its rank among their elements."""
        both = 2 * self.length
        return Sym(line) // both * both, Sym(line) % both

    def source(self) -> Value:
        """The place from which each element of the merged runs comes.

        The elements before rank r are the first t of one run and r - t of the other; t is found bit by bit.
        """
        taken = self._map([], lambda i, p: i.const(0, "i32"))
        step = self.length
        while step:
            taken = self._advanced(taken, step)
            step //= 2
        return self._next(taken)

    def _advanced(self, taken: Value, step: int) -> Value:
        """`taken + step` where so many of the first run come before the rank, else `taken`."""

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            more = p[0] + step
            others = i.index(self.rank) - more
            exists = more <= self.length
            exists = exists & (others >= 0)
            ahead = ~self._second_first(i, p[1], p[2])
            none = others >= self.length
            fits = exists & (none | ahead)
            return fits.select(more, p[0])

        return self._map([taken, *self._heads(taken, step, 1)], body)

    def _next(self, taken: Value) -> Value:
        """The place of the smaller one of the first elements that are left in the runs."""

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            length, others = i.const(self.length, "i32"), i.index(self.rank) - p[0]
            ahead = ~self._second_first(i, p[1], p[2])
            first = (others >= length) | ahead
            first = first & (p[0] < length)
            within = first.select(p[0], others + length)
            return i.index(self.start) + within

        return self._map([taken, *self._heads(taken, 0, 0)], body)

    def _second_first(self, i: Scalars, a: Scalar, c: Scalar) -> Scalar:
        return self.order.precedes(i, c, a, i.const(False, "bool"))

    def _heads(self, taken: Value, step: int, back: int) -> tuple[Value, Value]:
        """Keys `taken + step - back` of the first run and `rank - taken - step` of the second."""
        start, rank = self._pair(f"d{self.order.axis}")
        first = start + (Sym("i0") + (step - back))
        second = start + (rank - (Sym("i0") + (step - self.length)))
        return self._at(taken, first), self._at(taken, second)

    def _at(self, taken: Value, place: Expr) -> Value:
        """Keys at places along the axis, in which i0 stands for `taken`."""
        names = point_names(self.t.rank)
        at = [place if d == self.order.axis else Sym(n) for d, n in enumerate(names)]
        par = dict(zip(names, self.t.shape, strict=True))
        return looked_up(self.b, self.keys, [taken], par, [tuple(map(Sym, names))], at)

    def _map(self, operands: Sequence[Value], body: Body) -> Value:
        names = tuple(map(Sym, dim_names(self.t.rank)))
        return mapped(self.b, operands, self.t, self.order.par(self.t), [names] * len(operands), body)
