"""The bytes that a kernel moves to and from global memory by its cut: counted from its thread-level ops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr, evaluate
from tilewright.ir.hardware_facts import SECTOR_BYTES, WARP
from tilewright.ir.nodes import Block, Func, Level, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.thread.role_ops import ROLE, threads_of
from tilewright.ir.thread.tensor_maps import RANK, cluster_of
from tilewright.ir.types import ScalarType, TensorType, itemsize

#: blocks, with iterations of outer loops, whose accesses are evaluated at least; they stand for all
SAMPLES = 4
#: threads times iterations of inner loops that are evaluated for one access of one sample, and of all samples
POINTS, ALL_POINTS = 1 << 14, 1 << 18

#: conjunction of (expression, low, high): low <= expression < high
_Mask = tuple[tuple[Expr, Expr, Expr], ...]
_READ, _WRITE = frozenset({"read"}), frozenset({"write"})


@dataclass(frozen=True)
class _Access:
    """An op that reaches global memory, the loops around it (outermost first), and what must hold."""

    op: Op
    buffer: Value
    loops: tuple[Op, ...]
    mask: _Mask
    threads: int


def moved_bytes(kernel: Func) -> int | None:
    """Bytes that all blocks of a thread-level kernel ask of global memory, in whole sectors.

    A block asks for each sector once per run of the innermost loops that its accesses stand in together: what
    its threads share, and what neighbouring accesses overlap in, comes from the first level of the caches.
    Runs of different loops, such as two passes over a row, and different blocks ask again. The copy engine
    moves whole tiles; an atomic addition moves its element both ways. Bodies under a condition of data count
    as not run, and addresses that data give count their elements. Of large grids, blocks that lie evenly in
    them stand for all. None for kernels that a library computes.
    """
    if kernel.level is not Level.THREAD:
        return None
    groups: dict[tuple[Any, ...], list[_Access]] = defaultdict(list)
    block: Any = kernel["block"]
    for a in _accesses(kernel.body, (), (), block):
        groups[a.buffer, _directions(a), a.threads, tuple(map(id, a.loops))].append(a)
    return round(sum(_group_bytes(kernel, group) for group in groups.values()))


def _accesses(block: Block, loops: tuple[Op, ...], mask: _Mask, threads: int) -> Iterator[_Access]:
    for op in block.ops:
        if op.level != "thread":
            continue
        held: Any = op.get("mask") or ()
        if op.body is None:
            if op_def(op.name).effects & (_READ | _WRITE):
                yield from (_Access(op, v, loops, mask + held, threads) for v in op.operands if _is_global(v))
        elif op.name == ROLE:
            yield from _accesses(op.body, loops, mask, threads_of(op))
        elif op.get("extent") is not None:
            yield from _accesses(op.body, (*loops, op), mask, threads)
        elif not op.operands:  # else data decide whether it runs
            yield from _accesses(op.body, loops, mask + held, threads)


def _is_global(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.type.space == "global"


def _directions(a: _Access) -> frozenset[str]:
    """What the op does to the buffer in global memory: read, write, or both."""
    found = op_def(a.op.name)
    both = found.effects & (_READ | _WRITE)
    if len(both) == 2 and "async" in found.effects:
        return _READ if a.op.operands[0] is a.buffer else _WRITE
    if len(both) == 2 and _fragment_elements(a.op):
        return _READ if found.transport is None else _WRITE
    return both


def _fragment_elements(op: Op) -> int:
    """Elements that the op moves for a whole warp; 0 where each thread moves its own."""
    tiles = [v.tensor for v in op.operands if isinstance(v.type, TensorType) and v.type.space == "frag"]
    count: Any = op.get("count") or 1
    return prod(tiles[0].shape[-2:]) * count if tiles else 0


def _group_bytes(kernel: Func, group: list[_Access]) -> float:
    """Bytes of accesses of one buffer that stand in the same loops, over all blocks and iterations."""
    env, samples, instances = _places(kernel, group[0])
    shape = np.broadcast_shapes(*(v.shape for v in env.values()))
    sample = np.broadcast_to(np.arange(samples)[:, None], shape)
    apart, sectors = 0.0, []
    for a in group:
        active = _active(a, env, shape)
        definition, size = op_def(a.op.name), itemsize(a.buffer.tensor.dtype)
        place = next((name for name in ("src", "at") if name in definition.attrs), None)
        if definition.issued_once:
            apart += np.count_nonzero(active & (env["tid"] == 0)) * prod(a.op.integers("tile")) * size
        elif elements := _fragment_elements(a.op):
            apart += np.count_nonzero(active & (env["tid"] % WARP == 0)) * elements * size
        elif place is None:
            apart += np.count_nonzero(active) * _lanes(a.op) * size
        else:
            at = np.asarray(evaluate(_offset(a.op.exprs(place), a.buffer), env))
            first = size * np.broadcast_to(at, shape)[active]
            for byte in (first, first + _lanes(a.op) * size - 1):
                sectors.append(np.stack([sample[active], byte // SECTOR_BYTES]))
    touched = _distinct(np.concatenate(sectors, axis=1)) * SECTOR_BYTES if sectors else 0
    return (apart + touched) * len(_directions(group[0])) * instances / samples


def _places(kernel: Func, a: _Access) -> tuple[dict[str, np.ndarray], int, int]:
    """Values of all symbols around an access, the samples among them, and what the samples stand for.

    Symbols of launches and outer loops are columns, those of inner loops and threads rows.
    """
    extents = {str(op["var"]): op.integer("extent") for op in a.loops}
    names = list(extents)
    inner = len(names)
    while inner and prod(extents[n] for n in names[inner - 1 :]) * a.threads <= POINTS:
        inner -= 1
    grid: Any = kernel["grid"]
    blocks = prod(cluster_of(kernel))
    outer = {f"bid.{axis}": n for axis, n in zip("xyz", grid, strict=True)}
    outer |= {RANK: blocks} if blocks > 1 else {}
    outer |= {n: extents[n] for n in names[:inner]}
    rows = {n: extents[n] for n in names[inner:]} | {"tid": a.threads}
    instances = prod(outer.values())
    count = min(instances, max(SAMPLES, ALL_POINTS // prod(rows.values())))
    samples = (2 * np.arange(count) + 1) * instances // (2 * count)
    columns = np.unravel_index(samples, tuple(outer.values()))
    points = np.unravel_index(np.arange(prod(rows.values())), tuple(rows.values()))
    env = {name: v[:, None] for name, v in zip(outer, columns, strict=True)}
    env |= {name: v[None, :] for name, v in zip(rows, points, strict=True)}
    return env, len(samples), instances // blocks if blocks > 1 else instances


def _active(a: _Access, env: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Whether the access happens, per sample and point."""
    active = np.ones(shape, dtype=bool)
    for e, low, high in a.mask:
        value = evaluate(e, env)
        active &= np.asarray(evaluate(low, env) <= value) & np.asarray(value < evaluate(high, env))
    return active


def _offset(at: tuple[Expr, ...], buffer: Value) -> Expr:
    """The element of memory at an index of a buffer."""
    offset: Expr = buffer.tensor.start
    for e, stride in zip(at, buffer.tensor.strides, strict=True):
        offset += e * stride
    return offset


def _lanes(op: Op) -> int:
    """Elements that one thread moves with the op."""
    lanes: Any = op.get("lanes")
    if lanes is None and op.operands and isinstance(op.operands[0].type, ScalarType):
        return op.operands[0].type.lanes
    return lanes or 1


def _distinct(pairs: np.ndarray) -> int:
    """Different columns of two rows of whole numbers of at least 0."""
    if not pairs.size:
        return 0
    return len(np.unique(pairs[0] * (pairs[1].max() + 1) + pairs[1]))
