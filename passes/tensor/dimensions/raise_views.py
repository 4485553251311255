"""Pass raise-views: products whose results a view divides are computed in the dimensions of the view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir import BinOp, Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import Ranges, simplify
from tilewright.ir.tensor.ops import dims, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import identity_read, is_copy, is_view
from tilewright.passes.rewriting.names import unused
from tilewright.passes.rewriting.values import with_indices, with_values


@register_pass(Level.TENSOR)
def raise_views(func: Func, ctx: PassContext) -> Func:
    """Compute a product in the dimensions into which a view divides its own, where a copy moves those apart.

    rewrite:  %p = tensor.contract(%a, %b, par = (b: 96, m, n), ...);
              %v = tensor.map(%p, par = (i: 8, h: 12, m, n), reads = [[i * 12 + h, m, n]]);
              %y = tensor.map(%v, par = (i, m, c), reads = [[i, c // 64, m, c % 64]])
        -->   %v = tensor.contract(%a, %b, par = (i: 8, h: 12, m, n), ...); %y = tensor.map(%v, ...)

    The heads of attention in a batch are such, where a format has products of one batch dimension. The order
    of the dimensions can then be chosen so that the copy moves nothing (`choose-layouts`). Maps between the
    product and the view are computed so as well; nothing else may read what the view reads.
    """
    if func.name != "main" or any(op.name == "tensor.call" for op in func.body.ops):
        return func
    new: dict[Op, Op | None] = {}
    for view in _dividing(func):
        new |= _raised(view, func)
    if not new:
        return func
    ops = (new.get(op, op) for op in func.body.ops)
    return func.with_body(func.body.with_ops(tuple(op for op in ops if op is not None)))


def _dividing(func: Func) -> Iterator[Op]:
    """Views that divide dimensions of what they alone read, and that a copy which moves elements reads."""
    readers: dict[Value, list[Op]] = {}
    for op in func.body.ops:
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(op)
    for op in func.body.ops:
        if not is_view(op) or all(isinstance(e, Sym) for e in reads(op)[0]):
            continue
        if not all(map(_affine, reads(op)[0])):
            continue
        end = op.result
        while len(readers.get(end, [])) == 1 and is_view(readers[end][0]):
            end = readers[end][0].result
        if any(is_copy(x) and not is_view(x) for x in readers.get(end, [])):
            yield op


def _raised(view: Op, func: Func) -> Mapping[Op, Op | None]:
    """What takes the place of the ops from a product to a view: the same over the dimensions of the view.

    Nothing where no product leads to the view by maps that read it point by point, each read once.
    """
    producers = {r: op for op in func.body.ops for r in op.results}
    uses = Counter(v for op in func.body.ops for v in op.operands)
    chain: list[Op] = []
    (value,) = view.operands
    while (op := producers.get(value)) is not None and uses[value] == 1 and len(op.results) == 1:
        chain.append(op)
        if op.name == "tensor.contract":
            return _over(view, chain[::-1])
        through = [i for i, v in enumerate(op.operands) if v.tensor.shape == op.result.tensor.shape]
        if op.name != "tensor.map" or not through or not identity_read(op, through[0]):
            return {}
        value = op.operands[through[0]]
    return {}


def _over(view: Op, chain: list[Op]) -> Mapping[Op, Op | None]:
    """The chain over the dimensions of the view, which is left out."""
    new: dict[Op, Op | None] = {view: None}
    values: dict[Value, Value] = {}
    index = reads(view)[0]
    for op in chain:
        names = {d: unused(d, dims(op, "red")) for d in dims(view, "par")}
        at = [substitute(e, {d: Sym(n) for d, n in names.items()}) for e in index]
        env: dict[str, Expr] = dict(zip(dims(op, "par"), at, strict=True))
        par = Pairs.of({names[d]: n for d, n in dims(view, "par").items()})
        moved = _Moved(env, ranges_of(op.with_attrs(par=par)))
        places = tuple(
            tuple(map(Sym, names.values())) if v in values else tuple(map(moved, read))
            for v, read in zip(op.operands, reads(op), strict=True)
        )
        result = view.result
        if op is not chain[-1]:
            result = Value(TensorType(op.result.tensor.dtype, view.result.tensor.shape), op.result.hint)
        values[op.result] = result
        new[op] = with_values(with_indices(op.with_attrs(par=par, reads=places), moved), values)
    return new


@dataclass(frozen=True)
class _Moved:
    """Gives an index over the dimensions of an op over those of a view."""

    env: Mapping[str, Expr]
    ranges: Ranges

    def __call__(self, e: Expr) -> Expr:
        return simplify(substitute(e, self.env), self.ranges)


def _affine(e: Expr) -> bool:
    if isinstance(e, BinOp):
        return e.op in "+*" and _affine(e.lhs) and _affine(e.rhs)
    return True
