"""Contractions as matrix products: window dimensions are visited point by point, the rest goes to BLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.ir.expr import symbols
from tilewright.ir.interpreter.body import bind, run_ops
from tilewright.ir.interpreter.fetch import OperandAccess, boxes, extent, fetch
from tilewright.ir.nodes import Op
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import numpy_dtype

#: elements of the larger operand held at a time
_OPERAND_ELEMENTS = 1 << 24


def contract(
    op: Op, operands: Sequence[np.ndarray], accesses: Sequence[OperandAccess], looped: set[str]
) -> np.ndarray:
    """`init + sum over red of a * b`; 16-bit floats accumulate in float32 and are rounded once."""
    par, red = dims(op, "par"), dims(op, "red")
    order = [*par, *red]
    dtype = numpy_dtype(op.result.tensor.dtype)
    wide = np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype
    init = op["init"][0]  # type: ignore[index]
    out = np.full(tuple(par.values()), np.asarray(init).astype(wide))
    for box in boxes({**par, **red}, _tile({**par, **red}, accesses, looped)):
        a, b = (fetch(x, at, box, order) for x, at in zip(operands, accesses, strict=True))
        a, b = (v.astype(wide, copy=False) for v in _cast(op, a, b))
        where = tuple(slice(*box[n]) for n in par)
        out[where] += product(a, b, [extent(box, n) for n in order], len(par))
    return out.astype(dtype, copy=False)


def _cast(op: Op, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """The two factors after the casts of the body."""
    assert op.body is not None
    env = bind(op.body, [a, b, np.zeros((), numpy_dtype(op.result.tensor.dtype))])
    casts = [inner for inner in op.body.ops[:-2] if inner.operands[0] is not op.body.params[2]]
    run_ops(casts, env, {})
    x, y, _ = op.body.ops[-2].operands
    return [env[x], env[y]]


def _tile(extents: Mapping[str, int], accesses: Sequence[OperandAccess], looped: set[str]) -> dict[str, int]:
    """Halve the longest dimension of an operand until what is held of it fits."""
    tile = {k: 1 if k in looped else n for k, n in extents.items()}
    for access in accesses:
        used = {n for e in access.exprs for n in symbols(e)}
        while prod(tile[n] for n in used) > _OPERAND_ELEMENTS:
            longest = max(used, key=lambda n: tile[n])
            tile[longest] = -(-tile[longest] // 2)
    return tile


def product(a: np.ndarray, b: np.ndarray, extents: Sequence[int], rank: int) -> np.ndarray:
    """Sum of `a * b` over the axes from `rank` on; both broadcast to `extents`."""
    a, b = _presum(a, b, extents, rank)
    axes = range(len(extents))
    only_a = [d for d in axes if a.shape[d] > 1 and b.shape[d] == 1]
    only_b = [d for d in axes if b.shape[d] > 1 and a.shape[d] == 1]
    if only_a and (not only_b or only_a[-1] > only_b[-1]):
        a, b, only_a, only_b = b, a, only_b, only_a
    both = [d for d in axes if a.shape[d] > 1 and b.shape[d] > 1]
    batch, summed = [d for d in both if d < rank], [d for d in both if d >= rank]
    idle = [d for d in axes if d not in (*both, *only_a, *only_b)]
    left = _matrix(a, batch, only_a, summed, [*idle, *only_b])
    right = _matrix(b, batch, summed, only_b, [*idle, *only_a])
    out = np.matmul(left, right)
    free = [*batch, *only_a, *only_b]
    out = out.reshape([extents[d] for d in free])
    out = out.transpose(sorted(range(len(free)), key=lambda i: free[i]))
    return out[tuple(slice(None) if d in free else None for d in range(rank))]


def _presum(a: np.ndarray, b: np.ndarray, extents: Sequence[int], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum each factor over the reduced axes only it has; axes neither has multiply the result."""
    reduced = range(rank, len(extents))
    mine = tuple(d for d in reduced if a.shape[d] > 1 and b.shape[d] == 1)
    theirs = tuple(d for d in reduced if b.shape[d] > 1 and a.shape[d] == 1)
    repeat = prod(extents[d] for d in reduced if a.shape[d] == 1 and b.shape[d] == 1)
    a = a.sum(axis=mine, keepdims=True, dtype=a.dtype) if mine else a
    b = b.sum(axis=theirs, keepdims=True, dtype=b.dtype) if theirs else b
    return (a * np.asarray(repeat, dtype=a.dtype) if repeat > 1 else a), b


def _matrix(
    x: np.ndarray, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int], rest: Sequence[int]
) -> np.ndarray:
    """`x` as [batch, rows, columns]; its axes `rest` have one element."""
    shape = x.shape
    ordered = x.transpose([*batch, *rows, *columns, *rest])
    return ordered.reshape(
        prod(shape[d] for d in batch), prod(shape[d] for d in rows), prod(shape[d] for d in columns)
    )
