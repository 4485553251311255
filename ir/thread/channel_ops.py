"""Thread-level ops of channels: numbered items that roles of a block hand to one another in order.

A channel is a ring of `slots` in shared memory. Item n lies in slot n % slots of every buffer bound to it.
The producer waits until the slot is free (`acquire`), fills it, and hands it on (`publish`); each consumer
waits for the item (`receive`), reads it, and gives the slot back (`release`). All name the number of the
item; slot and parity follow from it (`slot_of`, `turn_of`), and no kernel writes them otherwise.

How a fill arrives stands on the op that fills (`OpDef.transport`): by transaction (bytes that the copy engine
counts), by copies of threads that are still in flight, or by stores of threads. One item may take several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr
from tilewright.ir.nodes import Block, Func, Op, Value, walk
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define, op_def
from tilewright.ir.thread.role_ops import ROLE, roles_of
from tilewright.ir.types import TensorType, Type, itemsize

CHANNEL = "thread.channel"
#: a buffer on the bytes of a channel's (`cluster_ops`)
REUSE = "thread.reuse"
ACQUIRE, PUBLISH = "thread.acquire", "thread.publish"
RECEIVE, RELEASE_ITEM = "thread.receive", "thread.release"
PRODUCER_OPS, CONSUMER_OPS = (ACQUIRE, PUBLISH), (RECEIVE, RELEASE_ITEM)
ITEM_OPS = (*PRODUCER_OPS, *CONSUMER_OPS)
SCOPES = ("block", "cluster")
#: rows of the barriers of a channel: a slot is full, a slot is empty
FULL, EMPTY = 0, 1


def _infer_channel(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    slots = attrs["slots"]
    if slots < 1:
        raise InputError(f"expected at least one slot, got {slots}")
    if attrs["scope"] not in SCOPES:
        raise InputError(f"expected scope {' or '.join(SCOPES)}, got '{attrs['scope']}'")
    for t in types:
        if not isinstance(t, TensorType) or t.space != "shared" or not t.shape or t.shape[0] != slots:
            raise InputError(f"expected buffers in shared with {slots} slots as first dimension, got {t}")
    return [TensorType("u64", (2, slots), "shared")]


define(
    CHANNEL,
    ("buffers*",),
    "A ring of slots, the first dimension of the buffers bound to it. The value is its barriers in shared "
    "memory: a row for full slots, a row for empty ones. `scope` cluster: other blocks fill and free slots.",
    attrs={
        "slots": AttrDef("int"),
        "scope": AttrDef("str", "block"),
        "divided": AttrDef("bool", False, "an item goes to one of the consuming roles, not to all of them"),
    },
    infer=_infer_channel,
    effects=frozenset({"alloc"}),
)


def _infer_item(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (t,) = types
    if not (isinstance(t, TensorType) and t.space == "shared" and t.dtype == "u64" and t.shape[:1] == (2,)):
        raise InputError(f"expected a channel, got {t}")
    return []


for _name, _doc in (
    (ACQUIRE, "Wait until the slot of an item is free; the producer fills it from here on."),
    (PUBLISH, "Hand an item to the consumers once all its fills have arrived."),
    (RECEIVE, "Wait until an item has been published and all its fills have arrived."),
    (RELEASE_ITEM, "Give the slot of an item back; this role has read what it needs of it."),
):
    define(
        _name,
        ("channel",),
        _doc,
        attrs={"item": AttrDef("expr", doc="number of the item: 0, 1, 2, ... in order")},
        results=0,
        infer=_infer_item,
        effects=frozenset({"channel"}),
    )


def slot_of(slots: int, item: Expr) -> Expr:
    """The slot of an item: index along the first dimension of a channel's buffers."""
    return item % slots


def turn_of(slots: int, item: Expr) -> Expr:
    """How often the slot of an item was used before it; its parity is that of the barriers' phases."""
    return item // slots


@dataclass(frozen=True)
class Channel:
    """A channel of a kernel with the roles that use it."""

    op: Op
    producers: tuple[Op, ...]
    consumers: tuple[Op, ...]

    @property
    def value(self) -> Value:
        return self.op.result

    @property
    def name(self) -> str:
        """For messages."""
        return self.value.hint or "channel"

    @property
    def slots(self) -> int:
        return self.op.integer("slots")

    @property
    def divided(self) -> bool:
        """True where an item goes to one of the consumers."""
        return bool(self.op["divided"])

    @property
    def clustered(self) -> bool:
        """True where other blocks of the cluster fill and free slots too."""
        return self.op["scope"] == "cluster"

    @property
    def buffers(self) -> tuple[Value, ...]:
        return self.op.operands


