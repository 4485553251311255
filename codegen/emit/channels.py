"""Emitters of roles and channels: warps that part ways, barriers that count arrivals, slots and parities.

What fills a buffer of a channel asks `filled` for the item it writes, `slot` for its place and `full_barrier`
for the barrier on which a transaction arrives; the bytes of transactions are summed by `thread.publish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import MOST_REGISTERS, WARP, WARPGROUP_WARPS
from tilewright.ir.nodes import Block, Op, Value, walk
from tilewright.ir.opdef import op_def
from tilewright.ir.simplify import simplify
from tilewright.ir.thread.channel_ops import (
    ACQUIRE,
    CHANNEL,
    EMPTY,
    FULL,
    PUBLISH,
    RECEIVE,
    RELEASE_ITEM,
    Channel,
    Fills,
    channels_of,
    fills_before,
    slot_bytes,
    slot_of,
    transport_of,
    turn_of,
)
from tilewright.ir.thread.role_ops import (
    MEET,
    ROLE,
    first_threads,
    issued_by_one,
    launch_registers,
    roles_of,
    threads_of,
)
from tilewright.ir.thread.tensor_maps import cluster_of


def channel_of(e: Emission, value: Value) -> Channel:
    """The channel of the kernel that a value names."""
    return next(c for c in channels_of(e.func) if c.value is value)


def slot(e: Emission, channel: Value, item: Expr) -> Expr:
    """The slot of an item: index along the first dimension of the channel's buffers."""
    return simplify(slot_of(_slots(channel), item), e.ranges)


def full_barrier(e: Emission, channel: Value, item: Expr) -> str:
    """C text of the address of the barrier that completes when the item has arrived."""
    return _barrier(e, channel, FULL, item)


def empty_barrier(e: Emission, channel: Value, item: Expr) -> str:
    """C text of the address of the barrier that completes when the item's slot has been given back."""
    return _barrier(e, channel, EMPTY, item)


def filled(e: Emission, buffer: Value) -> tuple[Value, Expr]:
    """The channel and the item that a fill of `buffer` writes to at this place: the one acquired last.

    Raises InputError where no item of the buffer's channel is being filled.
    """
    for channel, item in e.acquired.items():
        if buffer in channel_of(e, channel).buffers:
            return channel, item
    raise InputError(
        f"@{e.func.name}: expected a fill of {buffer.hint or buffer.type} between acquire and publish"
    )


def _slots(channel: Value) -> int:
    return channel.tensor.shape[1]


def _barrier(e: Emission, channel: Value, row: int, item: Expr) -> str:
    place = e.index.render(slot(e, channel, item), e.ranges)
    return f"&{e.buffer(channel).name}[{row}][{place}]"


@dataclass(frozen=True)
class _Reads:
    """How a role reads the buffers of a channel: asynchronously, or by its threads."""

    asynchronous: bool = False
    by_threads: bool = False


def _reads(role: Op, channel: Channel) -> _Reads:
    assert role.body is not None
    kinds = set()
    for op in walk(role.body):
        transport = transport_of(op)
        read = [v for i, v in enumerate(op.operands) if transport is None or i != transport.destination]
        if any(v in channel.buffers for v in read):
            kinds.add("async" in op_def(op.name).effects)
    return _Reads(True in kinds, False in kinds)


def _published(role: Op, channel: Channel) -> Fills:
    """How the items that a role publishes arrive; raises InputError where they differ in it."""
    kinds = set()
    assert role.body is not None

    def walk_block(block: Block) -> None:
        for op in block.ops:
            if op.name == PUBLISH and op.operands[0] is channel.value:
                kinds.add(fills_before(block, op, channel.buffers))
            if op.body is not None:
                walk_block(op.body)

    walk_block(role.body)
    if len(kinds) != 1:
        raise InputError(
            f"channel {channel.name}: expected items that all arrive in one way, got {len(kinds)} ways",
            where=role.loc,
        )
    (fills,) = kinds
    return fills


