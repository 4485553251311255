"""Communications between host arrays as rounds of messages between two ranks each, for every transport.

Collectives are made of messages, not of an engine's own, because of what a caller must know: which peer does
not answer, and that sums have the same bits on every rank, run and transport. All of them move as few bytes
as any algorithm can (each rank reduces its share, then shares it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np

from tilewright.runtime.dtypes import Array
from tilewright.runtime.plan.communication_kernel import CommunicationKernel

#: what kind of message it is: one with a tag of the plan's, or of a collective's first or second round
Channel = Literal["message", "first", "second"]
CHANNELS: tuple[Channel, ...] = ("message", "first", "second")


#: what a request does with its peer
Verb = Literal["send to", "receive from"]


class TransferRequest(Protocol):
    """A message that was posted: `peer` is at its other end, `verb` says what it does there."""

    @property
    def peer(self) -> int: ...

    @property
    def verb(self) -> Verb: ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it keeps until it is done."""
        ...

    def done(self) -> bool:
        """Return whether its array is free again (sent) or filled (received); raises `CommunicationError`."""
        ...


class Transport(Protocol):
    """Posts messages between two ranks; those of one channel and tag between two ranks keep their order."""

    def post_send(self, array: Array, peer: int, channel: Channel, tag: int) -> TransferRequest: ...

    def post_receive(self, array: Array, peer: int, channel: Channel, tag: int) -> TransferRequest: ...


def rounds(
    kernel: CommunicationKernel, operands: Sequence[Array], results: Sequence[Array], transport: Transport
) -> Iterator[list[TransferRequest]]:
    """Post the messages of a communication round by round: each after all requests of the one before.

    operands, results: contiguous arrays of one dimension, of the kernel's type and sizes. When the iterator
    ends, the results are complete.
    """
    if kernel.kind == "exchange":
        yield [
            *(transport.post_receive(results[m.buffer], m.peer, "message", m.tag) for m in kernel.receives),
            *(transport.post_send(operands[m.buffer], m.peer, "message", m.tag) for m in kernel.sends),
        ]
    elif kernel.kind == "all_gather":
        yield _share(kernel, operands[0], results[0], kernel.counts, "first", transport)
    elif kernel.kind == "reduce_scatter":
        yield from _reduce(kernel, operands[0], results[0], kernel.counts, transport)
    else:
        counts = _even(operands[0].size, len(kernel.members))
        own = np.empty(counts[kernel.position], operands[0].dtype)
        yield from _reduce(kernel, operands[0], own, counts, transport)
        yield _share(kernel, own, results[0], counts, "second", transport)


def _even(total: int, parts: int) -> tuple[int, ...]:
    """Sizes of so many parts that differ by one at most."""
    return tuple(total * (i + 1) // parts - total * i // parts for i in range(parts))


def _cut(array: Array, counts: Sequence[int]) -> list[Array]:
    ends = list(accumulate(counts))
    return [array[end - n : end] for end, n in zip(ends, counts, strict=True)]


def _others(kernel: CommunicationKernel) -> Iterator[tuple[int, int]]:
    """Positions and ranks of the other members, beginning behind this one: not all send to the same first."""
    count = len(kernel.members)
    for step in range(1, count):
        position = (kernel.position + step) % count
        yield position, kernel.members[position]


def _share(
    kernel: CommunicationKernel,
    own: Array,
    whole: Array,
    counts: Sequence[int],
    channel: Channel,
    transport: Transport,
) -> list[TransferRequest]:
    """Every member's part to every other one."""
    parts = _cut(whole, counts)
    parts[kernel.position][...] = own
    out = [transport.post_receive(parts[p], m, channel, 0) for p, m in _others(kernel) if counts[p]]
    if own.size:
        out += [transport.post_send(own, m, channel, 0) for _, m in _others(kernel)]
    return out


def _reduce(
    kernel: CommunicationKernel, operand: Array, own: Array, counts: Sequence[int], transport: Transport
) -> Iterator[list[TransferRequest]]:
    """This member's part of the reduction over all members, into `own`."""
    parts = _cut(operand, counts)
    others = list(_others(kernel)) if own.size else []
    received = {p: np.empty_like(own) for p, _ in others}
    requests = [transport.post_receive(received[p], m, "first", 0) for p, m in others]
    requests += [transport.post_send(parts[p], m, "first", 0) for p, m in _others(kernel) if counts[p]]
    yield requests
    if own.size:
        received[kernel.position] = parts[kernel.position]
        own[...] = _folded([received[p] for p in range(len(kernel.members))], kernel.reduction)


def _folded(parts: Sequence[Array], reduction: str) -> Array:
    """The parts' elementwise sum or maximum, first to last; sums of 16-bit floats are kept in float32."""
    short = parts[0].dtype.itemsize == 2 and parts[0].dtype.kind not in "iu"
    wide = np.dtype(np.float32) if short and reduction == "sum" else parts[0].dtype
    out = parts[0].astype(wide)
    for part in parts[1:]:
        if reduction == "sum":
            np.add(out, part.astype(wide, copy=False), out=out)
        else:
            np.maximum(out, part, out=out)
    return out
