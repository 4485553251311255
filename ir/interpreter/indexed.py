"""NumPy semantics of tensor ops whose element order or addresses depend on data: scan, gather, scatter, and
updates of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, evaluate
from tilewright.ir.interpreter.body import UFUNCS, Axes, run_body
from tilewright.ir.interpreter.fetch import (
    CHUNK,
    Box,
    OperandAccess,
    axes,
    bounds_mask,
    boxes,
    fetch,
    row_tile,
    take,
    whole,
)
from tilewright.ir.nodes import Block, Op
from tilewright.ir.tensor.indexed_ops import row_groups
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import ScalarType, numpy_dtype


def evaluate_scan(op: Op, x: np.ndarray) -> np.ndarray:
    """Running fold along `dim`, vectorised over the other dimensions."""
    assert op.body is not None
    par, dim = dims(op, "par"), str(op["dim"])
    order = list(par)
    dtype = numpy_dtype(op.result.tensor.dtype)
    out = np.empty(tuple(par.values()), dtype)
    if out.size == 0:
        return out
    axis, init = order.index(dim), np.asarray(op["init"]).astype(dtype)
    access = OperandAccess.of(reads(op)[0], ranges_of(op), fills(op)[0])
    ufunc = _accumulator(op.body)
    if ufunc is not None and x.dtype == dtype:
        full = np.broadcast_to(fetch(x, access, whole(par), order), out.shape)
        return _accumulate(ufunc, full, init, axis, op)
    total = np.full([1 if n == dim else par[n] for n in order], init)
    steps = range(par[dim] - 1, -1, -1) if op["reverse"] else range(par[dim])
    for i in steps:
        box = {**whole(par), dim: (i, i + 1)}
        at = (slice(None),) * axis + (slice(i, i + 1),)
        before = total
        (total,) = run_body(op.body, [fetch(x, access, box, order), total], axes(box, order))
        total = np.broadcast_to(total, before.shape)
        out[at] = before if op["exclusive"] else total
    return out


def _accumulator(body: Block) -> np.ufunc | None:
    """The ufunc of a body that is one commutative op on the element and the accumulator."""
    if len(body.ops) != 2 or body.ops[0].name not in UFUNCS:
        return None
    op = body.ops[0]
    simple = set(op.operands) == set(body.params) and body.ops[1].operands == (op.result,)
    return UFUNCS[op.name] if simple else None


def _accumulate(ufunc: np.ufunc, x: np.ndarray, init: np.ndarray, axis: int, op: Op) -> np.ndarray:
    if op["reverse"]:
        x = np.flip(x, axis)
    start = np.broadcast_to(init, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    chain = np.concatenate([start, x], axis=axis)
    out = ufunc.accumulate(chain, axis=axis, dtype=x.dtype)
    keep = slice(0, -1) if op["exclusive"] else slice(1, None)
    out = out[(slice(None),) * axis + (keep,)]
    return np.ascontiguousarray(np.flip(out, axis) if op["reverse"] else out)


def evaluate_gather(op: Op, operands: Sequence[np.ndarray]) -> np.ndarray:
    """`data[at]` over par, with indices out of bounds clipped, wrapped, or giving the fill value."""
    par, mode = dims(op, "par"), op["mode"]
    if mode not in ("clip", "wrap", "fill"):
        raise InputError(f"tensor.gather: expected mode clip, wrap or fill, got '{mode}'")
    order, data = list(par), operands[0]
    out = np.empty(tuple(par.values()), data.dtype)
    if data.size == 0 and out.size and mode != "fill":
        raise InputError(f"tensor.gather: expected data with elements to {mode} into, got shape {data.shape}")
    for box, at, _ in _addresses(op, operands[1:], reads(op), par):
        if mode == "wrap":
            at = [i % n for i, n in zip(at, data.shape, strict=True)]
        values = take(data, at, len(order))
        inside = bounds_mask(at, data.shape) if mode == "fill" else None
        if inside is not None:
            values = np.where(inside, values, np.asarray(op["fill_value"]).astype(data.dtype))
        out[tuple(slice(*box[n]) for n in order)] = values
    return out


def _addresses(
    op: Op, indices: Sequence[np.ndarray], where: Sequence[Sequence[Expr]], par: Mapping[str, int]
) -> Iterator[tuple[Box, list[np.ndarray], Axes]]:
    """Per box of the domain: the coordinates `at` and the values of the iteration dimensions."""
    order, ranges = list(par), ranges_of(op)
    accesses = [OperandAccess.of(e, ranges) for e in where]
    for box in boxes(par, row_tile(par, CHUNK)):
        env = axes(box, order)
        known = dict(env)
        for k, (x, access) in enumerate(zip(indices, accesses, strict=True)):
            known[f"i{k}"] = fetch(x, access, box, order).astype(np.int64)
        yield box, [np.asarray(evaluate(e, known), dtype=np.int64) for e in op.exprs("at")], env


def evaluate_scatter(op: Op, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A copy of the first operand, updated point by point in row-major order of par."""
    par = dims(op, "par")
    order, updates = list(par), operands[1]
    out = np.array(operands[0], copy=True, order="C")
    access = OperandAccess.of(reads(op)[0], ranges_of(op))
    for box, at, env in _addresses(op, operands[2:], reads(op)[1:], par):
        shape = tuple(stop - start for start, stop in (box[n] for n in order))
        inside = bounds_mask(at, out.shape)
        keep = slice(None) if inside is None else np.broadcast_to(inside, shape).reshape(-1)
        flat = np.zeros(shape, np.int64)
        for i, n in zip(at, out.shape, strict=True):
            flat = flat * n + i
        new = np.broadcast_to(fetch(updates, access, box, order), shape).reshape(-1)[keep]
        points = {n: np.broadcast_to(v, shape).reshape(-1)[keep] for n, v in env.items()}
        _update(op, out.reshape(-1), flat.reshape(-1)[keep], new, points)
    return out


