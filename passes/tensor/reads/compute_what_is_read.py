"""Pass compute-what-is-read: values that are read in part are computed in that part alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, prod

from tilewright.ir import Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import Ranges, interval, linear, simplify, within
from tilewright.ir.tensor.ops import STRUCTURED, dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.values import with_indices, with_values

#: the share of a value's elements that may be read where it is computed in part: a margin less is not worth
#: indices that no longer begin at zero
MOST_READ = 0.5

#: per dimension the first and the last index, and the step from one to the next: 0 where there is one index
Box = tuple[tuple[int, int, int], ...]


@register_pass(Level.TENSOR)
def compute_what_is_read(func: Func, ctx: PassContext) -> Func:
    """Leave out elements of intermediate values that no op reads.

    rewrite:  %y = tensor.contract(...) : f32[8, 256, 64]; %z = tensor.map(%y, reads = [[n, 255, k]])
        -->   %y = tensor.contract(...) : f32[8, 1, 64], and %z reads it at [n, 0, k]

    rewrite:  %y = tensor.contract(...) : f32[64, 56, 56]; %z = tensor.map(%y, reads = [[c, h * 2, w * 2]])
        -->   %y = tensor.contract(...) : f32[64, 28, 28], and %z reads it at [c, h, w]

    What is read of a value is the smallest box, with steps along its dimensions, that holds the indices of
    all its readers, each over the part of its own domain that is computed. A decoder whose last token alone
    is asked for computes one row of the products behind its last attention; a residual block which only 1x1
    convolutions of stride 2 read computes every second row and column. Values keep all elements where more
    than half of them are read; so do parameters, results of the network, and what any op reads that is none
    of map, reduce, contract, window.
    """
    if any(op.name == "tensor.call" for op in func.body.ops):
        return func
    needed = _needed(func)
    parts = {v: box for v, box in needed.items() if box != _whole(v)}
    if not parts:
        return func
    fresh = {v: Value(_of_box(v.tensor, box), v.hint) for v, box in parts.items()}
    return func.with_body(func.body.with_ops(tuple(_in_part(op, parts, fresh) for op in func.body.ops)))


def _needed(func: Func) -> dict[Value, Box]:
    """The box of each computed value that is kept; the results of one op have the same."""
    seen: dict[Value, Box] = {}
    kept: dict[Value, Box] = {}
    for op in reversed(func.body.ops):
        box = None
        if op.name in STRUCTURED:
            box = _kept_of(op, seen)
            kept.update(dict.fromkeys(op.results, box))
        for i, v in enumerate(op.operands):
            read = _read(op, i, box) if box is not None else _whole(v)
            seen[v] = _union(seen[v], read) if v in seen else read
    return kept


def _kept_of(op: Op, seen: Mapping[Value, Box]) -> Box:
    """The part of its domain that an op computes: what is read of its results, or all of it."""
    whole = _whole(op.results[0])
    boxes = [seen[r] for r in op.results if r in seen]
    if not boxes:
        return whole
    box = boxes[0]
    for other in boxes[1:]:
        box = _union(box, other)
    return box if _size(box) <= MOST_READ * _size(whole) else whole


def _read(op: Op, operand: int, box: Box) -> Box:
    """What an op that computes a box of its results reads of an operand, inside the operand's bounds.

    What lies outside them has a value of its own, and stays outside of any part that reaches the bound; so
    parts have steps only along dimensions whose bounds are kept.
    """
    along = {
        **{d: _all_of(n) for d, n in dims(op, "red").items()},
        **dict(zip(dims(op, "par"), box, strict=True)),
    }
    ranges: Ranges = {d: (low, high) for d, (low, high, _) in along.items()}
    read = []
    for e, n in zip(reads(op)[operand], op.operands[operand].tensor.shape, strict=True):
        low, high = interval(e, ranges)
        if low > high or high < 0 or low >= n:
            return _whole(op.operands[operand])
        step = _step(e, along, ranges) if within(e, n, ranges) else 1
        low, high = int(max(low, 0)), int(min(high, n - 1))
        read.append((low, high, step if high > low else 0))
    return tuple(read)


def _step(e: Expr, along: Mapping[str, tuple[int, int, int]], ranges: Ranges) -> int:
    """What all differences of an index are multiples of, where its dimensions take steps."""
    step = 0
    for atom, factor in linear(e, ranges).terms:
        step = gcd(step, factor * along[atom.name][2] if isinstance(atom, Sym) and atom.name in along else 1)
    return step


def _all_of(n: int) -> tuple[int, int, int]:
    return (0, n - 1, int(n > 1))


def _whole(v: Value) -> Box:
    return tuple(map(_all_of, v.tensor.shape))


def _union(a: Box, b: Box) -> Box:
    return tuple(
        (min(p[0], q[0]), max(p[1], q[1]), gcd(p[2], q[2], p[0] - q[0])) for p, q in zip(a, b, strict=True)
    )


def _extents(box: Box) -> tuple[int, ...]:
    return tuple((high - low) // (step or 1) + 1 for low, high, step in box)


def _size(box: Box) -> int:
    return prod(_extents(box))


def _of_box(t: TensorType, box: Box) -> TensorType:
    return replace(t, shape=_extents(box))


def _in_part(op: Op, parts: Mapping[Value, Box], fresh: Mapping[Value, Value]) -> Op:
    """The op over its part of the domain, reading parts of its operands."""
    if op.name not in STRUCTURED or not any(v in parts for v in (*op.operands, *op.results)):
        return op
    par = dims(op, "par")
    box = parts.get(op.results[0], _whole(op.results[0]))
    moved: dict[str, Expr] = {
        d: Sym(d) * (step or 1) + low for d, (low, _, step) in zip(par, box, strict=True) if low or step > 1
    }
    extents = dict(zip(par, _extents(box), strict=True))
    ranges: Ranges = {d: (0, n - 1) for d, n in {**extents, **dims(op, "red")}.items()}

    def place(v: Value, at: Sequence[Expr]) -> tuple[Expr, ...]:
        begins = [(low, step or 1) for low, _, step in parts[v]] if v in parts else [(0, 1)] * len(at)
        return tuple(
            simplify((substitute(e, moved) - low) // step, ranges) if moved or low or step > 1 else e
            for e, (low, step) in zip(at, begins, strict=True)
        )

    places = tuple(place(v, at) for v, at in zip(op.operands, reads(op), strict=True))
    new = op.with_attrs(par=Pairs(tuple(extents.items())), reads=places)
    return with_values(with_indices(new, lambda e: simplify(substitute(e, moved), ranges)), fresh)
