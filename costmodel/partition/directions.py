"""One direction per layer: which axis each layer is cut along, with what is exchanged between layers.

Layers, speeds and a link in; the directions of least time by dynamic programming over (layer, direction),
resharding included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from tilewright.costmodel.partition.cases import fetched_rows
from tilewright.costmodel.partition.chain import Device, Link
from tilewright.costmodel.partition.naive import Interval, input_interval, split_extent
from tilewright.ir.errors import InputError


class Direction(Enum):
    """What a layer's devices divide: rows, columns, output or input channels, images, or nothing."""

    H = "h"
    W = "w"
    C_OUT = "c_out"
    C_IN = "c_in"
    BATCH = "batch"
    REPLICATE = "replicate"


class Held(Enum):
    """How a tensor lies on the devices: a part along an axis, all of it, or a summand of all of it."""

    H = "h"
    W = "w"
    CHANNELS = "channels"
    BATCH = "batch"
    WHOLE = "whole"
    SUMMANDS = "summands"


#: how a direction's input and output lie
READS = {
    Direction.H: Held.H,
    Direction.W: Held.W,
    Direction.C_OUT: Held.WHOLE,
    Direction.C_IN: Held.CHANNELS,
    Direction.BATCH: Held.BATCH,
    Direction.REPLICATE: Held.WHOLE,
}
MAKES = {**READS, Direction.C_OUT: Held.CHANNELS, Direction.C_IN: Held.SUMMANDS}


@dataclass(frozen=True)
class Window:
    """A layer's window along H or W; padding is that before row 0."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad_before: int = 0


#: the window of an op that reads one row per row
POINT = Window()


@dataclass(frozen=True)
class SpatialLayer:
    """A convolution-like layer: (batch, c_in, h_in, w_in) in, (batch, c_out, h_out, w_out) out.

    `macs` counts all multiply-adds, `weight_bytes` all parameters. `per_channel` layers (pooling, depthwise)
    make channel c of channel c alone, so C_OUT reads channels and C_IN is not offered.
    """

    batch: int
    c_in: int
    h_in: int
    w_in: int
    c_out: int
    h_out: int
    w_out: int
    macs: float
    h: Window = POINT
    w: Window = POINT
    weight_bytes: float = 0.0
    element_bytes: float = 4.0
    per_channel: bool = False

    @property
    def input_bytes(self) -> float:
        """Bytes of the whole input."""
        return self.element_bytes * self.batch * self.c_in * self.h_in * self.w_in

    @property
    def output_bytes(self) -> float:
        """Bytes of the whole output."""
        return self.element_bytes * self.batch * self.c_out * self.h_out * self.w_out

    def reads(self, direction: Direction) -> Held:
        """How the input has to lie."""
        return Held.CHANNELS if self.per_channel and direction is Direction.C_OUT else READS[direction]

    def extent(self, direction: Direction) -> int:
        """What is divided: the extent of the direction's axis, 1 for REPLICATE."""
        extents = {
            Direction.H: self.h_out,
            Direction.W: self.w_out,
            Direction.C_OUT: self.c_out,
            Direction.C_IN: self.c_in,
            Direction.BATCH: self.batch,
        }
        return extents.get(direction, 1)


class Directions(NamedTuple):
    """A direction per layer, and the seconds of all layers and of resharding, the whole output gathered."""

    directions: tuple[Direction, ...]
    seconds: float


def shares(extent: int, devices: Sequence[Device]) -> list[Interval]:
    """The split of an axis by the devices' speeds."""
    return split_extent(extent, [device.flops_per_s for device in devices])


def layer_seconds(layer: SpatialLayer, direction: Direction, devices: Sequence[Device]) -> float:
    """Seconds of the slowest device; inf where the layer has no such cut or a memory does not suffice.

    A device holds its part of the parameters (all of them unless channels are cut), of the input (halo
    left out) and of the output.
    """
    if direction is Direction.C_IN and layer.per_channel:
        return math.inf
    extent = layer.extent(direction)
    whole = direction is Direction.REPLICATE
    cuts = [(0, 1)] * len(devices) if whole else shares(extent, devices)
    slowest = 0.0
    for device, (start, end) in zip(devices, cuts, strict=True):
        part = (end - start) / extent if extent else 0.0
        channels = direction in (Direction.C_OUT, Direction.C_IN)
        weights = layer.weight_bytes * (part if channels else float(part > 0))
        read = 1.0 if layer.reads(direction) is Held.WHOLE and part else part
        made = 1.0 if MAKES[direction] in (Held.WHOLE, Held.SUMMANDS) and part else part
        if weights + read * layer.input_bytes + made * layer.output_bytes > device.memory_bytes:
            return math.inf
        slowest = max(slowest, 2 * layer.macs * part / device.flops_per_s)
    return slowest


