"""Gradients of updates at given indices; updates that were overwritten or dropped receive nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.types import TensorType
from tilewright.passes.graph.gradients.places import (
    inside,
    inside_rows,
    numbered,
    signed,
    wrapped,
    wrapped_rows,
)
from tilewright.passes.graph.gradients.registry import Backward, gradient


@dataclass(frozen=True)
class _Places:
    """Where updates of `shape` go in a tensor of shape `target`: along `axis`, or by rows of coordinates."""

    w: GraphWriter
    indices: Tensor
    target: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int | None

    def scattered(self, into: Tensor, updates: Tensor, mode: str) -> Tensor:
        """`into` with the updates."""
        if self.axis is None:
            return self.w.op("scatter_nd", into, self.indices, updates, mode=mode)
        return self.w.op("scatter_elements", into, self.indices, updates, axis=self.axis, reduction=mode)

    def collected(self, source: Tensor) -> Tensor:
        """For every update the element of `source` that it goes to; 0 for one that is dropped."""
        if 0 in self.target:
            return self.w.full(0, TensorType(source.dtype, self.shape))
        if self.axis is None:
            extents = self.target[: self.indices.shape[0]]
            picked = self.w.op("gather_nd", source, wrapped_rows(self.indices, extents))
            present = inside_rows(self.indices, extents)
            present = present.reshape(*present.shape, *(1,) * (len(self.target) - len(extents)))
        else:
            extent = self.target[self.axis]
            picked = self.w.op("gather", source, wrapped(self.indices, extent), axis=self.axis)
            present = inside(self.indices, extent)
        return present.where(picked, 0)

    def is_last(self) -> Tensor:
        """Whether each update is the last one of its element."""
        number = numbered(self.w, self.shape) + 1
        writers = self.scattered(self.w.full(0, TensorType("i32", self.target)), number, "update")
        return self.collected(writers).equal(number)

    def counts(self, dtype: str) -> Tensor:
        """How many updates every element of the target receives."""
        zeros, ones = (self.w.full(n, TensorType(dtype, s)) for n, s in ((0, self.target), (1, self.shape)))
        return self.scattered(zeros, ones, "add")

    def still_to_come(self) -> Tensor:
        """How many updates of its element there are from each update on, itself among them (i32)."""
        element = self.collected(numbered(self.w, self.target) + 1).reshape(prod(self.shape))
        order = self.w.op("argsort", element, axis=0)
        place = self.w.op("argsort", order, axis=0)
        ends = self.w.op("searchsorted", self.w.op("sort", element, axis=0), element, right=True)
        return (ends - place).reshape(*self.shape)


#: mode -> what goes back to the data and to the updates, from (step, places, data, updates)
_Parts = tuple[Tensor | None, Tensor | None]


def _added(b: Backward, p: _Places, x: Tensor, u: Tensor) -> _Parts:
    """Data receive g, every update the g of its element."""
    return b.g, p.collected(b.g) if b.needed[2] else None


def _replaced(b: Backward, p: _Places, x: Tensor, u: Tensor) -> _Parts:
    """Data receive g where nothing was written, the last update of an element the g of it."""
    return (
        p.scattered(b.g, b.w.full(0, u.type), "update") if b.needed[0] else None,
        p.is_last().where(p.collected(b.g), 0) if b.needed[2] else None,
    )


def _multiplied(b: Backward, p: _Places, x: Tensor, u: Tensor) -> _Parts:
    """Every factor receives g times the product of the others, which is right where factors are zero."""
    zero_x, zero_u = x.equal(0), u.equal(0)
    zeros = p.scattered(zero_x.cast(x.dtype), zero_u.cast(x.dtype), "add")
    product = p.scattered(zero_x.where(1, x), zero_u.where(1, u), "mul") * b.g
    without, only = zeros.equal(0).where(product, 0), zeros.equal(1).where(product, 0)
    return (
        zero_x.where(only, without / zero_x.where(1, x)),
        zero_u.where(p.collected(only), p.collected(without) / zero_u.where(1, u)) if b.needed[2] else None,
    )


def _chosen(b: Backward, p: _Places, x: Tensor, u: Tensor) -> _Parts:
    """g is split evenly among all that equal the result, as PyTorch has it."""
    y = b.y[0]
    mine, theirs = x.equal(y), u.equal(p.collected(y))
    count = p.scattered(mine.cast(x.dtype), theirs.cast(x.dtype), "add")
    share = b.g / count
    return mine.where(share, 0), theirs.where(p.collected(share), 0) if b.needed[2] else None


def _averaged(b: Backward, p: _Places, x: Tensor, u: Tensor) -> _Parts:
    """Each update halves what stood there before: g is halved once for it and for every later one."""
    return (
        b.g * b.w.op("exp2", -p.counts(x.dtype)) if b.needed[0] else None,
        p.collected(b.g) * b.w.op("exp2", -p.still_to_come().cast(x.dtype)) if b.needed[2] else None,
    )


_MODES: Mapping[str, Callable[[Backward, _Places, Tensor, Tensor], _Parts]] = {
    "add": _added,
    "update": _replaced,
    "mul": _multiplied,
    "min": _chosen,
    "max": _chosen,
    "mean": _averaged,
}


@gradient("graph.scatter_elements")
def scatter_elements(b: Backward) -> Sequence[Tensor | None]:
    """As the mode has it, along one axis."""
    x, indices, updates = b.x
    places = _Places(b.w, indices, x.shape, updates.shape, b.op.integer("axis") % x.rank)
    dx, du = _MODES[str(b.attr("reduction"))](b, places, x, updates)
    return [dx, None, du]


@gradient("graph.scatter_nd")
def scatter_nd(b: Backward) -> Sequence[Tensor | None]:
    """As the mode has it, for slices at coordinates."""
    x, indices, updates = b.x
    places = _Places(b.w, indices, x.shape, updates.shape, None)
    dx, du = _MODES[str(b.attr("mode"))](b, places, x, updates)
    return [dx, None, du]


@gradient("graph.sparse_to_dense")
def sparse_to_dense(b: Backward) -> Sequence[Tensor | None]:
    """The last value of an element receives its g, the default the sum of the rest."""
    indices, values, _ = b.x
    rank, count = b.y[0].rank, indices.shape[0] if indices.rank else 1
    i = signed(indices).reshape(count, rank).transpose(1, 0)
    # A negative coordinate is out of bounds here; scatter_nd would count it from the end.
    rows = (i < 0).where(2**31 - 1, i)
    places = _Places(b.w, rows, b.y[0].shape, (count,), None)
    dvalues = places.is_last().where(places.collected(b.g), 0) if b.needed[1] else None
    if dvalues is not None:
        dvalues = dvalues if values.rank else dvalues.sum()
    rest = places.scattered(b.g, b.w.full(0, TensorType(b.g.dtype, (count,))), "update")
    return [None, dvalues, rest.sum() if b.needed[2] else None]
