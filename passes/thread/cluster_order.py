"""What blocks of a cluster share is checked: who reads what others wrote has met them, before and after.

Blocks of a cluster meet at the top of their programs, as often in every role, so between two meetings each
buffer is either written by its own block or read by all, or else written by all or read by its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.ir.errors import InputError
from tilewright.ir.expr import evaluate, symbols
from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.simplify import Ranges
from tilewright.ir.thread.channel_ops import CONSUMER_OPS, ITEM_OPS, REUSE, channels_of
from tilewright.ir.thread.cluster_ops import GIVE, SHARE, SUM
from tilewright.ir.thread.role_ops import MEET, roles_of
from tilewright.ir.thread.tensor_maps import RANK, cluster_of
from tilewright.passes.thread.scopes import Mask, body_ranges, launch_ranges, mask_of
from tilewright.passes.thread.shared_accesses import Access, accesses

_Blocks = npt.NDArray[np.bool_]


def check_clusters(func: Func) -> None:
    """Raise InputError for sums over a cluster that may read too early, and for writes and ends too early.

    What blocks write to each other's shared memory follows the like order (`_check_given`).

    - What blocks add up is not written between the last meeting before and the next one, and all blocks of
      the cluster have written it before that, as far as conditions tell that depend on the block alone.
    - A block ends after a meeting that follows the last sum.
    - Only one role uses the buffer.
    - A buffer on the bytes of a channel is used after a barrier of the one role that receives, and that
      barrier stands after all that the role does with the channel: after the last item of the last tile,
      whichever of its tiles are its own.
    """
    summed = {op.operands[0] for op in walk(func.body) if op.name == SUM}
    reused = {op.result: op.operands[0] for op in walk(func.body) if op.name == REUSE}
    _check_given(func)
    if not summed and not reused:
        return
    roles, ranges = roles_of(func), launch_ranges(func)
    programs: list[tuple[Op | None, tuple[Op, ...], Ranges]] = [
        (r, r.body.ops, body_ranges(r, ranges)) for r in roles if r.body is not None
    ]
    grid = _Grid.of(func)
    for role, ops, inner in programs or [(None, func.body.ops, ranges)]:
        _check_order(role, ops, summed, inner, grid)
        _check_reuse(func, role, ops, reused)
    for v in (*summed, *reused):
        users = [r for r in roles if r.body is not None and any(v in o.operands for o in walk(r.body))]
        if len(users) > 1:
            names = " and ".join(str(r["name"]) for r in users)
            raise InputError(f"expected one role to use {_name(v)}, got {names}", where=users[0].loc)


def _check_given(func: Func) -> None:
    """Raise InputError for values given to other blocks that these may not expect.

    - A block writes to others when all have begun, and none ends before the last such write: they meet
      before the first one and after the last.
    - What others wrote is read when all have met since, and written over when all have met after they read.
    """
    given = {op.operands[1] for op in walk(func.body) if op.name == GIVE}
    given |= {op.operands[0] for op in walk(func.body) if op.name == SHARE}
    if not given:
        return
    ranges, begun = launch_ranges(func), False
    written: dict[Value, Op] = {}
    read: set[Value] = set()
    for op in func.body.ops:
        if op.name == MEET:
            begun = True
            written.clear()
            read.clear()
            continue
        shared = {o.operands[0] for o in _inside(op) if o.name == SHARE}
        # what a block shares it has written itself, for which a barrier of its own serves
        touched = [a for a in accesses(op, ranges) if a.buffer in given - shared]
        touched += [Access(v, True, None, 1, (), ranges) for v in shared]
        for a in touched:
            if a.write and not begun:
                raise InputError(
                    f"a block gives {_name(a.buffer)} to others before they began: expected {MEET} before",
                    where=op.loc,
                )
            if not a.write and a.buffer in written:
                raise InputError(
                    f"a block reads {_name(a.buffer)} before its writers have met: expected {MEET} between",
                    where=op.loc,
                )
            if a.write and a.buffer in read:
                raise InputError(
                    f"a block gives {_name(a.buffer)}, which others may still read: expected {MEET} before",
                    where=op.loc,
                )
        read.update(a.buffer for a in touched if not a.write)
        written.update((a.buffer, op) for a in touched if a.write)
    if written:
        v, op = next(iter(written.items()))
        raise InputError(
            f"a block ends while others may still give it {_name(v)}: expected {MEET} at its end",
            where=op.loc,
        )


def _name(v: Value) -> str:
    return v.hint or str(v.type)


def _inside(op: Op) -> list[Op]:
    return [op, *walk(op.body)] if op.body is not None else [op]


@dataclass(frozen=True)
class _Grid:
    """All blocks of a launch: what symbols are in each of them, and the number of its cluster."""

    places: dict[str, npt.NDArray[np.int64]]
    clusters: npt.NDArray[np.int64]

    @staticmethod
    def of(func: Func) -> _Grid:
        """The blocks of a kernel, of which neighbours form a cluster."""
        ranges, shape = launch_ranges(func), cluster_of(func)
        names = [f"bid.{axis}" for axis in "xyz"]
        extents = [int(ranges[name][1]) + 1 for name in names]
        at = np.indices(extents).reshape(len(extents), -1)
        sizes = [-(-extent // size) for extent, size in zip(extents, shape, strict=True)]
        numbers = np.ravel_multi_index([a // size for a, size in zip(at, shape, strict=True)], sizes)
        # the hardware counts a cluster's blocks along x first
        inside = [a % size for a, size in zip(at, shape, strict=True)]
        rank = np.ravel_multi_index(inside[::-1], shape[::-1])
        return _Grid({**dict(zip(names, at, strict=True)), RANK: rank}, numbers)

    def where(self, mask: Mask) -> _Blocks:
        """The blocks in which a mask may hold; a condition that names more than the block always may."""
        found = np.ones(len(self.clusters), dtype=np.bool_)
        for part in mask:
            if all(name in self.places for e in part for name in symbols(e)):
                value, low, high = (evaluate(e, self.places) for e in part)
                found &= (low <= value) & (value < high)
        return found

    def none(self) -> _Blocks:
        """No block."""
        return np.zeros(len(self.clusters), dtype=np.bool_)


def _sums_in(op: Op, mask: Mask = ()) -> Iterator[tuple[Op, Mask]]:
    """The sums over blocks in an op, with the conditions around them."""
    if op.name == SUM:
        yield op, mask
    if op.body is not None:
        inside = (*mask, *mask_of(op)) if op.name == "thread.if" else mask
        for o in op.body.ops:
            yield from _sums_in(o, inside)


def _check_order(
    role: Op | None, ops: tuple[Op, ...], summed: set[Value], ranges: Ranges, grid: _Grid
) -> None:
    who = f"role {role['name']}" if role is not None else "a block"
    written: dict[Value, _Blocks] = {}
    #: the blocks that had written a buffer when all met
    laid_down: dict[Value, _Blocks] = {}
    read: dict[Value, Op] = {}
    for op in ops:
        if op.name == MEET:
            laid_down.update(written)
            written.clear()
            read.clear()
            continue
        sums = {o.operands[0]: o for o in _inside(op) if o.name == SUM}
        writes: dict[Value, _Blocks] = {}
        for a in accesses(op, ranges):
            if a.write and a.buffer in summed:
                writes[a.buffer] = writes.get(a.buffer, grid.none()) | grid.where(a.mask)
        for v, o in sums.items():
            if v in written or v in writes:
                raise InputError(
                    f"{who} adds up {_name(v)} of all blocks before these have met: expected {MEET} between",
                    where=o.loc or op.loc,
                )
        for o, mask in _sums_in(op):
            missing = ~laid_down.get(o.operands[0], grid.none())
            if np.isin(grid.clusters[missing], grid.clusters[grid.where(mask)]).any():
                raise InputError(
                    f"{who} adds up {_name(o.operands[0])}, which some block of the cluster has not "
                    "written: expected conditions in which all blocks of a cluster agree",
                    where=o.loc or op.loc,
                )
        for v in writes:
            if v in read:
                raise InputError(
                    f"{who} writes {_name(v)}, which other blocks may still read: expected {MEET} before",
                    where=op.loc,
                )
        written |= {v: written.get(v, grid.none()) | blocks for v, blocks in writes.items()}
        read |= sums
    if read:
        v, o = next(iter(read.items()))
        raise InputError(
            f"{who} ends while other blocks may still read {_name(v)}: expected {MEET} at its end",
            where=o.loc,
        )


def _check_reuse(func: Func, role: Op | None, ops: tuple[Op, ...], reused: dict[Value, Value]) -> None:
    channels = {c.value: c for c in channels_of(func)}
    for v, ring in reused.items():
        users = [i for i, op in enumerate(ops) if any(v in o.operands for o in _inside(op))]
        if not users:
            continue
        channel, where = channels[ring], ops[users[0]].loc
        if role is None or channel.consumers != (role,):
            raise InputError(
                f"expected {_name(v)} in the one role that receives from channel {channel.name}", where=where
            )
        items = [
            i
            for i, op in enumerate(ops)
            if any(
                (o.name in ITEM_OPS and o.operands[0] is ring)
                or any(b in o.operands for b in channel.buffers)
                for o in _inside(op)
            )
        ]
        if not any(o.name in CONSUMER_OPS for i in items for o in _inside(ops[i])):
            continue
        last, first = max(items), users[0]
        if not any(ops[i].name == "thread.barrier" for i in range(last + 1, first)):
            raise InputError(
                f"role {role['name']} uses {_name(v)} on the bytes of channel {channel.name} before all its "
                "threads are done with that: expected thread.barrier after the last release",
                where=where,
            )
