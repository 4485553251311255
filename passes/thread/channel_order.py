"""Channels of a kernel are checked: items in order, accesses in their slots, and nobody waits for ever.

What roles do is known at compile time: their loops have constant extents, and conditions around items depend
on the block alone. So all roles are walked for every kind of block there is, one event after another. Roles
are sequential and wait for nothing but each other, so that one order of events shows every deadlock.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, Sym, evaluate, symbols
from tilewright.ir.nodes import Block, Func, Op, Value, walk
from tilewright.ir.thread.channel_ops import (
    ACQUIRE,
    ITEM_OPS,
    PRODUCER_OPS,
    PUBLISH,
    RECEIVE,
    RELEASE_ITEM,
    Channel,
    channels_of,
    transport_of,
)
from tilewright.ir.thread.role_ops import roles_of
from tilewright.passes.thread.scopes import extent_of, launch_ranges, loop_variable, mask_of

#: events of a role at most
MOST_EVENTS = 1 << 20
_DOING = {
    ACQUIRE: "waits to acquire",
    RECEIVE: "waits to receive",
    PUBLISH: "publishes",
    RELEASE_ITEM: "releases",
}


@dataclass(frozen=True)
class Event:
    """An op of a channel as a role comes to it."""

    kind: str
    channel: Value
    item: int
    op: Op


def check_channels(func: Func) -> None:
    """Raise InputError, naming role, channel and item, for a kernel whose channels could fail.

    - Items: every item is acquired, published, received and released once, in order 0, 1, 2, ...: received by
      each consumer, or by one of them where the channel is divided.
    - Slots: a buffer of a channel is filled between acquire and publish, and read between receive and
      release, in the slot of an item that the role holds; reads of multiplications end before it is released,
      and registers that are multiplied are not touched before.
    - Phases: who waits for an item has seen the one before it in its slot complete, for a barrier tells only
      phases that follow one another apart.
    - Liveness: no role waits for ever.
    """
    channels = {c.value: c for c in channels_of(func)}
    if not channels:
        return
    for block in _kinds_of_blocks(func):
        traces = {role: _Walk(role, channels, block).events for role in roles_of(func)}
        _check_items(channels, traces)
        _Run(channels, traces).run()


# -- kinds of blocks -------------------------------------------------------------------------------------
def _kinds_of_blocks(func: Func) -> Iterator[dict[str, int]]:
    """One block for each way in which conditions around items turn out."""
    ranges = launch_ranges(func)
    axes = [name for name in ranges if name.startswith("bid.")]
    found: list[np.ndarray] = []
    counts = [int(ranges[a][1]) + 1 for a in axes]
    blocks = dict(zip(axes, np.indices(counts).reshape(len(axes), -1), strict=True))
    for role in roles_of(func):
        assert role.body is not None
        for loops, op in _conditions(role.body, ()):
            if not any(n in axes for part in mask_of(op) for e in part for n in symbols(e)):
                continue
            names, extents = [loop_variable(x) for x in loops], [extent_of(x) for x in loops]
            turns = np.indices(extents).reshape(len(extents), -1) if loops else np.zeros((0, 1), dtype=int)
            env = {n: turns[i][:, None] for i, n in enumerate(names)} | blocks
            holds = np.ones((turns.shape[1], len(blocks[axes[0]])), dtype=bool)
            for e, low, high in mask_of(op):
                value = _value(e, env, op)
                holds &= (value >= _value(low, env, op)) & (value < _value(high, env, op))
            found.append(holds)
    if not found:
        yield dict.fromkeys(axes, 0)
        return
    _, first = np.unique(np.concatenate(found), axis=1, return_index=True)
    for i in sorted(first):
        yield {a: int(blocks[a][i]) for a in axes}


def _conditions(block: Block, loops: tuple[Op, ...]) -> Iterator[tuple[tuple[Op, ...], Op]]:
    """Conditions that hold ops of channels, with the loops around them."""
    for op in block.ops:
        if op.body is None or not any(o.name in ITEM_OPS for o in walk(op.body)):
            continue
        if op.name == "thread.if":
            yield loops, op
        yield from _conditions(op.body, (*loops, op) if op.name == "thread.loop" else loops)


def _value(e: Expr, env: Mapping[str, Any], op: Op) -> Any:
    unknown = sorted(n for n in symbols(e) if n not in env)
    if unknown:
        raise InputError(
            f"{op.name}: expected what channels depend on to be the same for all threads of a role, got "
            f"{', '.join(unknown)}",
            where=op.loc,
        )
    return evaluate(e, env)


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


@lru_cache(maxsize=4096)
def _compiled(e: Expr) -> Callable[[Mapping[str, int]], int]:
    """An index expression as a function of its symbols, which is called for every item."""
    if isinstance(e, int):
        number = e
        return lambda env: number
    if isinstance(e, Sym):
        name = e.name
        return lambda env: env[name]
    function, first, second = _OPERATORS[e.op], _compiled(e.lhs), _compiled(e.rhs)
    return lambda env: function(first(env), second(env))


# -- one role --------------------------------------------------------------------------------------------
class _Walk:
    """The events of one role in one block, with its accesses checked against the items that it holds."""

    def __init__(self, role: Op, channels: Mapping[Value, Channel], block: Mapping[str, int]) -> None:
        self.role, self.channels = role, channels
        self.owner = {v: c for c in channels.values() for v in c.buffers}
        self.env: dict[str, int] = dict(block)
        self.events: list[Event] = []
        #: per channel the items that are open for filling, and those open for reading
        self.filling: dict[Value, list[int]] = {v: [] for v in channels}
        self.reading: dict[Value, list[int]] = {v: [] for v in channels}
        #: groups of multiplications in flight, the oldest first: what each reads as (channel, slot)
        self.multiplying: list[set[tuple[Value, int]]] = []
        #: the sums of each of them, and factors in registers
        self.registers: list[set[Value]] = []
        assert role.body is not None
        self.block(role.body)
        for v, items in (*self.filling.items(), *self.reading.items()):
            if items:
                raise self.fault(f"keeps item {items[0]} of channel {channels[v].name} to its end", role)

    def fault(self, clause: str, op: Op) -> InputError:
        return InputError(f"role {self.role['name']} {clause}", where=op.loc or self.role.loc)

    def block(self, block: Block) -> None:
        for op in block.ops:
            if op.name in ITEM_OPS:
                self.item(op)
            elif op.name == "thread.loop" and op.body is not None and _matters(op.body):
                name = loop_variable(op)
                for i in range(extent_of(op)):
                    self.env[name] = i
                    self.block(op.body)
                self.env.pop(name, None)
            elif op.name == "thread.if" and op.body is not None and _matters(op.body):
                if self.holds(op):
                    self.block(op.body)
            elif op.body is not None:
                for inner in walk(op.body):
                    self.accesses(inner)
            else:
                self.accesses(op)

    def holds(self, op: Op) -> bool:
        if op.operands:
            raise self.fault("decides by data whether it uses a channel", op)
        return all(
            self.number(low, op) <= self.number(e, op) < self.number(high, op) for e, low, high in mask_of(op)
        )

    def number(self, e: Expr, op: Op) -> int:
        try:
            return _compiled(e)(self.env)
        except KeyError as missing:
            raise self.fault(f"depends on {missing} in what channels need to know", op) from None

    def item(self, op: Op) -> None:
        value, item = op.operands[0], self.number(op.expr("item"), op)
        if len(self.events) >= MOST_EVENTS:
            raise self.fault(f"has more than {MOST_EVENTS} events of channels", op)
        self.events.append(Event(op.name, value, item, op))
        items = (self.filling if op.name in PRODUCER_OPS else self.reading)[value]
        name, slots = self.channels[value].name, self.channels[value].slots
        if op.name in (ACQUIRE, RECEIVE):
            if len(items) == slots:
                raise self.fault(
                    f"{_DOING[op.name]} item {item} of channel {name} and holds all {slots} slots", op
                )
            items.append(item)
            return
        if not items or items[0] != item:
            held = f"item {items[0]} is the next" if items else "it holds none"
            raise self.fault(f"{_DOING[op.name]} item {item} of channel {name}, but {held}", op)
        if op.name == RELEASE_ITEM and any((value, item % slots) in reads for reads in self.multiplying):
            raise self.fault(
                f"releases item {item} of channel {name}, which is still multiplied: "
                "expected thread.warpgroup_wait before",
                op,
            )
        items.pop(0)

    def accesses(self, op: Op) -> None:
        if op.name == "thread.warpgroup_wait":
            finished = max(0, len(self.multiplying) - op.integer("pending"))
            self.multiplying, self.registers = self.multiplying[finished:], self.registers[finished:]
            if op["done"]:
                self.check_registers(op)
            return
        touched = [v for v in op.operands if v in self.owner]
        reads: set[tuple[Value, int]] = set()
        for v in touched:
            channel = self.owner[v]
            slot = self.slot(op, v)
            transport = transport_of(op)
            fills = transport is not None and op.operands[transport.destination] is v
            items = (self.filling if fills else self.reading)[channel.value]
            if slot not in (item % channel.slots for item in items):
                what, when = ("fills", "acquired") if fills else ("reads", "received")
                raise self.fault(
                    f"{what} slot {slot} of {v.hint or v.type}, which holds no item of channel "
                    f"{channel.name} that it has {when}",
                    op,
                )
            reads.add((channel.value, slot))
        if op.name == "thread.warpgroup_mma":
            if op["opens"] or not self.multiplying:
                self.multiplying.append(set())
                self.registers.append(set())
            self.multiplying[-1] |= reads
            self.registers[-1] |= {v for v in op.operands if v.tensor.space == "frag"}
        elif self.registers:
            self.check_registers(op)

    def check_registers(self, op: Op) -> None:
        """Sums and factors in registers are not touched while they are multiplied."""
        for v in op.operands:
            if any(v in held for held in self.registers):
                raise self.fault(
                    f"uses {v.hint or v.type} by {op.name} while it is multiplied: expected "
                    "thread.warpgroup_wait before",
                    op,
                )

    def slot(self, op: Op, buffer: Value) -> int:
        """The first index of an access to a buffer of a channel."""
        for key in ("dst", "a_at", "b_at", "at", "src"):
            if op.get(key) is not None and self.index_of(op, buffer) == key:
                return self.number(op.exprs(key)[0], op)
        raise self.fault(f"accesses {buffer.hint or buffer.type} by {op.name}, which names no slot", op)

    def index_of(self, op: Op, buffer: Value) -> str:
        """The attribute that says where an op accesses a buffer."""
        if op.name == "thread.warpgroup_mma":
            return "a_at" if op.operands[0] is buffer else "b_at"
        if op.get("dst") is not None:
            source = "src" if op.get("src") is not None else "at"
            return "dst" if op.operands[1] is buffer else source
        return "src" if op.name.startswith("thread.store_tile") else "at"


def _matters(block: Block) -> bool:
    """True when a body does something to channels, or with multiplications in flight."""
    return any(o.name in (*ITEM_OPS, "thread.warpgroup_mma", "thread.warpgroup_wait") for o in walk(block))


# -- all roles -------------------------------------------------------------------------------------------
def _check_items(channels: Mapping[Value, Channel], traces: Mapping[Op, Sequence[Event]]) -> None:
    """Raise InputError where an item is left out, or comes twice or out of order."""
    for channel in channels.values():
        published = _sequence(channel, channel.producers, traces, PUBLISH)
        wanted = list(range(len(published)))
        if published != wanted:
            raise _wrong(channel, "published", published, wanted)
        groups = [channel.consumers] if channel.divided else [(role,) for role in channel.consumers]
        for group in groups:
            received = _sequence(channel, group, traces, RECEIVE)
            if received != wanted:
                raise _wrong(channel, "received", received, wanted)


def _sequence(
    channel: Channel, roles: Sequence[Op], traces: Mapping[Op, Sequence[Event]], kind: str
) -> list[int]:
    """The items of a channel in the order in which roles come to them: ascending within each."""
    out: list[int] = []
    for role in roles:
        own = [e.item for e in traces[role] if e.kind == kind and e.channel is channel.value]
        if any(a >= b for a, b in pairwise(own)):
            raise InputError(
                f"role {role['name']} {_DOING[kind]} items of channel {channel.name} out of order",
                where=role.loc,
            )
        out += own
    return sorted(out)


def _wrong(channel: Channel, verb: str, found: Sequence[int], wanted: Sequence[int]) -> InputError:
    odd = next((i for i, n in enumerate(found) if i >= len(wanted) or n != wanted[i]), len(found))
    return InputError(
        f"expected items 0 to {len(wanted) - 1} of channel {channel.name} to be {verb} once each, "
        f"item {min(odd, max(len(wanted) - 1, 0))} is not",
        where=channel.op.loc,
    )


@dataclass
class _State:
    """What has happened to the items of a channel, by the kind of the event: who knew what when it did it."""

    clocks: dict[str, dict[int, list[dict[Op, int]]]] = field(default_factory=dict)

    def of(self, kind: str, item: int) -> list[dict[Op, int]]:
        """The clocks of all events of a kind on an item."""
        return self.clocks.setdefault(kind, {}).setdefault(item, [])


class _Run:
    """All roles at once: each goes on until it must wait. Clocks say what a role knows of the others."""

    def __init__(self, channels: Mapping[Value, Channel], traces: Mapping[Op, Sequence[Event]]) -> None:
        self.channels, self.traces = channels, traces
        self.at = dict.fromkeys(traces, 0)
        self.known: dict[Op, dict[Op, int]] = {role: {} for role in traces}
        self.states = {v: _State() for v in channels}
        self.releases = {v: 1 if c.divided else len(c.consumers) for v, c in channels.items()}

    def run(self) -> None:
        while any(self.at[role] < len(events) for role, events in self.traces.items()):
            went_on = [self.advance(role) for role in self.traces]
            if not any(went_on):
                raise self.stuck()

    def advance(self, role: Op) -> bool:
        """Let a role go on up to where it has to wait; returns whether it went on at all."""
        events, start = self.traces[role], self.at[role]
        while self.at[role] < len(events) and self.step(role, events[self.at[role]]):
            self.at[role] += 1
        return self.at[role] > start

    def step(self, role: Op, e: Event) -> bool:
        """Do an event; False where the role has to wait."""
        state, slots = self.states[e.channel], self.channels[e.channel].slots
        known = self.known[role]
        if e.kind in (ACQUIRE, RECEIVE):
            free = e.kind == ACQUIRE
            cause, item = (RELEASE_ITEM, e.item - slots) if free else (PUBLISH, e.item)
            clocks = state.of(cause, item)
            if item >= 0 and len(clocks) < (self.releases[e.channel] if free else 1):
                return False
            # that the phase before has completed is known by who has waited for it
            seen = state.of(e.kind, e.item - slots)
            if e.item >= slots and not any(_covers(known, clock) for clock in seen):
                raise InputError(
                    f"role {role['name']} {_DOING[e.kind]} item {e.item} of channel "
                    f"{self.channels[e.channel].name} and cannot know that item {e.item - slots} in its slot "
                    "has come: a wait tells only phases apart that follow one another",
                    where=e.op.loc or role.loc,
                )
            for clock in clocks:
                for other, count in clock.items():
                    known[other] = max(known.get(other, -1), count)
        known[role] = self.at[role]
        state.of(e.kind, e.item).append(dict(known))
        return True

    def stuck(self) -> InputError:
        clauses, where = [], ""
        for role, events in self.traces.items():
            if self.at[role] < len(events):
                e = events[self.at[role]]
                name = self.channels[e.channel].name
                clauses.append(f"role {role['name']} {_DOING[e.kind]} item {e.item} of channel {name}")
                where = where or e.op.loc or role.loc
        return InputError(f"roles wait for each other for ever: {', '.join(clauses)}", where=where)


def _covers(known: Mapping[Op, int], clock: Mapping[Op, int]) -> bool:
    """True when who knows `known` also knows of the event with this clock: its own role's entry suffices."""
    return all(known.get(role, -1) >= count for role, count in clock.items())
