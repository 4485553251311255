"""Pass drop-unit-dims: intermediate values lose dimensions of extent 1, and copies that then do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir import Expr, Func, Level, Op, Pairs, TensorType, Value
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import identity_read, is_copy
from tilewright.passes.rewriting.values import with_indices, with_values

#: ops whose domain is nothing but the shape of their results
SHAPED = frozenset({"tensor.map", "tensor.contract", "tensor.reduce", "tensor.window"})


@register_pass(Level.TENSOR)
def drop_unit_dims(func: Func, ctx: PassContext) -> Func:
    """Remove dimensions of extent 1 from intermediate values.

    rewrite:  %y = tensor.contract(...) : f32[1, 128, 768]; %z = tensor.map(%y, reads = [[0, i, j]]) {yield}
        -->   %y = tensor.contract(...) : f32[128, 768], and readers of %z read %y

    Reshapes between shapes that differ only in unit dimensions (unsqueeze, squeeze, a batch of one) become
    copies of nothing and go, so that they do not stand between a product and its epilogue. Parameters,
    constants and results of the network keep their shapes.
    """
    if any(op.name == "tensor.call" for op in func.body.ops):
        return func
    dropped = _droppable(func)
    if dropped:
        fresh = {v: Value(_without(v.tensor, gone), v.hint) for v, gone in dropped.items()}
        func = func.with_body(func.body.with_ops(tuple(_rewrite(op, dropped, fresh) for op in func.body.ops)))
    return _without_copies(func)


def _droppable(func: Func) -> dict[Value, frozenset[int]]:
    """Per value the unit dimensions that every op reads at 0, some dimension being left."""
    units_of: dict[Value, set[int]] = {}
    for op in func.body.ops:
        for v in op.operands if op.name not in SHAPED else ():
            units_of.pop(v, None)
        if op.name not in SHAPED:
            continue
        ranges = ranges_of(op)
        for v, at in zip(op.operands, reads(op), strict=True):
            if v in units_of:
                units_of[v] &= {i for i, e in enumerate(at) if simplify(e, ranges) == 0}
        units = [i for i, n in enumerate(dims(op, "par").values()) if n == 1]
        for r in op.results:
            units_of[r] = set(units[1:] if len(units) == r.tensor.rank else units)
    for op in func.body.ops:  # the results of one op share its domain
        if len(op.results) > 1 and op.name in SHAPED:
            shared = set.intersection(*(units_of.get(r, set()) for r in op.results))
            units_of.update(dict.fromkeys(op.results, shared))
    _keep_what_results_keep(func, units_of)
    return {v: frozenset(gone) for v, gone in units_of.items() if gone}


def _keep_what_results_keep(func: Func, units_of: dict[Value, set[int]]) -> None:
    """Leave `units_of` such that a map has the dimensions of what it reads element by element: they may
    fuse.
    """
    for v in func.body.ops[-1].operands:
        units_of.pop(v, None)
    pairs = [
        (op.results[0], v)
        for op in func.body.ops
        if op.name == "tensor.map"
        for i, v in enumerate(op.operands)
        if v in units_of and identity_read(op, i)
    ]
    changed = True
    while changed:
        changed = False
        for made, read in (*pairs, *reversed(pairs)):
            shared = units_of.get(made, set()) & units_of[read]
            changed = changed or shared != units_of[read] or shared != units_of.get(made, set())
            units_of[read] = shared
            if made in units_of:
                units_of[made] = shared


def _without(t: TensorType, gone: frozenset[int]) -> TensorType:
    return replace(t, shape=tuple(n for i, n in enumerate(t.shape) if i not in gone))


def _rewrite(op: Op, dropped: Mapping[Value, frozenset[int]], fresh: Mapping[Value, Value]) -> Op:
    if op.name not in SHAPED:
        return op
    par = list(dims(op, "par").items())
    gone = dropped.get(op.results[0], frozenset())
    env: dict[str, Expr] = {par[i][0]: 0 for i in gone}
    if not env and not any(v in dropped for v in op.operands):
        return op
    places = tuple(
        tuple(substitute(e, env) for i, e in enumerate(at) if i not in dropped.get(v, ()))
        for v, at in zip(op.operands, reads(op), strict=True)
    )
    items = tuple(item for i, item in enumerate(par) if i not in gone)
    new = op.with_attrs(par=Pairs(items), reads=places)
    return with_values(with_indices(new, lambda e: substitute(e, env)), fresh)


def _without_copies(func: Func) -> Func:
    """The program without copies that keep every element in its place, but for its results."""
    returned = set(func.body.ops[-1].operands)
    same: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        op = op.with_operands(tuple(same.get(v, v) for v in op.operands))
        if is_copy(op) and op.result not in returned:
            source = op.operands[0]
            if source.type == op.result.type and identity_read(op, 0):
                same[op.result] = source
                continue
        ops.append(op)
    return func.with_body(func.body.with_ops(tuple(ops))) if same else func
