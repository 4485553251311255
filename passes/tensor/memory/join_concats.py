"""Concatenations become joins: arrays whose pieces other kernels write where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.costmodel import Hardware, load_hardware
from tilewright.ir import (
    Builder,
    Expr,
    Func,
    Level,
    Op,
    Pairs,
    Sym,
    TensorType,
    Value,
)
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.join_ops import boxes_of
from tilewright.ir.tensor.ops import STRUCTURED, dims, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import identity_read, is_view
from tilewright.passes.rewriting.values import copied_ops, with_indices

#: pieces of one concatenation that may need a kernel that copies them
MAX_COPIED = 1


@register_pass(Level.TENSOR)
def join_concats(func: Func, ctx: PassContext) -> Func:
    """Turn concatenations of computed values into joins, and maps of a join into maps of its pieces.

    rewrite:  %c = tensor.map(%a, %b, reads = [[n, i, x], [n, i - 32, x]]) {select(i < 32, a, b)}
        -->   %c = tensor.join(%a, %b, at = [[0, 0, 0], [0, 32, 0]], extents = ...)
    rewrite:  %c = tensor.join(%a, %b, ...); %y = tensor.map(%c, %g, reads = [[n, i, x], [i]])
        -->   %0 = tensor.map(%a, %g, reads = [[n, i, x], [i]]);
              %1 = tensor.map(%b, %g, reads = [[n, i, x], [i + 32]]); %y = tensor.join(%0, %1, ...)

    A concatenation that begins with all pieces of another one is a join of that one and the rest, so that a
    block of layers that each append to what they read shares one array. A map moves to the pieces where
    nothing else reads the join, and of pieces that lie in other joins, too, where it reads the join alone and
    writing it takes less time than a launch. What is a result of the network or a piece already is written
    twice by the kernel that makes it. At most one piece may need a kernel that copies it (an input, a
    constant), beside those that come from other ranks.
    """
    if func.name != "main" or any(op.name in ("tensor.call", "tensor.join") for op in func.body.ops):
        return func
    return _Joiner(func, ctx.hardware or load_hardware(ctx.target)).run()


@dataclass(frozen=True)
class Concat:
    """The axis of the result along which the operands lie, and the first index of each."""

    axis: int
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


class _Joiner:
    def __init__(self, func: Func, hardware: Hardware) -> None:
        self.func, self.hardware = func, hardware
        self.readers: dict[Value, int] = {}
        for op in func.body.ops:
            for v in dict.fromkeys(op.operands):
                self.readers[v] = self.readers.get(v, 0) + 1
        self.joined: dict[Value, int] = {}  # concatenations of which a value is a piece
        for op in func.body.ops:
            if concatenation(op) is not None:
                for v in dict.fromkeys(op.operands):
                    self.joined[v] = self.joined.get(v, 0) + 1
        self.returned = set(func.body.ops[-1].operands)
        self.producers: dict[Value, Op] = {}
        self.joins: dict[Value, Op] = {}
        self.contents: dict[Value, tuple[Value, ...]] = {}  # what the concatenations that are joins join
        self.pieces: set[Value] = set()
        self.ops: list[Op] = []

    def run(self) -> Func:
        for op in self.func.body.ops:
            for new in self._rewritten(op):
                self._append(new)
        return self.func.with_body(self.func.body.with_ops(tuple(self.ops)))

    def _append(self, op: Op) -> None:
        self.ops.append(op)
        self.producers.update((r, op) for r in op.results)

    def _rewritten(self, op: Op) -> Sequence[Op]:
        concat = concatenation(op)
        if concat is not None:
            return [self._join(op, concat)]
        moved = self._moved(op)
        return moved if moved is not None else [op]

    # -- joins -----------------------------------------------------------------------------------------------
    def _join(self, op: Op, concat: Concat) -> Op:
        values, sizes = self._without_prefix(op, concat)
        shape = op.result.tensor.shape
        at, extents, start = [], [], 0
        for n in sizes:
            at.append(tuple(start if d == concat.axis else 0 for d in range(len(shape))))
            extents.append(tuple(n if d == concat.axis else e for d, e in enumerate(shape)))
            start += n
        join = Op(
            "tensor.join",
            tuple(values),
            (("at", tuple(at)), ("extents", tuple(extents))),
            op.results,
            loc=op.loc,
        )
        copied = [v for v in join.operands if not self._computed(v)]
        few = sum(not self._received(v) for v in copied) <= MAX_COPIED
        if not few or len(copied) == len(join.operands):
            return op
        pieces: list[Value] = []
        for v in join.operands:
            again = v in pieces or not self._free(self._owner(v))
            pieces.append(self._written_again(v, op) if again and self._repeatable(v) else v)
        self.contents[join.result] = op.operands
        return self._recorded(join.with_operands(tuple(pieces)))

    def _written_again(self, v: Value, concat: Op) -> Value:
        """A copy of `v` that the kernel that makes it writes too.

        Its cast to its own type tells it from a view, which would be the same memory.
        """
        b = Builder(concat.loc)
        shape = v.tensor.shape
        same = elementwise_copy(b, v, shape, [Sym(f"i{d}") for d in range(len(shape))])
        for op in b.ops:
            self._append(op)
        return same

    def _recorded(self, join: Op) -> Op:
        self.joins[join.result] = join
        self.pieces.update(map(self._owner, join.operands))
        return join

    def _without_prefix(self, op: Op, concat: Concat) -> tuple[list[Value], list[int]]:
        """The pieces, those in front replaced by the longest join of the same axis that is made of them."""
        values, sizes = list(op.operands), list(concat.sizes)
        for join in reversed(self.joins.values()):
            contents = self.contents.get(join.result, ())
            n = len(contents)
            if not 0 < n < len(values) or contents[0] is not values[0]:
                continue
            along = [d for d, (a, b) in enumerate(zip(join.result.tensor.shape, op.result.tensor.shape,
                                                      strict=False)) if a != b]  # fmt: skip
            same_axis = join.result.tensor.rank == op.result.tensor.rank and along == [concat.axis]
            if same_axis and contents == tuple(values[:n]):
                return [join.result, *values[n:]], [sum(sizes[:n]), *sizes[n:]]
        return values, sizes

    def _owner(self, v: Value) -> Value:
        """The value whose memory holds `v`: what it is a view of."""
        while v in self.producers and is_view(self.producers[v]) and v not in self.returned:
            v = self.producers[v].operands[0]
        return v

    def _computed(self, v: Value) -> bool:
        """Return whether a kernel can write `v` where a join wants it, once more if it has another place
        already.
        """
        owner = self._owner(v)
        op = self.producers.get(owner)
        placeable = op is not None and (op.name in STRUCTURED or op.name in ("tensor.gather", "tensor.join"))
        return placeable and (self._free(owner) or self._repeatable(v))

    def _received(self, v: Value) -> bool:
        """Return whether it comes from another rank: one of the small pieces around a large one of its
        own.
        """
        op = self.producers.get(v)
        return op is not None and op.name == COMMUNICATE

    def _free(self, owner: Value) -> bool:
        """Return whether the memory of a value may lie anywhere: it is no result of the network and no piece
        yet.
        """
        return owner not in self.returned and owner not in self.pieces

    def _repeatable(self, v: Value) -> bool:
        """Return whether the kernel that makes `v` can write it a second time."""
        op = self.producers.get(v)
        return op is not None and op.name in STRUCTURED and not is_view(op)

    # -- maps of joins ---------------------------------------------------------------------------------------
    def _moved(self, op: Op) -> list[Op] | None:
        """The map on each piece of the only join it reads, and their join; None where it stays."""
        joined = [v for v in op.operands if v in self.joins]
        if op.name != "tensor.map" or len(op.results) != 1 or len(joined) != 1:
            return None
        (whole,) = joined
        join = self.joins[whole]
        if (
            self.readers[whole] != 1
            or whole in self.returned
            or not identity_read(op, op.operands.index(whole))
        ):
            return None
        boxes = boxes_of(join)
        owners = [self.producers.get(v) for v in join.operands]
        # A piece that is no result of its own op has another shape; one that is joined itself would spread.
        if any(o is None or o.name not in STRUCTURED or is_view(o) for o in owners):
            return None
        # Pieces of several concatenations would be kept for each of them.
        if any(self.joined.get(v, 0) > 1 for v in join.operands) and not self._launch_takes_longer(op):
            return None
        if any(v.tensor.shape != extents for v, (_, extents) in zip(join.operands, boxes, strict=True)):
            return None
        b = Builder(op.loc)
        maps = []
        for piece, (at, _) in zip(join.operands, boxes, strict=True):
            parts = {v: part for v in op.operands if (part := self._part(b, op, v, piece, at)) is not None}
            maps.append(_on_piece(op, whole, piece, at, parts))
        del self.joins[whole]
        self.ops.remove(join)
        self.pieces -= set(map(self._owner, join.operands))
        new = replace(join, operands=tuple(m.result for m in maps), results=op.results, loc=op.loc)
        self.producers.update((m.result, m) for m in maps)
        return [*b.ops, *maps, self._recorded(new)]

    def _launch_takes_longer(self, op: Op) -> bool:
        """Return whether a map that reads nothing but a join takes longer to launch than to write once more.

        Gates of a recurrence that are joined for two products, and rounded for one of them, are such joins.
        """
        written_s = op.result.tensor.nbytes / self.hardware.dram_bytes_per_s
        return len(op.operands) == 1 and written_s < self.hardware.stream.boundary_s

    def _part(self, b: Builder, op: Op, v: Value, piece: Value, at: tuple[int, ...]) -> Value | None:
        """The part of the constant `v` that a map of a join reads for one piece; None for other values.

        A constant of its own lets kernels of several pieces be one kernel.
        """
        made = self.producers.get(v)
        names = list(dims(op, "par"))
        index = reads(op)[op.operands.index(v)]
        known: list[Expr] = [Sym(d) for d in names]
        once = op.operands.count(v) == 1 and all(isinstance(e, int) or e in known for e in index)
        if made is None or made.name != "tensor.constant" or not once:
            return None
        shape, read = [], []
        for k, (e, extent) in enumerate(zip(index, v.tensor.shape, strict=True)):
            d = names.index(e.name) if isinstance(e, Sym) else -1
            shape.append(piece.tensor.shape[d] if d >= 0 else extent)
            read.append(Sym(f"i{k}") + (at[d] if d >= 0 else 0))
        if tuple(shape) == v.tensor.shape:
            return None
        return elementwise_copy(b, v, tuple(shape), read)


def _on_piece(op: Op, whole: Value, piece: Value, at: tuple[int, ...], parts: Mapping[Value, Value]) -> Op:
    """A map of a join, for the points of one piece, whose first index in the join is `at`.

    parts: operands in whose place there is only what this piece reads.
    """
    names = list(dims(op, "par"))
    par = Pairs(tuple(zip(names, piece.tensor.shape, strict=True)))
    env: dict[str, Expr] = {d: Sym(d) + first for d, first in zip(names, at, strict=True) if first}
    ranges = {d: (0, max(0, n - 1)) for d, n in zip(names, piece.tensor.shape, strict=True)}
    indices = tuple(
        index if v is whole or v in parts else tuple(simplify(substitute(e, env), ranges) for e in index)
        for v, index in zip(op.operands, reads(op), strict=True)
    )
    moved = with_indices(op, lambda e: simplify(substitute(e, env), ranges))
    assert moved.body is not None
    new = {p: Value(p.type, p.hint) for p in moved.body.params}
    params = tuple(new.values())
    body = replace(moved.body, params=params, ops=tuple(copied_ops(moved.body.ops, new)))
    result = Value(TensorType(op.result.tensor.dtype, piece.tensor.shape), op.result.hint)
    operands = tuple(piece if v is whole else parts.get(v, v) for v in op.operands)
    return replace(moved.with_attrs(par=par, reads=indices), operands=operands, results=(result,), body=body)


def elementwise_copy(b: Builder, v: Value, shape: tuple[int, ...], read: Sequence[Expr]) -> Value:
    """Elements of `v` once more: those that the indices i0, i1, ... of `shape` read."""
    # cast to its own dtype: what only copies would be read through
    return copied(b, v, {f"i{d}": n for d, n in enumerate(shape)}, read, always_cast=True)


def concatenation(op: Op) -> Concat | None:
    """The concatenation that a map is: operand k wherever the index along an axis is in range k."""
    if op.name != "tensor.map" or len(op.results) != 1 or len(op.operands) < 2 or op.body is None:
        return None
    bounds = selected_pieces(op)
    if bounds is None:
        return None
    axis, starts = bounds
    shape, names = op.result.tensor.shape, list(dims(op, "par"))
    ends = (*starts[1:], shape[axis])
    ranges = ranges_of(op)
    for v, at, start, end in zip(op.operands, reads(op), starts, ends, strict=True):
        box = tuple(end - start if d == axis else n for d, n in enumerate(shape))
        place: list[Expr] = [Sym(d) for d in names]
        place[axis] -= start
        read = list(at)
        if v.tensor.shape == (*box[:axis], *box[axis + 1 :]) and end - start == 1:
            del place[axis]  # the operands lie along an axis of their own
        elif v.tensor.rank > len(box) and [n for n in v.tensor.shape if n > 1] == [n for n in box if n > 1]:
            # messages keep the dimensions of one element that maps have dropped
            place = [e for e, n in zip(place, box, strict=True) if n > 1]
            read = [e for e, n in zip(read, v.tensor.shape, strict=True) if n > 1]
        elif v.tensor.shape != box:
            return None
        if any(simplify(a - b, ranges) != 0 for a, b in zip(read, place, strict=True)):
            return None
    sizes = tuple(b - a for a, b in zip(starts, ends, strict=True))
    return Concat(axis, starts, sizes) if all(sizes) and all(shape) else None


def selected_pieces(op: Op) -> tuple[int, tuple[int, ...]] | None:
    """Axis and first indices where the body is select(i < s1, p0, select(i < s2, p1, ... pk)); else None."""
    if op.name != "tensor.map" or op.body is None:
        return None
    made = {r: o for o in op.body.ops for r in o.results}
    (value,) = op.body.ops[-1].operands
    starts, index, left = [0], None, list(op.body.params)
    while value in made:
        select = made[value]
        if select.name != "scalar.select" or len(left) < 2 or select.operands[1] is not left.pop(0):
            return None
        test = made.get(select.operands[0])
        if test is None or test.name != "scalar.lt" or not all(v in made for v in test.operands):
            return None
        where, bound = (made[v] for v in test.operands)
        if where.name != "scalar.index" or bound.name != "scalar.const" or index not in (None, where["at"]):
            return None
        index = where["at"]
        first: Any = bound["value"]
        starts.append(int(first))
        value = select.operands[2]
    names = list(dims(op, "par"))
    if left != [value] or not isinstance(index, Sym) or index.name not in names:
        return None
    if starts != sorted(set(starts)):
        return None
    return names.index(index.name), tuple(starts)
