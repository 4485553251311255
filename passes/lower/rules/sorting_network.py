"""Orders along an axis from folds and maps: ranks by counting within chunks, bitonic merges of chunks.

An element before which r others of its chunk come has rank r; ties are broken by place, so orders are stable.
Sorted chunks merge pairwise in log2(length) stages of compare-and-exchange, each a map of two results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Builder, Expr, Pairs, Sym, TensorType, Value, scalar_body, structured
from tilewright.ir.expr import binary
from tilewright.ir.graph_ops.operands import highest, lowest
from tilewright.ir.nodes import Attr
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import dim_names, mapped, reduced

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

    def precedes(self, i: Builder, a: Value, c: Value, earlier: Value) -> Value:
        """Scalar: a comes before c, where `earlier` decides between equals."""
        if a.type.dtype == "bool":
            a, c = i.cast(a, "i32"), i.cast(c, "i32")
        before = i.value("scalar.lt" if self.ascending else "scalar.gt", a, c)
        equal = i.value("scalar.eq", a, c)
        if a.type.dtype in FLOATS:
            nan_a, nan_c = i.value("scalar.isnan", a), i.value("scalar.isnan", c)
            first, second = (nan_c, nan_a) if self.ascending else (nan_a, nan_c)
            only = i.value("scalar.and", first, i.value("scalar.not", second))
            before = i.value("scalar.or", before, only)
            equal = i.value("scalar.or", equal, i.value("scalar.and", nan_a, nan_c))
        return i.value("scalar.or", before, i.value("scalar.and", equal, earlier))

    def last(self, dtype: str) -> float | int | bool:
        """A value that nothing comes after but equal ones."""
        if not self.ascending:
            return lowest(dtype)
        return float("nan") if dtype in FLOATS else highest(dtype)


def gathered(b: Builder, data: Value, index: Value, axis: int) -> Value:
    """result[.., i, ..] = data[.., index[.., i, ..], ..] along `axis`; indices are known to be in bounds."""
    t = TensorType(data.tensor.dtype, index.tensor.shape)
    names = [f"d{d}" for d in range(t.rank)]
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(names, t.shape, strict=True))),
        "reads": (tuple(map(Sym, names)),),
        "at": tuple(Sym("i0") if d == axis else Sym(n) for d, n in enumerate(names)),
    }
    (out,) = b.emit("tensor.gather", [data, index], attrs, types=[t])
    return out


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

    def pick(i: Builder, p: Sequence[Value]) -> Value:
        rank = i.index(Sym(line) if chunks == 1 else binary("%", Sym(line), keep))
        here = i.value("scalar.eq", p[0], rank)
        return i.value("scalar.add", i.value("scalar.select", here, i.index(place), i.const(0, "i32")), p[1])

    read = [order.at(t.rank, place)]
    return reduced(b, "tensor.reduce", [ranked], out, order.par(out), {"j": chunk}, read, pick, init=0)


def _within(line: str, kept: int, inner: str, chunk: int, chunks: int) -> Expr:
    """Element `inner` of the chunk to which place `line` belongs, of which chunks give `kept` places each."""
    if chunks == 1:
        return Sym(inner)
    return binary("+", binary("*", binary("//", Sym(line), kept), chunk), Sym(inner))


def _ranks(b: Builder, x: Value, order: Order, chunk: int) -> Value:
    """For every element, how many of its chunk come before it."""
    t = x.tensor
    line = dim_names(t.rank)[order.axis]
    other = _within(line, chunk, "j", chunk, t.shape[order.axis] // max(1, chunk))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        earlier = i.value("scalar.lt", i.index(other), i.index(Sym(line)))
        before = order.precedes(i, p[1], p[0], earlier)
        return i.value("scalar.add", i.cast(before, "i32"), p[2])

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

    def body(i: Builder, p: Sequence[Value]) -> Value:
        inside = i.value("scalar.lt", i.index(Sym(line)), i.const(size, "i32"))
        return i.value("scalar.select", inside, p[0], i.const(order.last(t.dtype), t.dtype))

    read = order.at(t.rank, binary("min", Sym(line), size - 1))
    return mapped(b, [x], t, order.par(t), [read], body)


def merged(b: Builder, keys: Value, places: Value, order: Order, chunk: int) -> tuple[Value, Value]:
    """Keys and places in order along the whole axis, from chunks in order; both extents are powers of two."""
    size = keys.tensor.shape[order.axis]
    while chunk < size:
        chunk *= 2
        keys, places = _stage(b, keys, places, order, chunk, mirrored=True)
        step = chunk // 2
        while step > 1:
            keys, places = _stage(b, keys, places, order, step, mirrored=False)
            step //= 2
    return keys, places


def _stage(
    b: Builder, keys: Value, places: Value, order: Order, block: int, *, mirrored: bool
) -> tuple[Value, Value]:
    """Compare and exchange within blocks: an element and the one half a block on, or its mirror image."""
    t = keys.tensor
    line = Sym(dim_names(t.rank)[order.axis])
    start, inner = binary("*", binary("//", line, block), block), binary("%", line, block)
    across = block - 1 - inner if mirrored else binary("%", inner + block // 2, block)
    own, other = order.at(t.rank, line), order.at(t.rank, start + across)
    body, (a, c, at_a, at_c) = scalar_body([t.dtype, t.dtype, "i32", "i32"])
    body.loc = b.loc
    low = body.value("scalar.lt", body.index(inner), body.const(block // 2, "i32"))
    before = order.precedes(body, a, c, body.value("scalar.lt", at_a, at_c))
    keep = body.value("scalar.eq", body.cast(before, "i32"), body.cast(low, "i32"))
    body.do(
        "scalar.yield",
        body.value("scalar.select", keep, a, c),
        body.value("scalar.select", keep, at_a, at_c),
    )
    out = structured(
        b,
        "tensor.map",
        [keys, keys, places, places],
        par=order.par(t),
        reads=[own, other, own, other],
        types=[t, places.tensor],
        body=body.block((a, c, at_a, at_c)),
    )
    return out[0], out[1]
