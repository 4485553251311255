"""What blocks of a cluster share is checked: who reads what others wrote has met them, before and after.

Blocks of a cluster meet at the top of their programs, as often in every role, so between two meetings each
buffer is either written by its own block or read by all, or else written by all or read by its own.
"""

from __future__ import annotations

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.simplify import Ranges
from tilewright.ir.thread.channel_ops import CONSUMER_OPS, ITEM_OPS, REUSE, channels_of
from tilewright.ir.thread.cluster_ops import GIVE, SHARE, SUM
from tilewright.ir.thread.role_ops import MEET, roles_of
from tilewright.passes.thread.scopes import body_ranges, launch_ranges
from tilewright.passes.thread.shared_accesses import Access, accesses


def check_clusters(func: Func) -> None:
    """Raise InputError for sums over a cluster that may read too early, and for writes and ends too early.

    What blocks write to each other's shared memory follows the like order (`_check_given`).

    - What blocks add up is not written between the last meeting before and the next one.
    - A block ends after a meeting that follows the last sum.
    - Only one role uses the buffer.
    - A buffer on the bytes of a channel is used after a barrier of the one role that receives, and that
      barrier stands after all that the role does with the channel.
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
    for role, ops, inner in programs or [(None, func.body.ops, ranges)]:
        _check_order(role, ops, summed, inner)
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


def _check_order(role: Op | None, ops: tuple[Op, ...], summed: set[Value], ranges: Ranges) -> None:
    who = f"role {role['name']}" if role is not None else "a block"
    written: set[Value] = set()
    read: dict[Value, Op] = {}
    for op in ops:
        if op.name == MEET:
            written.clear()
            read.clear()
            continue
        inside = _inside(op)
        sums = {o.operands[0]: o for o in inside if o.name == SUM}
        writes = {a.buffer: op for a in accesses(op, ranges) if a.write and a.buffer in summed}
        for v, o in sums.items():
            if v in written or v in writes:
                raise InputError(
                    f"{who} adds up {_name(v)} of all blocks before these have met: expected {MEET} between",
                    where=o.loc or op.loc,
                )
        for v in writes:
            if v in read:
                raise InputError(
                    f"{who} writes {_name(v)}, which other blocks may still read: expected {MEET} before",
                    where=op.loc,
                )
        written |= set(writes)
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