def _full_arrivals(channel: Channel) -> int:
    """Arrivals that complete an item: of one thread for a transaction, of each for its copies and stores."""
    total = 0
    for role in channel.producers:
        fills = _published(role, channel)
        if issued_by_one(role):
            total += 1
        else:
            stores = fills.stores or not (fills.nbytes or fills.copies)
            total += (fills.nbytes > 0) + threads_of(role) * (fills.copies + stores)
    return total


def _empty_arrivals(channel: Channel) -> int:
    """Arrivals that give a slot back: one per warpgroup that multiplies it, one per warp that reads it.

    They are those of all consumers, or of any one where items are divided among them.
    """
    counts = []
    for role in channel.consumers:
        warps = role.integer("warps")
        by_warp = _reads(role, channel).by_threads
        counts.append(1 if issued_by_one(role) else warps if by_warp else warps // WARPGROUP_WARPS)
    if channel.divided and len(set(counts)) > 1:
        raise InputError(
            f"channel {channel.name}: expected consumers that give slots back alike, got {counts} arrivals",
            where=channel.op.loc,
        )
    return counts[0] if channel.divided else sum(counts)


@emitter(CHANNEL)
def _channel(e: Emission, op: Op) -> None:
    cuda_roles(e, op)
    channel = channel_of(e, op.result)
    name = e.buffer(op.result).name
    blocks = _blocks(e, channel)
    counts = f"{channel.slots}, {_full_arrivals(channel)}, {_empty_arrivals(channel) * blocks}"
    with e.braces(f"if ({e.symbol('tid')} == 0)"):
        e.line(f'{e.need("channel")}<{counts}>(&{name}[0][0], "{channel.name}");')
        for v in channel.buffers:
            held = e.buffer(v).name + "[0]" * v.tensor.rank
            e.line(f"{e.need('channel_holds')}<{channel.slots}>(&{name}[0][0], &{held}, {slot_bytes(v)});")


def _blocks(e: Emission, channel: Channel) -> int:
    """Blocks that fill and free the slots of a channel: those of the cluster, or its own alone."""
    return prod(cluster_of(e.func)) if channel.clustered else 1


def cuda_roles(e: Emission, op: Op) -> None:
    """Raise UnsupportedError where blocks have no roles."""
    if e.dialect.native_vectors:
        raise UnsupportedError(f"{op.name} needs CUDA; {e.dialect.name} has no roles", where=op.loc)


@emitter(ROLE)
def _role(e: Emission, op: Op) -> None:
    """One branch of a chain over warpgroups; before the first one, the channels' barriers are complete."""
    cuda_roles(e, op)
    assert op.body is not None
    roles = roles_of(e.func)
    first = first_threads(e.func)[op]
    group = WARP * WARPGROUP_WARPS
    meets_others = any(c.clustered for c in channels_of(e.func))
    if op is roles[0]:
        # Other blocks of the cluster use the barriers too: all meet before the first use and after the last.
        e.line(f"{e.need('cluster_barrier')}();" if meets_others else e.dialect.barrier)
        e.role_group = e.name("warpgroup")
        e.line(f"const int {e.role_group} = {e.need('warpgroup')}();")
    head = f"if ({e.role_group} < {(first + threads_of(op)) // group})"
    if op is roles[-1]:
        head = "else" if len(roles) > 1 else ""
    elif op is not roles[0]:
        head = f"else {head}"
    outer, e.used_symbols = e.used_symbols, set()
    with e.braces(head), e.known({"tid": (0, threads_of(op) - 1)}):
        e.line(f'{e.need("role")}("{op["name"]}");')
        _set_registers(e, op)
        start = len(e.lines)
        e.role = op
        if issued_by_one(op):
            _by_one(e, op.body)
        else:
            e.ops(op.body)
        e.role = None
        if "tid" in e.used_symbols:
            own = f"const int tid = (int)threadIdx.x - {first};"
            e.lines.insert(start, "    " * e.indent + own)
    e.used_symbols = outer | (e.used_symbols - {"tid"})
    if op is roles[-1] and meets_others:
        e.line(f"{e.need('cluster_barrier')}();")


def _by_one(e: Emission, body: Block) -> None:
    """One thread does what stands between the places where all threads meet other blocks."""
    meetings = [i for i, op in enumerate(body.ops) if op.name == MEET]
    for start, end in pairwise((-1, *meetings, len(body.ops))):
        if between := body.ops[start + 1 : end]:
            with e.braces(f"if ({e.symbol('tid')} == 0)"):
                e.ops(body.with_ops(between))
        if end < len(body.ops):
            e.line("__syncwarp();")
            e.ops(body.with_ops(body.ops[end : end + 1]))


def _set_registers(e: Emission, role: Op) -> None:
    """Take or give back registers; at launch every thread has an equal share of the multiprocessor's.

    Where that is as many as a thread can have, nobody lacks any, and nothing is passed on.
    """
    wanted = role.integer("registers")
    share = launch_registers(e.func) // e.block_size
    if wanted and wanted != share < MOST_REGISTERS:
        e.line(f"{e.need('registers_up' if wanted > share else 'registers_down')}<{wanted}>();")


def _wait(e: Emission, op: Op, barrier: str, turn: Expr) -> None:
    parity = e.index.render(simplify(turn % 2, e.ranges), e.ranges)
    e.line(f"{e.need('mbarrier_wait')}({barrier}, {parity});")


@emitter(ACQUIRE)
def _acquire(e: Emission, op: Op) -> None:
    """A fresh barrier lets a wait for the phase before its first one pass: all slots are free at first."""
    channel, item = op.operands[0], op.expr("item")
    _wait(e, op, empty_barrier(e, channel, item), turn_of(_slots(channel), item) + 1)
    e.acquired[channel] = item


@emitter(PUBLISH)
def _publish(e: Emission, op: Op) -> None:
    """A transaction is expected by one thread; every thread arrives for what it copied or stored."""
    value, item = op.operands[0], op.expr("item")
    channel, role = channel_of(e, value), _current(e, op)
    fills, barrier = _published(role, channel), full_barrier(e, value, item)
    if fills.nbytes:
        one = "" if issued_by_one(role) else f"if ({e.symbol('tid')} == 0) "
        e.line(f"{one}{e.need('mbarrier_expect')}({barrier}, {fills.nbytes});")
    if fills.copies:
        e.line(f"{e.need('mbarrier_arrive_copies')}({barrier});")
    if fills.stores or not (fills.nbytes or fills.copies):
        if any(_reads(c, channel).asynchronous for c in channel.consumers):
            e.line(f"{e.need('publish_shared')}();")
        e.line(f"{e.need('mbarrier_arrive')}({barrier});")
    del e.acquired[value]


@emitter(RECEIVE)
def _receive(e: Emission, op: Op) -> None:
    """What threads copied becomes visible to asynchronous reads by a fence of those who start them."""
    value, item = op.operands[0], op.expr("item")
    channel, role = channel_of(e, value), _current(e, op)
    _wait(e, op, full_barrier(e, value, item), turn_of(_slots(value), item))
    if _reads(role, channel).asynchronous and any(_published(p, channel).copies for p in channel.producers):
        e.line(f"{e.need('publish_shared')}();")


@emitter(RELEASE_ITEM)
def _release(e: Emission, op: Op) -> None:
    """One thread arrives for its warpgroup, or its warp. It publishes no data, so the default form serves."""
    value, item = op.operands[0], op.expr("item")
    channel, role = channel_of(e, value), _current(e, op)
    barrier, blocks = empty_barrier(e, value, item), _blocks(e, channel)
    by = "thread" if issued_by_one(role) else "warp" if _reads(role, channel).by_threads else "warpgroup"
    if blocks > 1:
        e.line(f"{e.need(f'mbarrier_arrive_{by}_of')}<{blocks}>({barrier});")
    elif by == "thread":
        e.line(f"{e.need('mbarrier_arrive')}({barrier});")
    else:
        e.line(f"{e.need(f'mbarrier_arrive_{by}')}({barrier});")


def _current(e: Emission, op: Op) -> Op:
    if e.role is None:
        raise InputError(f"{op.name}: expected to stand in a role", where=op.loc)
    return e.role
