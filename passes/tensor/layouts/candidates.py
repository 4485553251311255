"""The orders of dimensions that are compared for each value: those that some op can make use of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import permutations

from tilewright.ir import Func, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import STRUCTURED, dims, reads
from tilewright.passes.analysis.index_sets import is_copy
from tilewright.passes.tensor.layouts.axes import Order, channels_last_orders, stays_view

#: orders of one value that are compared at most; the first are those of more readers
MOST_ORDERS = 8
#: dimensions of more than one index, up to which all orders are tried for a copy to become a view
MOST_VIEWED = 4


def usable_orders(
    func: Func, *, every: bool = False, boundary: bool = False
) -> dict[Value, tuple[Order, ...]]:
    """Per value that may be stored in another order, its orders, the present one first.

    What families of kernels make use of is which dimension lies innermost (it is what vectors and
    asynchronous copies run along) and which dimensions lie beside each other as the iteration has them (they
    merge into one, and copies of them are views). So an order is compared where it puts a dimension innermost
    that an op reduces, or that a product has for columns or rows; where it groups the dimensions of a product
    as batch, rows and reduced ones; where a copy becomes a view; or where a neighbour through a map has it.
    Any other order gives each of these kernels the same innermost dimension as one of those, and no more
    dimensions to merge. every: all orders of the dimensions of more than one index, for tests of that.

    Operands of ops without domain keep their order, and so do parameters, constants and results of the
    function unless their `boundary` may move too (to see what storing weights and state otherwise would
    gain).
    """
    ends = {*func.params, *func.body.ops[-1].operands}
    fixed = set() if boundary else set(ends)
    for op in func.body.ops[:-1]:
        if op.name == "tensor.constant":
            ends.update(op.results)
        elif op.name not in STRUCTURED:
            fixed |= {*op.operands, *op.results}
    fixed |= set() if boundary else ends
    values = (*func.params, *(r for op in func.body.ops for r in op.results))
    movable = [v for v in values if v not in fixed and sum(n > 1 for n in v.tensor.shape) > 1]
    if every:
        return {v: tuple(_deduplicated(v, permutations(range(v.tensor.rank)))) for v in movable}
    orders: dict[Value, dict[Order, None]] = {v: {tuple(range(v.tensor.rank)): None} for v in movable}
    for v, order in channels_last_orders(func).items():
        if v in orders:
            orders[v][order] = None
    for op in func.body.ops:
        if op.name in STRUCTURED:
            for v, order in (*_of_result(op), *_of_operands(op)):
                if v in orders:
                    orders[v][order] = None
    ops = [op for op in func.body.ops if op.name in STRUCTURED]
    for line in (ops, ops[::-1], ops):
        for op in line:
            _pass_on(op, orders)
    return {v: tuple(_deduplicated(v, chosen))[:MOST_ORDERS] for v, chosen in orders.items()}


def _deduplicated(v: Value, orders: Iterable[Order]) -> list[Order]:
    """The first of the orders that lie the same in memory."""
    seen: dict[Order, Order] = {}
    for order in orders:
        seen.setdefault(tuple(axis for axis in order if v.tensor.shape[axis] > 1), tuple(order))
    return list(seen.values())


def _last(rank: int, axis: int) -> Order:
    return (*(k for k in range(rank) if k != axis), axis)


def _of_result(op: Op) -> list[tuple[Value, Order]]:
    """Results of products with the last dimension of their columns or rows innermost."""
    if op.name != "tensor.contract":
        return []
    par = list(dims(op, "par"))
    rows, columns = _named(reads(op)[0]), _named(reads(op)[1])
    own = ([d for d in par if d in columns - rows], [d for d in par if d in rows - columns])
    return [(r, _last(len(par), par.index(ds[-1]))) for r in op.results for ds in own if ds]


def _of_operands(op: Op) -> list[tuple[Value, Order]]:
    """Operands with a reduced dimension innermost, or grouped as a product has them, or viewed by a copy."""
    out: list[tuple[Value, Order]] = []
    reduced = dims(op, "red")
    for v, at in zip(op.operands, reads(op), strict=True):
        rank = v.tensor.rank
        plain = {e.name: axis for axis, e in enumerate(at) if isinstance(e, Sym)}
        out += [(v, _last(rank, axis)) for d, axis in plain.items() if reduced.get(d, 1) > 1]
    if op.name == "tensor.contract":
        for mine, other in ((0, 1), (1, 0)):
            out += _grouped(op, mine, other)
    if is_copy(op) and op.operands[0].tensor.size == op.result.tensor.size:
        view = _viewed(op)
        out += [(op.operands[0], view)] if view is not None else []
    return out


def _grouped(op: Op, mine: int, other: int) -> list[tuple[Value, Order]]:
    """A factor as batch, own and reduced dimensions, or with the last two groups exchanged."""
    v, at = op.operands[mine], reads(op)[mine]
    if not all(isinstance(e, Sym) for e in at if e != 0):
        return []
    reduced, shared = set(dims(op, "red")), _named(reads(op)[other])
    names = [e.name if isinstance(e, Sym) else "" for e in at]
    red = [a for a, d in enumerate(names) if d in reduced]
    batch = [a for a, d in enumerate(names) if d not in reduced and (d in shared or not d)]
    own = [a for a, d in enumerate(names) if a not in red and a not in batch]
    return [(v, (*batch, *own, *red)), (v, (*batch, *red, *own))]


def _viewed(op: Op) -> Order | None:
    """The order of a copy's operand in which the copy moves nothing; None where there is none."""
    shape = op.operands[0].tensor.shape
    wide = [axis for axis, n in enumerate(shape) if n > 1]
    if len(wide) > MOST_VIEWED:
        return None
    narrow = tuple(axis for axis, n in enumerate(shape) if n == 1)
    orders = ((*narrow, *order) for order in permutations(wide))
    return next((order for order in orders if stays_view(op, order, None)), None)


def _pass_on(op: Op, orders: dict[Value, dict[Order, None]]) -> None:
    """Give each side of a map the orders that the other one has of the same dimensions, and results of
    reductions those of what they read.
    """
    if op.name == "tensor.contract":
        return
    par = list(dims(op, "par"))
    wide = {d for d, n in dims(op, "par").items() if n > 1}
    for v, at in zip(op.operands, reads(op), strict=True):
        along = [_only(e, par) for e in at]
        named = [d for d in along if d]
        if len(set(named)) != len(named) or not wide <= set(named):
            continue
        unit = [d for d in par if d not in named]
        for r in op.results:
            if r in orders:
                for order in list(orders.get(v, ())):
                    line = unit + [along[axis] for axis in order if along[axis]]
                    orders[r][tuple(par.index(d) for d in line)] = None
            if v in orders and not dims(op, "red"):
                other = [axis for axis, d in enumerate(along) if not d]
                for order in list(orders.get(r, ())):
                    own = [along.index(par[i]) for i in order if par[i] in named]
                    orders[v][(*other, *own)] = None


def _only(e: object, par: Collection[str]) -> str:
    """The one parallel dimension that an index moves with; empty where there are none or several."""
    moving = [d for d in dict.fromkeys(symbols(e)) if d in par]  # type: ignore[arg-type]
    return moving[0] if len(moving) == 1 else ""


def _named(at: Sequence[object]) -> set[str]:
    return {d for e in at for d in symbols(e)}  # type: ignore[arg-type]
