"""Which values of a flat tensor program have a channels-last order, and the program in new orders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from tilewright.ir import Expr, Func, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import STRUCTURED, dims, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.index_sets import identity_read, is_copy, is_view, row_major_offset
from tilewright.passes.rewriting.values import with_types, with_values

#: position in the new order -> position in the old one
Order = tuple[int, ...]
#: bytes of the runs in which a contraction writes its result: those of a sector of the L2 cache
LEAST_RUN_BYTES = SECTOR_BYTES


def channels_last_orders(func: Func) -> dict[Value, Order]:
    """The channels-last order of every value that may change its order and has another one now.

    Channels are the dimensions that a contraction gives its result beyond those of its first operand, in the
    order in which the second one has them, and whatever later ops index with them; where the operands of an
    op differ in them, those of all. Parameters, constants, returned values and whatever an op without
    iteration domain touches keep their order; so do values whose new order would be the same in memory.
    """
    fixed = {*func.params, *func.body.ops[-1].operands}
    for op in func.body.ops:
        if op.name not in STRUCTURED:
            fixed |= {*op.operands, *op.results}
    channels: dict[Value, tuple[int, ...]] = {}
    orders: dict[Value, Order] = {}
    for op in func.body.ops:
        if op.name not in STRUCTURED:
            continue
        own_channels = _channels(op, channels, orders)
        channels.update(dict.fromkeys(op.results, own_channels))
        shape = op.results[0].tensor.shape
        order = (*(axis for axis in range(len(shape)) if axis not in own_channels), *own_channels)
        if not fixed & set(op.results) and _moves(order, shape):
            orders.update(dict.fromkeys(op.results, order))
    return orders


def copied_orders(func: Func, taken: Collection[Value]) -> dict[Value, Order]:
    """The orders in which results of 16-bit products lie as the copies of them do, which then move nothing.

    Heads of attention are an example: its result [b, head, row, n] is read as [b, row, head * n]. Rows of the
    innermost dimension stay whole, with at least `LEAST_RUN_BYTES` of memory each, so writing them takes as
    long in either order; so does reading them for sums of whole rows. Values between the product and its
    copies (casts, say) follow; `taken` values keep their order. Products of float32 stay: what multiplies
    their results copies by threads, which reads either order as fast, and kernels on lanes that hold a whole
    chain want its dimensions in one order.
    """
    fixed = {*func.params, *func.body.ops[-1].operands, *taken}
    producers = {r: op for op in func.body.ops for r in op.results}
    users: dict[Value, list[Op]] = {}
    for op in func.body.ops:
        for v in op.operands:
            users.setdefault(v, []).append(op)
    orders: dict[Value, Order] = {}
    for v, readers in users.items():
        shape = v.tensor.shape
        if v in fixed or len(shape) < 3 or shape[-1] * itemsize(v.tensor.dtype) < LEAST_RUN_BYTES:
            continue
        copies = [op for op in readers if is_copy(op) and op.result.tensor.size == v.tensor.size]
        if not copies or not all(op in copies or _sums_rows(op, v) for op in readers):
            continue
        chain = _same_places(v, producers, users)
        order = _order_of(copies, len(shape))
        if order is not None and chain and not fixed & chain and _moves(order, shape):
            orders.update(dict.fromkeys(chain, order))
    return orders


def _same_places(
    v: Value, producers: Mapping[Value, Op], users: Mapping[Value, Sequence[Op]]
) -> frozenset[Value]:
    """The values from a 16-bit product to `v`, each read by the next one alone, where it is itself.

    Maps in between may read masks of fewer elements besides: which rows of a masked attention have any key.
    """
    chain = {v}
    while (op := producers.get(v)) is not None and op.name == "tensor.map":
        whole = [i for i, operand in enumerate(op.operands) if operand.tensor.size == v.tensor.size]
        masks = all(x.tensor.dtype == "bool" for i, x in enumerate(op.operands) if i not in whole)
        if len(whole) != 1 or not masks or len(op.results) > 1 or not identity_read(op, whole[0]):
            return frozenset()
        v = op.operands[whole[0]]
        if len(users[v]) > 1:
            return frozenset()
        chain.add(v)
    if op is None or op.name != "tensor.contract" or len(op.results) > 1:
        return frozenset()
    narrow = all(itemsize(factor.tensor.dtype) == 2 for factor in op.operands)
    return frozenset(chain) if narrow else frozenset()


def _sums_rows(op: Op, v: Value) -> bool:
    """Whether an op reads a value for sums along all of its innermost dimension, a row at a time."""
    if op.name != "tensor.reduce":
        return False
    summed = dims(op, "red")
    return all(
        list(summed) == [str(at[-1])] and all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
        for operand, at in zip(op.operands, reads(op), strict=True)
        if operand is v
    )


def _order_of(copies: Sequence[Op], rank: int) -> Order | None:
    """The order of a value in which all copies of it are views; None where its last dimension would move."""
    orders = ((*first, rank - 1) for first in permutations(range(rank - 1)))
    return next((o for o in orders if all(stays_view(op, o, None) for op in copies)), None)


def _channels(
    op: Op, known: Mapping[Value, tuple[int, ...]], orders: Mapping[Value, Order]
) -> tuple[int, ...]:
    """Axes of an op's results that are channels, the innermost one last."""
    par = list(dims(op, "par"))
    if op.name == "tensor.contract":
        places = [reordered(at, orders.get(v)) for v, at in zip(op.operands, reads(op), strict=True)]
        a, b = ([d for e in at for d in symbols(e)] for at in places[:2])
        # Columns lie as the second factor has them: those of all phases of a stride, of each the channels.
        own = [d for d in dict.fromkeys(b) if d in par]
        return tuple(par.index(d) for d in [d for d in own if d not in a] or own)
    given: list[tuple[int, ...]] = []
    for v, at in zip(op.operands, reads(op), strict=True):
        channels = known.get(v, ())
        # A row of an image that phases of a stride make up is no channel, though its phase lies among them.
        others = {d for axis, e in enumerate(at) if axis not in channels for d in symbols(e)}
        named = [d for axis in channels for d in symbols(at[axis]) if d in par and d not in others]
        axes = dict.fromkeys(map(par.index, named))
        same = at == tuple(map(Sym, par))
        given += [tuple(axes if same else sorted(axes))] if axes else []
    # What was one dimension of channels and bands (a flat image) has both for channels where it is taken
    # apart again; of these, channels are what the other operands know as such.
    common = [axis for axis in given[0] if all(axis in axes for axes in given)] if given else []
    return tuple(common or dict.fromkeys(axis for axes in given for axis in axes))


