"""The state that all stages of a chain share while its kernel is written: origins, buffers, stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import dims, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chain.regions import Box
from tilewright.passes.kernels.chain.stages import Chain, Stage
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer


class ChainPoints(Points):
    """Values at single indices; those that the block keeps are read from shared memory."""

    def __init__(self, block: ChainBlock, stage: Stage, known: Mapping[Value, Value] | None = None) -> None:
        """Points of `stage`, whose own results are not in memory yet."""
        super().__init__(block.w, known)
        own = {v for v, _ in stage.results}
        self.block = block
        self.buffers = {v: b for v, b in block.buffers.items() if v not in own}

    def _compute(self, v: Value, at: Index, mask: Mask) -> Value:
        if v in self.buffers:
            place, shape = self.block.kept_at(v, at), self.buffers[v].tensor.shape
            # a point beyond the domain, in the last block, may name an element that no block keeps
            return self.w.load(self.buffers[v], place, mask if self.w.bounds(place, shape) else ())
        return super()._compute(v, at, mask)


class ChainBlock:
    """The block of a chain kernel under construction."""

    def __init__(self, chain: Chain, threads: int) -> None:
        self.chain, self.threads = chain, threads
        counts = chain.blocks
        total = 1
        for n in counts.values():
            total *= n
        self.w = Writer(chain.kernel, threads, (total, 1, 1))
        where = self.w.unravel(Sym("bid.x"), list(counts.values()))
        self.origins: dict[str, Expr] = {
            d: self.w.simple(at * chain.tiles[d]) for (d, _), at in zip(counts.items(), where, strict=True)
        }
        self.buffers: dict[Value, Value] = {}

    # -- indices ---------------------------------------------------------------------------------------------
    def base(self, box: Box) -> Index:
        """Global index of the first element of a box."""
        return tuple(self.w.simple(s.base(self.origins)) for s in box)

    def place(self, box: Box, offset: Sequence[Expr]) -> Index:
        """Global index of the element at `offset` within a box."""
        return tuple(self.w.simple(b + o) for b, o in zip(self.base(box), offset, strict=True))

    def local(self, v: Value, at: Sequence[Expr]) -> Index:
        """Index within the kept box of `v` of its element at global index `at`."""
        first = self.base(self.chain.kept[v].box)
        return tuple(self.w.simple(e - b) for e, b in zip(at, first, strict=True))

    def slot(self, v: Value, offset: Sequence[Expr]) -> Index:
        """Index in the buffer of a kept value of the element at `offset` within its box."""
        return tuple(offset)

    def kept_at(self, v: Value, at: Sequence[Expr]) -> Index:
        """Index in the buffer of a kept value of its element at global index `at`."""
        return self.slot(v, self.local(v, at))

    def points(self, stage: Stage, known: Mapping[Value, Value] | None = None) -> ChainPoints:
        """Values at points of a stage. known: those of its anchor."""
        return ChainPoints(self, stage, known)

    # -- memory ----------------------------------------------------------------------------------------------
    def allocate(self, stage: Stage) -> None:
        """Shared buffers for those results of a stage that later stages read."""
        for v, _ in stage.results:
            if v in self.chain.kept:
                shape = kept_shape(self.chain, v)
                self.buffers[v] = self.w.alloc(shape, v.tensor.dtype, "shared", "kept")

    def finish(
        self, stage: Stage, known: Mapping[Value, Value], offset: Sequence[Expr], mask: Mask = ()
    ) -> None:
        """Compute the stage's maps at one point and store what is kept or returned.

        known: values of the anchor; offset: the point within the stage's domain; mask: under which the point
        exists.
        """
        w = self.w
        points = self.points(stage, known)
        for op, places in stage.members:
            box = stage.box_of(places)
            inner = [0 if p is None else offset[p] for p in places]
            at = self.place(box, inner)
            edge = w.bounds(at, tuple(dims(op, "par").values()))
            for r in op.results:
                with w.b.at(op.loc):
                    self._store(points, r, at, inner, edge, mask)

    def _store(
        self, points: ChainPoints, r: Value, at: Index, inner: Sequence[Expr], edge: Mask, mask: Mask
    ) -> None:
        w = self.w
        if r not in self.buffers and r not in w.outputs:
            return
        value = points.value(r, at, edge)
        if r in self.buffers:
            stored = value
            fill = self.chain.kept[r].fill
            if edge and fill is not None:
                outside = w.b.const(fill, r.tensor.dtype)
                stored = w.b.value("scalar.select", w.condition(edge), value, outside)
            w.store(stored, self.buffers[r], self.slot(r, inner), mask)
        if r in w.outputs:
            w.store(value, w.outputs[r], at, (*mask, *edge))


def kept_shape(chain: Chain, v: Value) -> tuple[int, ...]:
    """The shape of the shared buffer of a kept value; rows are padded where a product walks along them."""
    box = chain.kept[v].box
    extents = [s.extent for s in box]
    if len(extents) > 1 and extents[-1] > 1 and _walked(chain, v):
        extents[-1] += VECTOR_BYTES // itemsize(v.tensor.dtype)
    return tuple(extents)


def _walked(chain: Chain, v: Value) -> bool:
    """Return whether a contraction reduces over the last dimension of `v`."""
    for stage in chain.stages:
        op = stage.anchor
        if op.name == "tensor.contract":
            for x, at in zip(op.operands, reads(op), strict=True):
                if x is v and at and set(symbols(at[-1])) & set(dims(op, "red")):
                    return True
    return False


def contiguous(op: Op, operand: int, dim: str) -> bool:
    """Return whether neighbours along `dim` are neighbours in memory."""
    *outer, last = reads(op)[operand] or (0,)
    if any(dim in symbols(e) for e in outer):
        return False
    form = coefficients(last, [dim], ranges_of(op))
    return form is not None and form[0].get(dim, 0) == 1
