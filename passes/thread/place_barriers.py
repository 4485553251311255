"""Pass place-barriers: barriers for all shared-memory hazards, as few as the order of accesses allows."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tilewright.ir.errors import InputError
from tilewright.ir.expr import symbols
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value
from tilewright.ir.simplify import Ranges
from tilewright.ir.thread.channel_ops import channels_of
from tilewright.ir.thread.role_ops import MEET, ROLE, roles_of
from tilewright.ir.thread.transport_ops import STORE_TILE
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.framework.invariants import register_invariant
from tilewright.passes.thread.channel_order import check_channels
from tilewright.passes.thread.cluster_order import check_clusters
from tilewright.passes.thread.copies_in_flight import (
    check_published,
    check_waited,
    keeps_copies_in_flight,
    regrouped,
    still_in_flight,
    walk_iterations,
)
from tilewright.passes.thread.scopes import body_ranges, launch_ranges, loop_ranges, mask_of
from tilewright.passes.thread.shared_accesses import (
    Access,
    accesses,
    conflict,
    own_accesses,
    private_to_warps,
)


@register_pass(Level.THREAD, establishes={"barriers-placed"})
def place_barriers(func: Func, ctx: PassContext) -> Func:
    """Insert barriers between accesses of different threads to the same shared memory, one of them a write.

    rewrite:  store shared; load shared   -->   store shared; barrier; load shared

    Barriers stand in uniform control only: before the loop or condition that holds the second access, and
    at the end of a loop body whose end conflicts with its beginning. Existing barriers count. Accesses that
    provably touch only the thread's own elements, or disjoint ones, need none. Raises InputError for a hazard
    inside divergent control, or one with an asynchronous copy that nothing waits for. Loops that keep
    asynchronous copies in flight bring their own barriers, which are checked (`copies_in_flight`); what
    warpgroups multiply must have been published before the barrier. A barrier in a role is one of its
    threads, so that no other role may use what it writes; buffers of channels need none (`channel_order`),
    and what is private to warps, since every access names the warp's own number first, needs one of the warp
    alone. Where blocks of a cluster meet is a barrier, too; sums over their shared memories are checked
    (`cluster_order`).
    """
    return _placed(func)


def _placed(func: Func) -> Func:
    if func["block"] == 1:
        return func
    bound = frozenset(v for c in channels_of(func) for v in c.buffers)
    check_channels(func)
    check_clusters(func)
    if roles_of(func):
        check_published(func.body, (STORE_TILE,))  # what roles multiply is the matter of channels
    else:
        check_published(func.body)
    ranges = launch_ranges(func)
    _check_roles(func, bound, ranges)
    private = private_to_warps(func.body, ranges)
    block, _, _ = _BarrierPlacer(bound, private).block(func.body, [], ranges)
    return func.with_body(block)


def _check_roles(func: Func, bound: Set[Value], ranges: Ranges) -> None:
    """Raise InputError where a role writes a buffer that others use, and no channel keeps it in order."""
    users: dict[Value, dict[str, bool]] = {}
    for role in roles_of(func):
        for a in accesses(role, body_ranges(role, ranges)):
            of_buffer = users.setdefault(a.buffer, {})
            name = str(role["name"])
            of_buffer[name] = of_buffer.get(name, False) or a.write
    for v, roles in users.items():
        if v not in bound and len(roles) > 1 and any(roles.values()):
            raise InputError(
                f"expected one role to use %{v.hint or 'buffer'}, which no channel keeps in order, "
                f"got {' and '.join(roles)}",
                where=f"@{func.name}",
            )


@register_invariant("barriers-placed")
def barriers_placed(module: Module) -> list[str]:
    """No shared-memory hazard of any kernel is left without a barrier."""
    kernels = [f for f in module.funcs if f.level is Level.THREAD]
    return [f"@{f.name} needs a barrier" for f in kernels if _placed(f) is not f]


class _BarrierPlacer:
    """Places barriers in blocks.

    bound: the buffers that channels keep in order. private: those of which each warp has a part of its own.
    """

    def __init__(self, bound: Set[Value], private: Set[Value]) -> None:
        self.bound, self.private = bound, private
        self.in_role = False

    def block(
        self, block: Block, pending: list[Access], ranges: Ranges
    ) -> tuple[Block, list[Access], tuple[list[Access], bool]]:
        """The block with barriers, what is pending after it, and the accesses before its first barrier."""
        out: list[Op] = []
        head: list[Access] = []
        in_head = True
        for op in block.ops:
            if op.name in ("thread.barrier", MEET):
                pending, in_head = still_in_flight(pending), False
                out.append(op)
                continue
            if op.name == "thread.warp_barrier":
                pending = self.after_warp_barrier(pending)
                out.append(op)
                continue
            if op.name == ROLE:
                assert op.body is not None
                self.in_role = True
                body, _, _ = self.block(op.body, [], body_ranges(op, ranges))
                self.in_role = False
                out.append(op if body is op.body else replace(op, body=body))
                continue
            pending = regrouped(pending, op)
            if op.name == "thread.loop" and keeps_copies_in_flight(op):
                pending, in_head = walk_iterations(op, pending, ranges), False
                out.append(op)
                continue
            new_op, inside, after, cut = self.op(op, ranges)
            if conflicts := [p for p in pending if any(conflict(p, a) for a in inside)]:
                check_waited(conflicts, op)
                if self.in_role and self.within_warps(conflicts):
                    out.append(Op("thread.warp_barrier", loc=op.loc))
                    pending = self.after_warp_barrier(pending)
                else:
                    out.append(Op("thread.barrier", loc=op.loc))
                    pending, in_head = still_in_flight(pending), False
            out.append(new_op)
            if in_head:
                head += inside
                in_head = not cut
            pending = after if cut else pending + after
        return block.with_ops(tuple(out)), pending, (head, in_head)

    def op(self, op: Op, ranges: Ranges) -> tuple[Op, list[Access], list[Access], bool]:
        """The op, the accesses before its first barrier, those after its last, and whether it has one."""
        if op.name == "thread.loop":
            return self.loop(op, ranges)
        if self.in_role and op.name == "thread.if" and _is_uniform(op):
            assert op.body is not None
            body, after, (head, _) = self.block(op.body, [], ranges)
            return op if body is op.body else replace(op, body=body), head, after, False
        if op.name == "thread.if":
            inside = [a for a in accesses(op, ranges) if a.buffer not in self.bound]
            self.check_divergent(op, inside)
            return op, inside, inside, False
        own = [a for a in own_accesses(op, ranges) if a.buffer not in self.bound]
        return op, own, own, False

    def loop(self, op: Op, ranges: Ranges) -> tuple[Op, list[Access], list[Access], bool]:
        assert op.body is not None
        inner = loop_ranges(op, ranges)
        body, pending, (head, open_) = self.block(op.body, [], inner)
        if conflicts := [p for p in pending if any(conflict(p, a) for a in head)]:
            ops = list(body.ops)
            at = len(ops) - 1 if ops and ops[-1].name == "thread.yield" else len(ops)
            check_waited(conflicts, op)
            own = self.in_role and self.within_warps(conflicts)
            ops.insert(at, Op("thread.warp_barrier" if own else "thread.barrier", loc=op.loc))
            body = body.with_ops(tuple(ops))
            pending, open_ = (self.after_warp_barrier(pending), open_) if own else ([], False)
        new_op = op if body is op.body else replace(op, body=body)
        return new_op, head, pending, not open_

    def within_warps(self, conflicts: Sequence[Access]) -> bool:
        """Return whether what conflicts is between threads of one warp each time."""
        return all(p.buffer in self.private for p in conflicts)

    def after_warp_barrier(self, pending: Sequence[Access]) -> list[Access]:
        """What a barrier of a warp leaves pending: it orders finished accesses to what is the warp's own.

        An access that names the warp first is ordered before those of other warps only where these never
        touch the buffer there, which one access does not tell.
        """
        return [p for p in pending if p.in_flight or p.buffer not in self.private]

    def check_divergent(self, op: Op, inside: Sequence[Access]) -> None:
        if any(conflict(a, b) for i, a in enumerate(inside) for b in inside[i + 1 :]):
            raise InputError("a hazard inside a condition cannot be separated by a barrier", where=op.loc)


def _is_uniform(op: Op) -> bool:
    """True when all threads that get to a condition find the same: its mask names no thread."""
    return not op.operands and not any(
        name == "tid" or name.startswith("lane") for part in mask_of(op) for e in part for name in symbols(e)
    )
