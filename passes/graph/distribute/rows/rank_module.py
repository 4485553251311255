"""Builds the module of one rank from the decisions that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.division import OperandRows, PartialOp, SlicedOp, replaced
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.graph_ops.operands import lowest, zero
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, storage_dtype
from tilewright.ir.windows import Interval
from tilewright.passes.graph.distribute.rows.layer_axes import is_layer
from tilewright.passes.graph.distribute.rows.overlap import Parts
from tilewright.passes.graph.distribute.rows.placement import Placement, Split, sliced
from tilewright.passes.graph.distribute.rows.spreading import Spread
from tilewright.passes.graph.distribute.sharding.program import with_main
from tilewright.passes.rewriting.dead_ops import live_ops


def rank_module(module: Module, spread: Spread, rank: int, ranks: Sequence[int]) -> Module:
    """Return the module of one rank: its rows of every split op, and the exchanges between them.

    ranks: the global ranks among which the network is split; rank: the position in them.
    Weights are sliced here; the rank's module holds no other rows of them. Results are whole.
    """
    return _RankBuilder(module, spread, rank, tuple(ranks)).run()


class _RankBuilder:
    def __init__(self, module: Module, spread: Spread, rank: int, ranks: tuple[int, ...]) -> None:
        self.module, self.spread, self.rank = module, spread, rank
        self.ranks = ranks
        self.b = Builder()
        self.pool = ConstantPool(module.constants)
        self.constants: dict[Value, Op] = {}
        self.small: dict[Value, Op] = {}  # what ops that run whole, and are cheap in rows, make
        self.local: dict[Value, Value] = {p: p for p in module.main.params}
        self.whole_values: dict[Value, Value] = {}
        self.slices: dict[tuple[Value, OperandRows], Value] = {}
        self.exchanged: dict[tuple[Value, int, tuple[tuple[int, int], ...]], Value] = {}
        self.tag = 0

    def run(self) -> Module:
        main = self.module.main
        for op in main.body.ops[:-1]:
            with self.b.at(op.loc):
                self.op(op)
        last = main.body.ops[-1]
        self.b.append(replace(last, operands=tuple(self.whole(v) for v in last.operands)))
        block = self.b.block(main.params)
        return with_main(self.module, main.with_body(block.with_ops(live_ops(block))), self.pool)

    # -- ops -------------------------------------------------------------------------------------------------
    def op(self, op: Op) -> None:
        placement = self.spread.placements[op]
        if not placement.pieces:
            if op.name == "graph.constant":
                self.constants[op.result] = op
            elif (
                not is_layer(op)
                and not op_def(op.name).effects
                and all(self.spread.held[v] is None for v in op.operands)
            ):
                self.small.update((r, op) for r in op.results)
            self.b.append(op.with_operands(tuple(self.whole(v) for v in op.operands)))
            self.local.update((r, r) for r in op.results)
            return
        operands = [
            self.whole(v) if needs is None else self.rows(v, needs)
            for v, needs in zip(op.operands, placement.needs, strict=True)
        ]
        piece = placement.pieces[self.rank]
        parts = self.spread.parts[op][self.rank] if op in self.spread.parts else None
        if parts is not None:
            self.local[op.result] = self.in_parts(op, placement, parts, operands)
        elif placement.partial:
            self.local[op.result] = self.joined(op, placement, piece, operands)
        elif piece is None:
            for r in op.results:
                self.local[r] = self.filled(self.row_type(r, placement), 0.0)
        else:
            assert isinstance(piece, SlicedOp)
            made = self.emit(op, operands, piece)
            for r, value in zip(op.results, made, strict=True):
                self.local[r] = self.kept(value, placement, piece)

    def in_parts(self, op: Op, placement: Placement, parts: Parts, operands: Sequence[Value]) -> Value:
        """Rows made of own rows first, then the rows beside them, of the halo that `operands` begins with."""
        v, halo = op.operands[0], operands[0]
        source_split, needs, split = self.spread.held[v], placement.needs[0], placement.split
        if source_split is None or needs is None or split is None:
            raise AssertionError(f"{op.name} is made in parts, but not split along with what it reads")
        starts = source_split.intervals[self.rank][0], needs[self.rank].start
        made: dict[Interval, Value] = {}
        for rows in (parts.rows[parts.interior], *parts.borders):
            piece = sliced(op, split.axis, *rows)
            need = None if piece is None else piece.needs[0]
            if piece is None or need is None:
                raise AssertionError(f"{op.name} cannot be made in rows {list(rows)}")
            source, first = (halo, starts[1]) if made else (self.local[v], starts[0])
            x = self.crop(source, OperandRows(need.axis, need.start - first, need.end - first))
            (made[rows],) = self.emit(op, (x, *operands[1:]), piece)
        joined = [made[rows] for rows in parts.rows]
        return self.b.value("graph.concatenate", *joined, axis=split.axis)

    def emit(self, op: Op, operands: Sequence[Value], piece: SlicedOp | PartialOp) -> tuple[Value, ...]:
        attrs: dict[str, Attr] = {**dict(op.attrs), **piece.attrs}
        return self.b.emit(op.name, operands, attrs, hint=op.results[0].hint)

    def row_type(self, value: Value, placement: Placement) -> TensorType:
        split = placement.split
        assert split is not None
        t = value.tensor
        return TensorType(t.dtype, replaced(t.shape, split.axis, split.extents[self.rank]))

    def kept(self, value: Value, placement: Placement, piece: SlicedOp) -> Value:
        if piece.keep is None or placement.split is None:
            return value
        return self.crop(value, OperandRows(placement.split.axis, *piece.keep))

    def joined(
        self, op: Op, placement: Placement, piece: SlicedOp | PartialOp | None, operands: Sequence[Value]
    ) -> Value:
        """A partial result, joined with those of the other ranks; means as sums, in float32 at least."""
        parts = [p for p in placement.pieces if isinstance(p, PartialOp)]
        ((kind, divisor),) = {(p.reduction, p.divisor) for p in parts}
        narrow = op.result.tensor
        wide = divisor != 1 and narrow.dtype in ("f16", "bf16")
        t = TensorType("f32", narrow.shape) if wide else narrow
        if isinstance(piece, PartialOp):
            (value,) = self.emit(op, operands, piece)
            if wide:
                value = self.b.value("graph.cast", value, dtype=t.dtype)
            if piece.weight != 1:
                weight = self.filled(TensorType(t.dtype, ()), piece.weight)
                value = self.b.value("graph.multiply", value, weight)
        else:
            value = self.filled(t, zero(t.dtype) if kind == "sum" else lowest(t.dtype))
        rank, ranks = self.rank, self.ranks
        if placement.scatter and placement.split is not None:
            axis, extents = placement.split.axis, placement.split.extents
            return self.b.value(
                "graph.reduce_scatter", value, axis=axis, rank=rank, ranks=ranks, extents=extents
            )
        value = self.b.value("graph.all_reduce", value, rank=rank, ranks=ranks, reduction=kind)
        if divisor == 1:
            return value
        value = self.b.value("graph.divide", value, self.filled(TensorType(t.dtype, ()), divisor))
        return self.b.value("graph.cast", value, dtype=narrow.dtype) if wide else value

    def filled(self, t: TensorType, number: float) -> Value:
        """A constant of one number, or of none."""
        shape = "x".join(map(str, t.shape)) or "scalar"
        name = self.pool.add(f"filled.{t.dtype}.{shape}", np.full(t.shape, number, storage_dtype(t.dtype)))
        (value,) = self.b.emit("graph.constant", (), {"name": name}, types=[t])
        return value

    # -- operands --------------------------------------------------------------------------------------------
    def whole(self, v: Value) -> Value:
        """All rows of a value."""
        split = self.spread.held[v]
        if split is None:
            return self.local[v]
        if v not in self.whole_values:
            own = split.own()
            start, end = own.intervals[self.rank]
            offset = split.intervals[self.rank][0]
            inside = (start - offset, end - offset) if end > start else (0, 0)
            piece = self.crop(self.local[v], OperandRows(split.axis, *inside))
            self.whole_values[v] = self.b.value(
                "graph.all_gather",
                piece,
                axis=split.axis,
                rank=self.rank,
                ranks=self.ranks,
                extents=own.extents,
            )
        return self.whole_values[v]

    def rows(self, v: Value, needs: Sequence[OperandRows]) -> Value:
        """The rows of a value that this rank needs: as they are, cropped or exchanged, as all ranks agree."""
        split, need = self.spread.held[v], needs[self.rank]
        if split is None or split.axis != need.axis:
            return self.whole_rows(v, need)
        pairs = list(zip(needs, split.intervals, strict=True))
        if all(n.start >= n.end or (o[0] <= n.start and n.end <= o[1]) for n, o in pairs):
            start = split.intervals[self.rank][0]
            inside = OperandRows(need.axis, need.start - start, need.end - start)
            return self.crop(self.local[v], inside if need.end > need.start else OperandRows(need.axis, 0, 0))
        rows = tuple((n.start, n.end) for n in needs)
        key = v, split.axis, rows
        if key not in self.exchanged:
            self.exchanged[key] = self.exchange(v, split, rows)
        return self.exchanged[key]

    def exchange(self, v: Value, split: Split, rows: tuple[tuple[int, int], ...]) -> Value:
        self.tag += 1
        return self.b.value(
            "graph.halo_exchange",
            self.local[v],
            axis=split.axis,
            rank=self.rank,
            ranks=self.ranks,
            owned=split.intervals,
            needed=rows,
            tag=self.tag,
        )

    def whole_rows(self, v: Value, need: OperandRows) -> Value:
        """Rows of a value that every rank has whole; those of a constant become a constant."""
        if need.end - need.start == v.tensor.shape[need.axis]:
            return self.whole(v)
        source = v, need
        if source not in self.slices:
            op = self.constants.get(v)
            array = self.pool.array(op)
            if op is not None and array is not None:
                self.slices[source] = self.cut_constant(str(op["name"]), array, v.tensor, need)
            else:
                self.slices[source] = self.made_in_rows(v, need) or self.crop(self.whole(v), need)
        return self.slices[source]

    def made_in_rows(self, v: Value, need: OperandRows) -> Value | None:
        """Rows of what a cheap op makes of whole operands, made anew: the whole op is dropped if unused."""
        op = self.small.get(v)
        piece = None if op is None or need.end <= need.start else sliced(op, need.axis, need.start, need.end)
        if op is None or piece is None or piece.keep is not None:
            return None
        operands = [
            self.whole(x) if n is None else self.whole_rows(x, n)
            for x, n in zip(op.operands, piece.needs, strict=True)
        ]
        with self.b.at(op.loc):
            return self.emit(op, operands, piece)[op.results.index(v)]

    def cut_constant(self, name: str, array: np.ndarray, t: TensorType, need: OperandRows) -> Value:
        at = (slice(None),) * need.axis
        cut = np.ascontiguousarray(array[*at, need.start : need.end])
        name = self.pool.add(f"{name}.rows{need.axis}_{need.start}_{need.end}", cut)
        (value,) = self.b.emit("graph.constant", (), {"name": name}, types=[TensorType(t.dtype, cut.shape)])
        return value

    def crop(self, value: Value, need: OperandRows) -> Value:
        """Rows of a local value; itself where they are all of them."""
        shape = value.tensor.shape
        if (need.start, need.end) == (0, shape[need.axis]):
            return value
        if need.end < need.start:
            raise UnsupportedError(f"expected rows to cut from {value.type}, got [{need.start}, {need.end})")
        return self.b.value(
            "graph.strided_slice",
            value,
            begin=replaced((0,) * len(shape), need.axis, need.start),
            size=replaced(shape, need.axis, need.end - need.start),
            strides=(1,) * len(shape),
        )