def reshard_seconds(
    before: SpatialLayer,
    held: Held,
    after: SpatialLayer | None,
    direction: Direction | None,
    devices: Sequence[Device],
    link: Link,
) -> float:
    """Seconds from `before`'s output as it is held to what `after` reads in this direction.

    None and None: all of it is wanted everywhere. Every device receives what it lacks at the link's rate,
    one message per sender (H to H and W to W: per neighbour). Summands are added by a ring: reduce-scatter,
    then all-gather where all is needed.
    """
    count, size = len(devices), before.output_bytes
    wanted = after.reads(direction) if after is not None and direction is not None else Held.WHOLE
    if count == 1 or held is Held.WHOLE:
        return 0.0
    if held is Held.SUMMANDS:
        steps = (count - 1) * (2 if wanted is Held.WHOLE else 1)
        extra = _halo_rows(before, after, wanted, devices) / _extent_of(before, wanted)
        return steps * (link.latency_s + size / count / link.bytes_per_s) + extra * size / link.bytes_per_s
    have = _parts(_extent_of(before, held), devices)
    if wanted is held:
        rows = _halo_rows(before, after, wanted, devices)
        messages = min(2, count - 1) if rows else 0
        return messages * link.latency_s + rows * size / _extent_of(before, held) / link.bytes_per_s
    need = [Fraction(1)] * count
    if wanted is not Held.WHOLE:
        need = [
            Fraction(end - start, _extent_of(before, wanted))
            for start, end in _needed(before, after, wanted, devices)
        ]
    lacking = max(float(n * (1 - h)) for n, h in zip(need, have, strict=True))
    return (count - 1) * link.latency_s + lacking * size / link.bytes_per_s


def least_directions(
    layers: Sequence[SpatialLayer],
    devices: Sequence[Device],
    link: Link,
    allowed: Sequence[Direction] = tuple(Direction),
) -> Directions:
    """The directions of least time, exactly: O(layers directions^2).

    The network's input is on every device, its output is gathered on every device. Raises InputError where
    some layer fits no direction.
    """
    if not layers or not devices or not allowed:
        raise InputError("expected at least 1 layer, 1 device and 1 direction")
    costs = [[layer_seconds(layer, d, devices) for d in allowed] for layer in layers]

    def moved(n: int, i: int, j: int) -> float:
        return reshard_seconds(layers[n], MAKES[allowed[i]], layers[n + 1], allowed[j], devices, link)

    last = [reshard_seconds(layers[-1], MAKES[d], None, None, devices, link) for d in allowed]
    path, seconds = least_path(costs, moved, last)
    return Directions(tuple(allowed[i] for i in path), seconds)


def least_path(
    costs: Sequence[Sequence[float]], between: Callable[[int, int, int], float], last: Sequence[float]
) -> tuple[list[int], float]:
    """One choice per step of least costs[n][i] + between(n, i, j) + last[i] in all (Viterbi).

    Raises InputError where every path costs inf.
    """
    totals, origins = list(costs[0]), []
    for n, (_, after) in enumerate(pairwise(costs)):
        options = [
            min((total + between(n, i, j), i) for i, total in enumerate(totals)) for j in range(len(after))
        ]
        origins.append([i for _, i in options])
        totals = [seconds + cost for (seconds, _), cost in zip(options, after, strict=True)]
    totals = [total + end for total, end in zip(totals, last, strict=True)]
    best = min(range(len(totals)), key=totals.__getitem__)
    if math.isinf(totals[best]):
        raise InputError("expected memories that hold every layer in some direction, got a layer in none")
    path = [best]
    for origin in reversed(origins):
        path.append(origin[path[-1]])
    return path[::-1], totals[best]


def _extent_of(layer: SpatialLayer, held: Held) -> int:
    extents = {Held.H: layer.h_out, Held.W: layer.w_out, Held.CHANNELS: layer.c_out, Held.BATCH: layer.batch}
    return max(1, extents.get(held, 1))


def _parts(extent: int, devices: Sequence[Device]) -> list[Fraction]:
    return [Fraction(end - start, extent) for start, end in shares(extent, devices)]


def _needed(
    before: SpatialLayer, after: SpatialLayer | None, held: Held, devices: Sequence[Device]
) -> list[Interval]:
    """What each device of the next layer reads along the axis, halo included."""
    if after is None or held not in (Held.H, Held.W):
        return shares(_extent_of(before, held), devices)
    rows, extent, window = (
        (after.h_out, after.h_in, after.h) if held is Held.H else (after.w_out, after.w_in, after.w)
    )
    found = [
        input_interval(cut, extent, window.kernel, window.stride, window.dilation, window.pad_before)
        for cut in shares(rows, devices)
    ]
    return [(piece.start, piece.end) for piece in found]


def _halo_rows(
    before: SpatialLayer, after: SpatialLayer | None, held: Held, devices: Sequence[Device]
) -> int:
    """The most rows that a device needs beyond its own split of the axis."""
    if held is Held.WHOLE:
        return 0
    own = shares(_extent_of(before, held), devices)
    needed = _needed(before, after, held, devices)
    return max(fetched_rows(a, b) for a, b in zip(own, needed, strict=True))