def channels_of(func: Func) -> tuple[Channel, ...]:
    """The channels of a kernel in the order of their definitions."""
    out = []
    for op in func.body.ops:
        if op.name == CHANNEL:
            users = [
                tuple(
                    role
                    for role in roles_of(func)
                    if role.body is not None
                    and any(o.name in names and o.operands[0] is op.result for o in walk(role.body))
                )
                for names in (PRODUCER_OPS, CONSUMER_OPS)
            ]
            out.append(Channel(op, *users))
    return tuple(out)


def transport_of(op: Op) -> Transport | None:
    """How what the op writes to shared memory arrives there; None where it writes none."""
    transport = op_def(op.name).transport
    if transport is None or op.operands[transport.destination].tensor.space != "shared":
        return None
    return transport


@dataclass(frozen=True)
class Fills:
    """What arrives in the buffers of a channel between an acquire and the publish of its item.

    nbytes: that the copy engine counts; copies, stores: whether threads copy or store.
    """

    nbytes: int = 0
    copies: bool = False
    stores: bool = False


def fills_before(block: Block, publish: Op, buffers: Sequence[Value]) -> Fills:
    """The fills of an item: the ops of `block` from its acquire up to `publish`, which names it."""
    ops = block.ops[: block.ops.index(publish)]
    acquired = [
        i
        for i, op in enumerate(ops)
        if op.name == ACQUIRE and (op.operands, op["item"]) == (publish.operands, publish["item"])
    ]
    if not acquired:
        raise InputError("expected thread.acquire of the item before, in the same block", where=publish.loc)
    filling = ops[acquired[-1] + 1 :]
    kinds = {t.arrival for op in _with_inner(filling) if (t := transport_of(op)) and _fills(op, t, buffers)}
    return Fills(_transaction(filling, buffers), "copies" in kinds, "stores" in kinds)


def _with_inner(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        if op.body is not None:
            yield from walk(op.body)


def _fills(op: Op, transport: Transport, buffers: Sequence[Value]) -> bool:
    return op.operands[transport.destination] in buffers


def _transaction(ops: Sequence[Op], buffers: Sequence[Value]) -> int:
    """Bytes that arrive by transaction: always the same, so that no condition stands around them."""
    total = 0
    for op in ops:
        if op.body is not None:
            inside = _transaction(op.body.ops, buffers)
            if inside and op.name != "thread.loop":
                raise InputError(
                    "expected a fill by transaction outside of conditions within its item", where=op.loc
                )
            total += inside * (op.integer("extent") if op.name == "thread.loop" else 1)
            continue
        transport = transport_of(op)
        if transport is not None and transport.nbytes is not None and _fills(op, transport, buffers):
            total += transport.nbytes(op)
    return total


def slot_bytes(buffer: Value) -> int:
    """Bytes of one slot of a buffer."""
    t = buffer.tensor
    return t.size // t.shape[0] * itemsize(t.dtype)


def channel_faults(func: Func) -> Iterator[tuple[int, str]]:
    """Faults in where channels stand and who uses them as (index of the op in the kernel's body, clause)."""
    channels = {c.value: c for c in channels_of(func)}
    bound: set[Value] = set()
    for i, op in enumerate(func.body.ops):
        inside = [op, *walk(op.body)] if op.body is not None else [op]
        if op.name != CHANNEL and any(o.name == CHANNEL for o in inside):
            yield i, f"expected {CHANNEL} at the top of a kernel"
        if op.name == CHANNEL:
            channel = channels[op.result]
            if not channel.producers or not channel.consumers:
                yield i, f"expected roles that publish to and receive from channel {channel.name}"
            for v in channel.buffers:
                if v in bound:
                    yield i, f"expected buffer {v.hint or v.type} to be bound to one channel"
                bound.add(v)
        for o in inside:
            if o.name in ITEM_OPS and op.name != ROLE:
                yield i, f"expected {o.name} inside a role"
            if o.name in ITEM_OPS and o.operands[0] not in channels:
                yield i, f"{o.name}: expected the result of {CHANNEL}"
            if o.name not in (*ITEM_OPS, CHANNEL, REUSE) and any(v in channels for v in o.operands):
                yield i, f"{o.name} accesses the barriers of a channel"