def _moves(order: Order, shape: Sequence[int]) -> bool:
    """Return whether elements lie elsewhere in the new order; dimensions of one index may stand anywhere."""
    wide = [axis for axis in order if shape[axis] > 1]
    return wide != sorted(wide)


def reordered(items: Sequence[Expr], order: Order | None) -> tuple[Expr, ...]:
    """Per-axis items of a value in its new order (None: in its old one)."""
    return tuple(items) if order is None else tuple(items[axis] for axis in order)


def stays_view(op: Op, source: Order | None, target: Order | None) -> bool:
    """Return whether a copy from a value in the order `source` to one in the order `target` moves no
    element.
    """
    shape = reordered(op.operands[0].tensor.shape, source)
    par = dims(op, "par")
    names = reordered([Sym(d) for d in par], target)
    extents = reordered(tuple(par.values()), target)
    read = row_major_offset(reordered(reads(op)[0], source), [int(str(n)) for n in shape])
    written = row_major_offset(names, [int(str(n)) for n in extents])
    return simplify(read - written, ranges_of(op)) == 0


def rewritten(func: Func, orders: Mapping[Value, Order]) -> Func:
    """The program with these values in their new orders: domains of producers, reads of consumers.

    Parameters and results among them have other types then.
    """
    fresh = {
        v: Value(replace(v.tensor, shape=tuple(v.tensor.shape[axis] for axis in order)), v.hint)
        for v, order in orders.items()
    }
    return with_types(func, tuple(_rewrite(op, orders, fresh) for op in func.body.ops), fresh)


def _rewrite(op: Op, orders: Mapping[Value, Order], fresh: Mapping[Value, Value]) -> Op:
    if op.name not in STRUCTURED or not any(v in orders for v in (*op.operands, *op.results)):
        return op
    par = tuple(dims(op, "par").items())
    order = orders.get(op.results[0])
    if order is not None:
        par = tuple(par[axis] for axis in order)
    places = tuple(reordered(at, orders.get(v)) for v, at in zip(op.operands, reads(op), strict=True))
    op = op.with_attrs(par=Pairs(par), reads=places)
    if op.name == "tensor.reduce" and op.operands[0] in orders:
        op = op.with_attrs(red=_walked(op))
    return with_values(op, fresh)


def _walked(op: Op) -> Pairs:
    """The reduced dimensions of a sum in the order in which its first operand lies in memory.

    Threads walk along the last one together: of channels last, these are channels of a group, not columns.
    """
    red = dims(op, "red")
    read = [d for e in reads(op)[0] for d in sorted(symbols(e)) if d in red]
    order = {d: i for i, d in enumerate(read)}
    return Pairs(tuple(sorted(red.items(), key=lambda item: order.get(item[0], -1))))


def conversions(func: Func, orders: Mapping[Value, Order]) -> tuple[Op, ...]:
    """Ops that have to move elements only because of the new orders, in program order.

    They are views that would no longer be ones, and maps that read a value where they are themselves, now in
    another order than their result's.
    """
    return tuple(op for op in func.body.ops if op.name == "tensor.map" and _converts(op, orders))


def _converts(op: Op, orders: Mapping[Value, Order]) -> bool:
    target = orders.get(op.results[0])
    if is_view(op):
        return not stays_view(op, orders.get(op.operands[0]), target)
    par = tuple(map(Sym, dims(op, "par")))
    shape = op.results[0].tensor.shape
    return any(
        at == par and v.tensor.shape == shape and orders.get(v) != target and _differ(orders, v, target)
        for v, at in zip(op.operands, reads(op), strict=True)
        if isinstance(v.type, TensorType)
    )


def _differ(orders: Mapping[Value, Order], v: Value, target: Order | None) -> bool:
    rank, shape = v.tensor.rank, v.tensor.shape
    mine, other = (o if o is not None else tuple(range(rank)) for o in (orders.get(v), target))
    return [a for a in mine if shape[a] > 1] != [a for a in other if shape[a] > 1]
