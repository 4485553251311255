"""Loops that keep asynchronous copies in flight across iterations: their own barriers are checked.

Such a loop is a ring of buffers: an iteration waits for the oldest group of copies, passes a barrier, starts
the copies of a later iteration and reads what has arrived. The first iterations are walked one by one, the
others once, as iteration `i` after `i - 1`, `i - 2` and so on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Block, Op, walk
from tilewright.ir.simplify import Ranges, simplify
from tilewright.ir.thread.transport_ops import BULK_COMMIT, BULK_WAIT, STORE_TILE
from tilewright.passes.thread.scopes import (
    always,
    extent_of,
    loop_ranges,
    loop_variable,
    map_indices,
    mask_of,
    never,
)
from tilewright.passes.thread.shared_accesses import UNIFORM, Access, accesses, conflict

#: buffers of a ring at most
LONGEST_RING = 8
#: what closes a group of what is in flight, and what waits for groups
_CLOSES = {
    "thread.async_commit": "copies",
    "thread.warpgroup_mma": "multiplications",
    BULK_COMMIT: "stores",
}
_WAITS = {"thread.async_wait": "copies", "thread.warpgroup_wait": "multiplications", BULK_WAIT: "stores"}
#: what was in flight, and which op should have waited for it
_UNWAITED = {
    "copies": "expected thread.async_wait between an asynchronous copy and its use",
    "multiplications": "expected thread.warpgroup_wait between a multiplication and new values of its tiles",
    "stores": f"expected {BULK_WAIT} between a store of a tile and new values of it",
}
#: ops that stand outside of inner loops and conditions
_ALONE = (*_WAITS, "thread.barrier", "thread.warpgroup_mma")
#: asynchronous reads of what threads wrote
_READS = {"thread.warpgroup_mma": "multiplication", STORE_TILE: "store"}


def keeps_copies_in_flight(loop: Op) -> bool:
    """True when a loop waits for asynchronous copies, so that some may be in flight between iterations."""
    assert loop.body is not None
    return any(op.name == "thread.async_wait" for op in walk(loop.body))


def regrouped(pending: list[Access], op: Op) -> list[Access]:
    """The pending accesses after what closes a group of copies or multiplications, or waits for one."""
    if op.name in _CLOSES and op.get("closes", True):
        kind = _CLOSES[op.name]
        return [replace(a, group=a.group + 1) if a.group is not None and a.by == kind else a for a in pending]
    if op.name in _WAITS:
        most, kind = op.integer("pending"), _WAITS[op.name]
        return [
            replace(a, group=None) if a.group is not None and a.group >= most and a.by == kind else a
            for a in pending
        ]
    return pending


def still_in_flight(pending: Sequence[Access]) -> list[Access]:
    """Return what a barrier leaves pending: it orders only copies and multiplications that are finished."""
    return [a for a in pending if a.in_flight]


def check_waited(conflicts: Sequence[Access], op: Op) -> None:
    """Raise InputError where an access that conflicts with `op` is in flight, and nobody waited for it."""
    for kind, message in _UNWAITED.items():
        if any(a.in_flight and a.by == kind for a in conflicts):
            raise InputError(message, where=op.loc)


def check_published(block: Block, readers: Collection[str] = tuple(_READS)) -> None:
    """Raise InputError for asynchronous reads of tiles that no thread published before the barrier.

    In each block the last barrier before a multiplication, or the store of a tile, must follow
    `thread.fence_async_proxy` at once; of what a warp stores by itself, the last barrier of the warp.
    readers: the ops to look at.
    """
    before, published, of_warp = "", False, False
    for op in block.ops:
        if op.name == "thread.barrier":
            published = of_warp = before == "thread.fence_async_proxy"
        if op.name == "thread.warp_barrier":
            of_warp = before == "thread.fence_async_proxy"
        if op.name in readers and not (of_warp if op.get("by_warp") else published):
            raise InputError(
                "expected thread.fence_async_proxy and a barrier between shared memory's new values and "
                f"their asynchronous {_READS[op.name]}",
                where=op.loc,
            )
        before = op.name
        if op.body is not None:
            check_published(op.body, readers)


def walk_iterations(loop: Op, pending: list[Access], ranges: Ranges) -> list[Access]:
    """Return what is pending after the loop; InputError for a hazard that no barrier of it separates."""
    extent, var = extent_of(loop), loop_variable(loop)
    assert loop.body is not None
    waits = [op.integer("pending") for op in walk(loop.body) if op.name in _WAITS]
    depth = max(waits, default=0) + 2
    apart = extent > depth + LONGEST_RING  # else remainders by the length of the ring would not show as such
    for i in range(depth if apart else extent):
        pending = _iteration(loop, i, pending, ranges)
    if not apart:
        return pending
    now = Sym(UNIFORM + var)
    steady = {**ranges, now.name: (depth, extent - 1)}
    after: list[list[Access]] = []
    for oldest in (depth, depth - 1):
        pending = []
        for distance in range(oldest, -1, -1):
            pending = _iteration(loop, now - distance, pending, steady)
        after.append(pending)
    if after[0] != after[1]:
        raise InputError("expected copies to be waited for within a few iterations", where=loop.loc)
    return pending


def _iteration(loop: Op, index: Expr, pending: list[Access], ranges: Ranges) -> list[Access]:
    """Return what is pending after the iteration with this index, given what is pending before it."""
    assert loop.body is not None
    return _walk(_at_iteration(loop.body, {loop_variable(loop): index}, ranges), pending, ranges)


def _at_iteration(block: Block, index: dict[str, Expr], ranges: Ranges) -> Block:
    out = []
    for op in block.ops:
        inner = loop_ranges(op, ranges) if op.name == "thread.loop" else ranges
        new = map_indices(op, lambda e, known=ranges: simplify(substitute(e, index), known))  # type: ignore[misc]
        if op.body is not None:
            new = replace(new, body=_at_iteration(op.body, index, inner))
        out.append(new)
    return block.with_ops(tuple(out))


def _walk(block: Block, pending: list[Access], ranges: Ranges) -> list[Access]:
    for op in block.ops:
        if op.name == "thread.barrier":
            pending = still_in_flight(pending)
            continue
        pending = regrouped(pending, op)
        if op.name == "thread.if":
            assert op.body is not None
            if any(never(m, ranges) for m in mask_of(op)):
                continue
            if not op.operands and all(always(m, ranges) for m in mask_of(op)):
                pending = _walk(op.body, pending, ranges)
                continue
        pending = pending + _checked(op, pending, ranges)
    return pending


def _checked(op: Op, pending: Sequence[Access], ranges: Ranges) -> list[Access]:
    """The accesses of one op, checked against what is pending and, inside a loop, against each other."""
    inside = list(accesses(op, ranges))
    if op.body is not None and any(o.name in _ALONE for o in walk(op.body)):
        raise InputError("expected barriers and waits outside of inner loops and conditions", where=op.loc)
    conflicts = [p for p in pending if any(conflict(p, a) for a in inside)]
    check_waited(conflicts, op)
    hazard = bool(conflicts)
    if op.body is not None:
        hazard = hazard or any(conflict(a, b) for i, a in enumerate(inside) for b in inside[i:])
    if hazard:
        raise InputError("expected a barrier between two uses of the same shared memory", where=op.loc)
    return inside
