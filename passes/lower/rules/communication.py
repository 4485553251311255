"""Communication between ranks: local slices, one tensor.communicate, and what puts the pieces together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.ir import Attr, Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.communication import halo_pieces
from tilewright.ir.tensor.communication_ops import COLLECTIVE_TAG, COMMUNICATE
from tilewright.passes.lower.lowering import RULES, dim_names, lowering, nothing, result_type
from tilewright.passes.lower.rules.shaping import moved, reshaped


@lowering("graph.send")
def send(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """An exchange of one message; what has no elements is not sent."""
    exchange = _Exchange()
    exchange.send(x[0], op.integer("to"), op.integer("tag"))
    exchange.emit(b)
    return []


@lowering("graph.recv")
def recv(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """An exchange of one message."""
    exchange = _Exchange()
    exchange.receive(result_type(op), op.integer("source"), op.integer("tag"))
    return exchange.emit(b)


@lowering("graph.halo_exchange")
def halo_exchange(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Slices for the others, one exchange, and the own slice between what comes; nothing moves of the rest.

    What a member needs of this one is sent piece by piece, in rising order, as the member receives it.
    """
    owned, needed, ranks, rank = _halo(op)
    axis, tag, first = op.integer("axis") % x[0].tensor.rank, op.integer("tag"), owned[rank][0]
    exchange = _Exchange()
    for member, peer in enumerate(ranks):
        for piece in halo_pieces(owned, needed, member) if member != rank else ():
            if piece.member == rank:
                exchange.send(rows(b, x[0], axis, piece.start - first, piece.end - first), peer, tag)
    pieces = halo_pieces(owned, needed, rank)
    for piece in pieces:
        if piece.member != rank:
            exchange.receive(with_rows(x[0].tensor, axis, piece.end - piece.start), ranks[piece.member], tag)
    received = iter(exchange.emit(b))
    t = result_type(op)
    if not t.size:
        return [nothing(b, t)]
    parts = [
        rows(b, x[0], axis, p.start - first, p.end - first) if p.member == rank else next(received)
        for p in pieces
    ]
    return [_concatenated(b, parts, t, axis)]


