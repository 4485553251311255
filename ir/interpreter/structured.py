"""NumPy semantics of the structured tensor ops: map, reduce, window and contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.ir.interpreter.body import Folds, recognise, run_body, run_ops
from tilewright.ir.interpreter.contract import contract
from tilewright.ir.interpreter.fetch import CHUNK, Box, OperandAccess, axes, boxes, extent, fetch, row_tile
from tilewright.ir.nodes import Block, Op
from tilewright.ir.tensor.ops import contraction, dims, fills, ranges_of, reads
from tilewright.ir.types import numpy_dtype

#: points of a map that are computed together: what their scalar ops give one another stays in the cache
_TOGETHER = 1 << 15
#: most points of a window that are visited one by one; larger windows are gathered
_LOOPED_POINTS = 4096


def evaluate_structured(op: Op, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of a structured tensor op on the arrays of its operands."""
    par = dims(op, "par")
    shape = tuple(par.values())
    if 0 in shape:
        return [np.empty(shape, numpy_dtype(r.tensor.dtype)) for r in op.results]
    if op.name == "tensor.map":
        return _map(op, operands, par)
    if 0 in dims(op, "red").values():
        return _initial(op, shape)
    accesses, looped = accesses_of(op), looped_dims(op)
    if op.name == "tensor.contract" and contraction(op) is not None:
        return [contract(op, operands, accesses, looped)]
    assert op.body is not None
    folds = recognise(op.body, len(op.results))
    if folds is None:
        return _general_reduce(op, operands, accesses)
    return _folded_reduce(op, operands, accesses, folds, looped)


def accesses_of(op: Op) -> list[OperandAccess]:
    """The access of each operand."""
    ranges = ranges_of(op)
    return [OperandAccess.of(at, ranges, fill) for at, fill in zip(reads(op), fills(op), strict=True)]


def looped_dims(op: Op) -> set[str]:
    """Reduced dimensions visited point by point, so that composite indices (`h*2 + kh`) become slices."""
    red = dims(op, "red")
    looped: set[str] = set()
    for access in accesses_of(op):
        for form in access.forms:
            if form is not None and len(form[0]) > 1:
                looped |= form[0].keys() & red.keys()
    return looped if prod(red[k] for k in looped) <= _LOOPED_POINTS else set()


def _initial(op: Op, shape: Sequence[int]) -> list[np.ndarray]:
    pairs = zip(op.results, op["init"], strict=True)  # type: ignore[arg-type]
    return [np.full(shape, np.asarray(v).astype(numpy_dtype(r.tensor.dtype))) for r, v in pairs]


def _map(op: Op, operands: Sequence[np.ndarray], par: Mapping[str, int]) -> list[np.ndarray]:
    assert op.body is not None
    order, accesses = list(par), accesses_of(op)
    outs = [np.empty(tuple(par.values()), numpy_dtype(r.tensor.dtype)) for r in op.results]
    for box in boxes(par, row_tile(par, _TOGETHER)):
        elements = [fetch(x, a, box, order) for x, a in zip(operands, accesses, strict=True)]
        for out, value in zip(outs, run_body(op.body, elements, axes(box, order)), strict=True):
            out[_slices(box, order)] = value
    return outs


def _slices(box: Box, names: Sequence[str]) -> tuple[slice, ...]:
    return tuple(slice(*box[n]) for n in names)


def _tile(par: Mapping[str, int], red: Mapping[str, int], looped: set[str]) -> dict[str, int]:
    inner = row_tile({k: 1 if k in looped else n for k, n in red.items()}, CHUNK)
    return row_tile(par, CHUNK // prod(inner.values())) | inner


def _folded_reduce(
    op: Op, operands: Sequence[np.ndarray], accesses: Sequence[OperandAccess], folds: Folds, looped: set[str]
) -> list[np.ndarray]:
    assert op.body is not None
    par, red = dims(op, "par"), dims(op, "red")
    order = [*par, *red]
    outs = [_wide(a) if f.ufunc in (np.add, np.multiply) else a
            for a, f in zip(_initial(op, tuple(par.values())), folds.folds, strict=True)]  # fmt: skip
    for box in boxes({**par, **red}, _tile(par, red, looped)):
        elements = [fetch(x, a, box, order) for x, a in zip(operands, accesses, strict=True)]
        partial = _partial(op.body, folds, elements, box, order, len(par))
        where = _slices(box, list(par))
        for out, fold, value in zip(outs, folds.folds, partial, strict=True):
            out[where] = fold.ufunc(out[where], value)
    return [
        out.astype(numpy_dtype(r.tensor.dtype), copy=False) for r, out in zip(op.results, outs, strict=True)
    ]


def _partial(
    body: Block, folds: Folds, elements: Sequence[np.ndarray], box: Box, order: Sequence[str], rank: int
) -> list[np.ndarray]:
    """The fold over one box, per result, broadcastable to the box's parallel part."""
    env = dict(zip(body.params, elements, strict=False))
    run_ops(folds.ops, env, axes(box, order))
    red_shape = tuple(extent(box, n) for n in order[rank:])
    outs = []
    for fold in folds.folds:
        value = _wide(env[fold.elements[0]]) if fold.ufunc in (np.add, np.multiply) else env[fold.elements[0]]
        for factor in fold.elements[1:]:
            value = value * env[factor].astype(value.dtype, copy=False)
        value = value.reshape((1,) * (len(order) - value.ndim) + value.shape)
        value = np.broadcast_to(value, value.shape[:rank] + red_shape)
        outs.append(fold.ufunc.reduce(value, axis=tuple(range(rank, len(order))), dtype=value.dtype))
    return outs


def _wide(array: np.ndarray) -> np.ndarray:
    """Sums and products of 16-bit floats accumulate in float32 and are rounded once."""
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


def _general_reduce(
    op: Op, operands: Sequence[np.ndarray], accesses: Sequence[OperandAccess]
) -> list[np.ndarray]:
    """Fold point by point in row-major order of the reduced domain, vectorised over the parallel one."""
    assert op.body is not None
    par, red = dims(op, "par"), dims(op, "red")
    order, ones = [*par, *red], (1,) * len(red)
    outs = _initial(op, tuple(par.values()))
    for outer in boxes(par, row_tile(par, CHUNK)):
        where = _slices(outer, list(par))
        totals = [out[where].reshape(out[where].shape + ones) for out in outs]
        shapes = [h.shape for h in totals]
        for point in boxes(red, dict.fromkeys(red, 1)):
            box = {**outer, **point}
            elements = [fetch(x, a, box, order) for x, a in zip(operands, accesses, strict=True)]
            totals = run_body(op.body, [*elements, *totals], axes(box, order))
        for out, value, shape in zip(outs, totals, shapes, strict=True):
            out[where] = np.broadcast_to(value, shape).reshape(shape[: len(par)])
    return outs