def _update(
    op: Op, old: np.ndarray, at: np.ndarray, new: np.ndarray, points: Mapping[str, np.ndarray]
) -> None:
    """`old[at[j]] = body(old[at[j]], new[j])` for j in order, in rounds in which no address occurs twice."""
    assert op.body is not None
    ufunc = _accumulator(op.body)
    if ufunc is not None:
        ufunc.at(old, at, new)
        return
    for chosen in _rounds(at):
        here = {n: v[chosen] for n, v in points.items()}
        (value,) = run_body(op.body, [old[at[chosen]], new[chosen]], here)
        old[at[chosen]] = value


def _rounds(at: np.ndarray) -> Iterator[np.ndarray]:
    """Positions grouped by how often their address occurred before, fewest first."""
    by_address = np.argsort(at, kind="stable")
    ordered = at[by_address]
    first = np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]
    starts = np.flatnonzero(first)
    occurrence = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    by_round = np.argsort(occurrence, kind="stable")
    start = 0
    for stop in np.cumsum(np.bincount(occurrence)):
        yield by_address[by_round[start:stop]]
        start = stop


def evaluate_update_rows(op: Op, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies of the tables, in which the rows that chains of updates name are new."""
    arrays = dict(zip(op.operands, operands, strict=True))
    parts = row_groups(op)
    assert parts is not None
    par, ranges = dims(op, "par"), ranges_of(op)
    box = {n: (0, extent if k else 1) for k, (n, extent) in enumerate(par.items())}
    shape = tuple(stop - start for start, stop in box.values())
    others = [
        np.broadcast_to(fetch(arrays[v], OperandAccess.of(at, ranges), box, list(par)), shape)
        for v, at in zip(parts.others, reads(op), strict=True)
    ]
    env = axes(box, list(par))
    out: list[np.ndarray] = []
    for k, (group, updates) in enumerate(zip(parts.tables, parts.updates, strict=True)):
        tables = [np.array(arrays[v], copy=True, order="C") for v in group]
        links = [arrays[v][k].astype(np.int64) for v in parts.links]
        _update_rows(op, tables, arrays[updates], links, others, env)
        out += tables
    return out


def _update_rows(
    op: Op,
    tables: Sequence[np.ndarray],
    updates: np.ndarray,
    links: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    env: Axes,
) -> None:
    """Change the rows of the tables of one group."""
    assert op.body is not None
    row, earlier, following = links
    kind = op.body.params[len(tables)].type
    assert isinstance(kind, ScalarType)
    updates = updates.astype(numpy_dtype(kind.dtype))
    begin = np.flatnonzero((earlier == 0) & (row >= 0) & (row < len(tables[0])))
    if op["combine"]:
        totals = _totals(op, updates, begin, following)
        _change_rows(op, tables, row[begin], totals, others, env)
        return
    for alive, places in _steps(begin, following):
        _change_rows(op, tables, row[begin[alive]], updates[places], others, env)


def _steps(begin: np.ndarray, following: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Step by step which chains still go on, and at which place each of them is."""
    alive, places = np.arange(len(begin)), begin
    while len(places):
        yield alive, places
        later = following[places]
        going = (later > places) & (later < len(following))
        alive, places = alive[going], later[going]


def _totals(op: Op, updates: np.ndarray, begin: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return what the updates of each chain give together."""
    totals = np.full((len(begin), *updates.shape[1:]), op["start"], updates.dtype)
    for alive, places in _steps(begin, following):
        totals[alive] = UFUNCS[f"scalar.{op['combine']}"](totals[alive], updates[places])
    return totals


def evaluate_join_updates(op: Op, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The totals of chains at the places of their first updates."""
    *updates, flags, places = operands
    out = []
    for given, earlier, following, result in zip(updates, flags, places, op.results, strict=True):
        own = given.astype(numpy_dtype(result.tensor.dtype))
        begin = np.flatnonzero(earlier == 0)
        full = np.full(own.shape, op["start"], own.dtype)
        full[begin] = _totals(op, own, begin, following.astype(np.int64))
        out.append(full)
    return out


def _change_rows(
    op: Op,
    tables: Sequence[np.ndarray],
    rows: np.ndarray,
    totals: np.ndarray,
    others: Sequence[np.ndarray],
    env: Axes,
) -> None:
    assert op.body is not None
    if not len(rows):
        return
    new = run_body(op.body, [*(t[rows] for t in tables), totals, *others], env)
    for table, value in zip(tables, new, strict=True):
        table[rows] = value
