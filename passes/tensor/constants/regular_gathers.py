"""Pass regular-gathers: gathers by constant indices that follow a rule are copies by index expressions."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from tilewright.ir import Builder, Expr, Level, Module, Op, Value
from tilewright.ir.expr import substitute
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.simplify import simplify, within
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied

#: largest divisor of a rule: images are enlarged by small factors
MOST_DIVISOR = 64


@register_pass(Level.TENSOR)
def regular_gathers(module: Module, ctx: PassContext) -> Module:
    """Write a gather whose indices are a constant (i * a + c) // b or (i + c) % n as a map that reads there.

    rewrite:  %y = tensor.gather(%x, "[0, 0, 1, 1, 2, 2]", par = (c: 8, y: 6), reads = [[y]], at = [c, i0])
        -->   %y = tensor.map(%x, par = (c: 8, y: 6), reads = [[c, y // 2]]) {yield}

    Nearest neighbours of an enlarged image come in like that, and images that are rotated before they are cut
    into windows. Readers see through the copy, and the order of
    its dimensions may change, where a gather would have to be computed as it is. All indices must lie inside.
    """
    pool = ConstantPool(module.constants)
    main = module.main
    producers = {r: op for op in main.body.ops for r in op.results}
    b = Builder()
    env: dict[Value, Value] = {}
    for op in main.body.ops:
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        at = _followed(op, producers, pool) if op.name == "tensor.gather" else None
        if at is None:
            b.append(fresh)
            continue
        with b.at(op.loc):
            env[op.result] = copied(b, fresh.operands[0], dims(op, "par"), at)
    if not env:
        return module
    new = main.with_body(main.body.with_ops(tuple(b.ops)))
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _followed(op: Op, producers: dict[Value, Op], pool: ConstantPool) -> tuple[Expr, ...] | None:
    """Where a gather reads, as expressions in its dimensions; None where some indices follow no rule."""
    ranges = {d: (0, n - 1) for d, n in dims(op, "par").items()}
    known: dict[str, Expr] = {}
    for k, (v, place) in enumerate(zip(op.operands[1:], reads(op), strict=True)):
        array = pool.array(producers.get(v))
        wide = [axis for axis, n in enumerate(v.tensor.shape) if n != 1]
        if array is None or not array.size or len(wide) > 1:
            return None
        where = next((e for axis, e in enumerate(place) if axis in wide), 0)
        read = rule_of(array.reshape(-1).astype(np.int64), where)
        if read is None:
            return None
        known[f"i{k}"] = simplify(read, ranges)
        axes = [axis for axis, e in enumerate(op.exprs("at")) if str(e) == f"i{k}"]
        if not axes or array.min() < 0 or array.max() >= min(op.operands[0].tensor.shape[a] for a in axes):
            return None
    at = tuple(simplify(substitute(e, known), ranges) for e in op.exprs("at"))
    # Indices that are no constants alone are expressions of the gather's own, whose mode may let them leave.
    lies = (
        str(e) in known or within(place, extent, ranges)
        for e, place, extent in zip(op.exprs("at"), at, op.operands[0].tensor.shape, strict=True)
    )
    return at if all(lies) else None


def rule_of(indices: np.ndarray, where: Expr) -> Expr | None:
    """Element `where` of the indices as an expression: a line, quotients of one, or a rotation; else None."""
    i = np.arange(len(indices))
    for a, c, b in _candidates(indices):
        if np.array_equal((i * a + c) // b, indices):
            return (where * a + c) // b
    first, extent = int(indices[0]), int(indices.max()) + 1
    if np.array_equal((i + first) % max(1, extent), indices):
        return (where + first) % extent
    return None


def _candidates(indices: np.ndarray) -> Iterator[tuple[int, int, int]]:
    first, count = int(indices[0]), len(indices)
    yield (int(indices[1]) - first if count > 1 else 0), first, 1
    extent = int(indices[-1]) + 1 - first
    if extent < 1:
        return
    common = gcd(extent, count)
    a, b = extent // common, count // common
    if b <= MOST_DIVISOR:
        yield from ((a, first * b + c, b) for c in range(b))
