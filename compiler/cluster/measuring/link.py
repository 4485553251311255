"""The link between ranks, measured through their devices and communicators, as a line over message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from tilewright.cluster.measuring.trace import picked
from tilewright.compilation.option_values import Pick
from tilewright.costmodel.links import Link
from tilewright.distributed import compile_part
from tilewright.ir import Module, parse
from tilewright.runtime.communication.communicator import AnyCommunicator

#: float32 elements of the messages that the link is measured with: 4 KiB to 4 MiB
MESSAGE_ELEMENTS = (1 << 10, 1 << 14, 1 << 17, 1 << 20)
#: messages, or sums, that follow one another in one timed run
ROUNDS = 4


@dataclass(frozen=True)
class LinkSample:
    """One size of message on the link: `kind` is `message` or `all_reduce`, of how many devices."""

    kind: str
    nbytes: int
    seconds: float
    devices: int

    def terms(self) -> tuple[float, float, float]:
        """Return how often call, latency and seconds per byte count (`costmodel.links`)."""
        n = self.devices
        if self.kind == "message":
            return 1.0, 1.0, float(self.nbytes)
        return 1.0, 2.0 * (n - 1), 2.0 * (n - 1) / n * self.nbytes


def measure_link(communicator: AnyCommunicator, *, target: str, repeats: int, pick: Pick) -> list[LinkSample]:
    """Time messages that go around all ranks and sums over all of them, through the device's own way.

    The median (or fastest) of `repeats` runs on the slowest rank. No samples where there is one rank.
    """
    n, samples = communicator.size, []
    for elements in MESSAGE_ELEMENTS if n > 1 else ():
        for kind, count in (("message", n * ROUNDS), ("all_reduce", ROUNDS)):
            part = _talk(kind, elements, communicator.rank, n)
            x = np.zeros(elements, np.float32)
            with compile_part(part, communicator, target=target, mode="link") as exe:
                exe(x)
                seconds = exe.time(x, repeats=repeats)
                own = seconds[picked(seconds, pick)]
            texts = communicator.gather_texts(repr(own), doing="comparing times of messages")
            samples.append(LinkSample(kind, 4 * elements, max(map(float, texts)) / count, n))
    return samples


def _talk(kind: str, elements: int, rank: int, n: int) -> Module:
    """A token around the ring of ranks, or sums over all of them, `ROUNDS` times one after another."""
    type_ = f"f32[{elements}]"
    lines, value = [], "%x"
    for turn in range(ROUNDS):
        if kind == "all_reduce":
            group = f'rank = {rank}, ranks = {list(range(n))}, reduction = "max"'
            lines.append(f"%{turn} = graph.all_reduce({value}, {group}) : {type_}")
        else:
            send = f"graph.send({value if rank == 0 else f'%{turn}'}, to = {(rank + 1) % n}, tag = 0)"
            source = (rank - 1) % n
            receive = (
                f'%{turn} = graph.recv(source = {source}, tag = 0, dtype = "f32", shape = [{elements}])'
                f" : {type_}"
            )
            lines += [send, receive] if rank == 0 else [receive, send]
        value = f"%{turn}"
    body = "\n".join(lines)
    return parse(
        f"module @link {{ graph.func @main(%x: {type_}) -> {type_} {{\n{body}\ngraph.return({value}) }} }}"
    )


def fitted_link(samples: Sequence[LinkSample]) -> Link:
    """Call, latency and bandwidth of least relative squared error; none is negative.

    A message takes call + latency + S / bandwidth, an all-reduce of n as much as a ring does. Without samples
    (one device) the link is never used.
    """
    if not samples:
        return Link(1e12, 0.0, 0.0, "device")
    seconds = np.array([s.seconds for s in samples])
    rows = np.array([s.terms() for s in samples]) / seconds[:, None]
    scale = np.abs(rows).max(axis=0)

    (call, latency, per_byte), _ = nnls(rows / scale, np.ones(len(samples)))
    least = 1e-15  # seconds per byte: a link must have a bandwidth
    return Link(
        float(1 / max(per_byte / scale[2], least)),
        float(latency / scale[1]),
        float(call / scale[0]),
        "device",
    )


def link_error(samples: Sequence[LinkSample], link: Link) -> float:
    """The largest relative error of the fit over the samples; 0 without any."""
    knobs = np.array([link.call_s, link.latency_s, 1 / link.bytes_per_s])
    return max((abs(float(np.dot(s.terms(), knobs)) / s.seconds - 1) for s in samples), default=0.0)
