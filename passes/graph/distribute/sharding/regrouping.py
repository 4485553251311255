"""Ops that may cut or merge the very dimension that is cut: what becomes of the pieces, if they can stay.

Reshapes, splits, slices, concatenations and repetitions: the op on a piece, and the cut of its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd, prod
from typing import cast

from tilewright.ir.facts import Elements
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import facts_of
from tilewright.passes.graph.distribute.sharding.shards import Shard, finer, reshaped, scaled


@dataclass(frozen=True, slots=True)
class Regrouped:
    """An op on pieces: the cuts of its operands and results, and the attributes for a member that differ.

    What keeps all elements in their order is done as a reshape.

    finer: the (outer, unit) of the block that would leave more units to hand out than there are now, if any.
    """

    operands: tuple[Shard, ...]
    results: tuple[Shard, ...]
    attrs: Mapping[str, Attr]
    finer: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NotRegrouped:
    """The pieces cannot stay apart. finer: the (outer, unit) of the block with which they could, if any."""

    finer: tuple[int, int] | None = None


def regrouped(op: Op, shards: Sequence[Shard | None], member: int) -> Regrouped | NotRegrouped | None:
    """Return what an op makes of the dimension that is cut; None where it does not touch it.

    shards: the cuts of all operands, of which one at least is cut.
    """
    shard = next(s for s in shards if s is not None)
    elements = facts_of(op.name).elements
    if elements is Elements.RESHAPES:
        return _reshape(op, shard, member)
    if elements is Elements.CUTS:
        return _slice(op, shard, member)
    if elements not in (Elements.SPLITS, Elements.JOINS, Elements.REPEATS):
        return None
    if op.integer("axis") % op.operands[0].tensor.rank != shard.axis:
        return None
    if elements is Elements.SPLITS:
        return _split(op, shard, member)
    if elements is Elements.JOINS:
        return _concatenate(op, shards)
    return _repeat(op, shard)


def _repeat(op: Op, shard: Shard) -> Regrouped | NotRegrouped:
    """Every element of a piece as often as of the whole."""
    repeats = op.integer("repeats")
    if not shard.block or not repeats:
        return NotRegrouped()
    after = replace(shard, parts=scaled(shard.parts, repeats))
    return Regrouped((shard,), (after,), {})


def _reshape(op: Op, shard: Shard, member: int) -> Regrouped | NotRegrouped:
    old, new = op.operands[0].tensor.shape, op.result.tensor.shape
    after, better = reshaped(shard, old, new), finer(shard, old, new) if shard.seeds else None
    if after is None:
        return NotRegrouped(better)
    if better is not None and (better[0] == 1 or shard.block // (better[0] * better[1]) <= after.block):
        better = None
    return Regrouped((shard,), (after,), {"newshape": after.held(new, member)}, better)


def _finer_blocks(shard: Shard, positions: Sequence[int]) -> NotRegrouped:
    """Blocks so small that every position along the dimension is a multiple of one."""
    step = gcd(shard.block, *positions)
    return NotRegrouped((shard.block // step, 1) if shard.block // step > 1 else None)


def _split(op: Op, shard: Shard, member: int) -> Regrouped | NotRegrouped:
    """Every result is a number of whole blocks."""
    indices = cast("tuple[int, ...]", op["indices"])
    if not shard.block or any(i % shard.block for i in indices):
        return _finer_blocks(shard, indices) if shard.block else NotRegrouped()
    cuts = [i // shard.block for i in (0, *indices)] + [shard.outer]
    if any(a >= b for a, b in pairwise(cuts)):
        return NotRegrouped()
    results = tuple(replace(shard, outer=b - a) for a, b in pairwise(cuts))
    local = tuple(c * shard.extents[member] for c in cuts[1:-1])
    return Regrouped((shard,), results, {"indices": local})


def _slice(op: Op, shard: Shard, member: int) -> Regrouped | NotRegrouped | None:
    """Part of the dimension that is cut: a number of whole blocks."""
    begin, size, strides = (cast("tuple[int, ...]", op[k]) for k in ("begin", "size", "strides"))
    d = shard.axis
    if size[d] == op.operands[0].tensor.shape[d]:
        return None
    if strides[d] != 1 or not size[d]:
        return NotRegrouped()
    if begin[d] % shard.block or size[d] % shard.block:
        return _finer_blocks(shard, (begin[d], size[d]))
    after = replace(shard, outer=size[d] // shard.block)
    first = begin[d] // shard.block * shard.extents[member]
    attrs = {
        "begin": (*begin[:d], first, *begin[d + 1 :]),
        "size": after.held(size, member),
    }
    return Regrouped((shard,), (after,), attrs)


def _concatenate(op: Op, shards: Sequence[Shard | None]) -> Regrouped | NotRegrouped:
    """Operands of whole blocks of one kind, one after another; uncut ones are cut like the others."""
    shard = max((s for s in shards if s is not None), key=lambda s: prod(s.extents))
    operands = []
    for v, s in zip(op.operands, shards, strict=True):
        extent = v.tensor.shape[shard.axis]
        alike = s is None or (s.axis, s.parts) == (shard.axis, shard.parts)
        if not alike or not shard.block or not extent or extent % shard.block:
            return NotRegrouped()
        operands.append(replace(shard, outer=extent // shard.block))
    seeds = frozenset[int]().union(*(s.seeds for s in shards if s is not None))
    after = replace(shard, outer=sum(s.outer for s in operands), seeds=seeds)
    return Regrouped(tuple(operands), (after,), {})