@lowering("graph.all_gather")
def all_gather(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Along the outermost axis the members' pieces lie in memory as in the result: one all_gather.

    Along another axis, or where a piece is empty, every member sends its piece to all others, and a join
    puts the pieces where they belong; so the own piece may be computed in its place.
    """
    t, ranks, rank = result_type(op), op.integers("ranks"), op.integer("rank")
    axis, extents = op.integer("axis") % t.rank, op.integers("extents")
    if not t.size:
        return [nothing(b, t)]
    if len(ranks) == 1:
        return [x[0]]
    if prod(t.shape[:axis]) == 1 and all(extents):
        inner = prod(t.shape[axis + 1 :])
        return _collective(b, "all_gather", x[0], t, op, tuple(n * inner for n in extents))
    exchange = _Exchange()
    for member, peer in enumerate(ranks):
        if member != rank:
            exchange.send(x[0], peer, COLLECTIVE_TAG)
            exchange.receive(with_rows(x[0].tensor, axis, extents[member]), peer, COLLECTIVE_TAG)
    received = iter(exchange.emit(b))
    parts = [x[0] if m == rank else next(received) for m, n in enumerate(extents) if n]
    return [_concatenated(b, parts, t, axis)]


@lowering("graph.all_reduce")
def all_reduce(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """One all_reduce of the whole tensor."""
    if len(op.integers("ranks")) == 1:
        return [x[0]]
    return _collective(b, "all_reduce", x[0], result_type(op), op, ())


@lowering("graph.reduce_scatter")
def reduce_scatter(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The axis in front, so that every member's part is one piece of memory; one reduce_scatter; and back."""
    t, source = result_type(op), x[0].tensor
    axis, extents = op.integer("axis") % t.rank, op.integers("extents")
    if not source.size:
        return [nothing(b, t)]
    if len(extents) == 1:
        return [x[0]]
    front = [axis, *(d for d in range(t.rank) if d != axis)]
    inner = source.size // source.shape[axis]
    counts = tuple(n * inner for n in extents)
    if not all(extents):
        # A member without a piece has no result: the sum of all, of which each takes its own.
        (total,) = _collective(b, "all_reduce", x[0], source, op, ())
        start = sum(extents[: op.integer("rank")])
        return [rows(b, total, axis, start, start + t.shape[axis]) if t.size else nothing(b, t)]
    packed = _permuted(b, x[0], front)
    part_type = TensorType(t.dtype, tuple(t.shape[d] for d in front))
    (part,) = _collective(b, "reduce_scatter", packed, part_type, op, counts)
    return [_permuted(b, part, [front.index(d) for d in range(t.rank)])]


@dataclass
class _Exchange:
    """Messages that are posted at once; tensors without elements are no messages."""

    operands: list[Value] = field(default_factory=list)
    results: list[TensorType] = field(default_factory=list)
    sends: list[tuple[int, int, int]] = field(default_factory=list)
    receives: list[tuple[int, int, int]] = field(default_factory=list)

    def send(self, x: Value, peer: int, tag: int) -> None:
        if x.tensor.size:
            if x not in self.operands:
                self.operands.append(x)
            self.sends.append((peer, tag, self.operands.index(x)))

    def receive(self, t: TensorType, peer: int, tag: int) -> None:
        if t.size:
            self.receives.append((peer, tag, len(self.results)))
            self.results.append(t)

    def emit(self, b: Builder) -> Sequence[Value]:
        """The op, where there is a message; what it receives."""
        if not self.sends and not self.receives:
            return ()
        attrs: dict[str, Attr] = {
            "kind": "exchange", "sends": tuple(self.sends), "receives": tuple(self.receives)
        }  # fmt: skip
        return b.emit(COMMUNICATE, self.operands, attrs, types=self.results, hint="received")


def _collective(
    b: Builder, kind: str, x: Value, result: TensorType, op: Op, counts: tuple[int, ...]
) -> Sequence[Value]:
    attrs: dict[str, Attr] = {"kind": kind, "members": op.integers("ranks"), "position": op.integer("rank")}
    attrs |= {"counts": counts, "reduction": op.get("reduction") or "sum"}
    return b.emit(COMMUNICATE, [x], attrs, types=[result], hint="gathered")


def _halo(
    op: Op,
) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]], tuple[int, ...], int]:
    owned: Any = op["owned"]
    needed: Any = op["needed"]
    return owned, needed, op.integers("ranks"), op.integer("rank")


def with_rows(t: TensorType, axis: int, extent: int) -> TensorType:
    """The type with another extent along one axis."""
    return TensorType(t.dtype, (*t.shape[:axis], extent, *t.shape[axis + 1 :]))


def rows(b: Builder, x: Value, axis: int, start: int, end: int) -> Value:
    """The rows [start, end) of `x` along an axis; `x` itself where these are all."""
    if (start, end) == (0, x.tensor.shape[axis]):
        return x
    t = with_rows(x.tensor, axis, end - start)
    read: list[Expr] = [Sym(d) for d in dim_names(t.rank)]
    read[axis] += start
    return moved(b, x, t, read)


def _permuted(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """Dimension axes[d] of `x` as dimension d; without a copy where no element moves."""
    if list(axes) == sorted(axes):
        return x
    t = TensorType(x.tensor.dtype, tuple(x.tensor.shape[d] for d in axes))
    if [d for d in axes if x.tensor.shape[d] > 1] == sorted(d for d in axes if x.tensor.shape[d] > 1):
        return reshaped(b, x, t)
    names = dim_names(t.rank)
    return moved(b, x, t, [Sym(names[list(axes).index(d)]) for d in range(t.rank)])


def _concatenated(b: Builder, parts: Sequence[Value], t: TensorType, axis: int) -> Value:
    """The parts one after another, by the rule of graph.concatenate."""
    if len(parts) == 1:
        return parts[0]
    op = Op("graph.concatenate", tuple(parts), (("axis", axis),), (Value(t),))
    (joined,) = RULES["graph.concatenate"](b, op, parts)
    return joined
