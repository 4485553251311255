"""One direction per layer: which axis each layer is cut along, with what is exchanged between layers.

Layers, speeds and a link in; the directions of least time by dynamic programming over (layer, direction),
resharding included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from tilewright.costmodel.links import Link
from tilewright.costmodel.partition.naive import fetched_rows, split_extent
from tilewright.ir.errors import InputError
from tilewright.ir.windows import POINT, Interval, RowWindow

#: what the devices of a layer divide: rows, columns, output channels, input channels (results are added up),
#: samples, or nothing
LayerCut = Literal["h", "w", "channels", "inner", "batch", "whole"]
CUTS: tuple[LayerCut, ...] = get_args(LayerCut)
#: how a tensor lies on the devices: a part along an axis, all of it, or a summand of all of it
Held = Literal["h", "w", "channels", "batch", "whole", "summands"]

#: how the input and the output of a layer lie by its cut
READS: dict[LayerCut, Held] = {
    "h": "h",
    "w": "w",
    "channels": "whole",
    "inner": "channels",
    "batch": "batch",
    "whole": "whole",
}
MAKES: dict[LayerCut, Held] = {**READS, "channels": "channels", "inner": "summands"}


@dataclass(frozen=True)
class SpatialLayer:
    """A convolution-like layer: (batch, c_in, h_in, w_in) in, (batch, c_out, h_out, w_out) out.

    `macs` counts all multiply-adds. `per_channel` layers (pooling, depthwise)
    make channel c of channel c alone, so `channels` reads channels and `inner` is not offered.
    """

    batch: int
    c_in: int
    h_in: int
    w_in: int
    c_out: int
    h_out: int
    w_out: int
    macs: float
    h: RowWindow = POINT
    w: RowWindow = POINT
    element_bytes: float = 4.0
    per_channel: bool = False

    @property
    def output_bytes(self) -> float:
        """Bytes of the whole output."""
        return self.element_bytes * self.batch * self.c_out * self.h_out * self.w_out

    def reads(self, direction: LayerCut) -> Held:
        """Return how the input has to lie on the devices."""
        return "channels" if self.per_channel and direction == "channels" else READS[direction]

    def extent(self, direction: LayerCut) -> int:
        """Return the extent of the axis that is divided, 1 for `whole`."""
        extents = {
            "h": self.h_out,
            "w": self.w_out,
            "channels": self.c_out,
            "inner": self.c_in,
            "batch": self.batch,
        }
        return extents.get(direction, 1)


class Directions(NamedTuple):
    """A direction per layer, and the seconds of all layers and of resharding, the whole output gathered."""

    directions: tuple[LayerCut, ...]
    seconds: float


def layer_seconds(layer: SpatialLayer, direction: LayerCut, flops_per_s: Sequence[float]) -> float:
    """Seconds of the slowest device; inf where the layer has no such cut."""
    if direction == "inner" and layer.per_channel:
        return math.inf
    extent = layer.extent(direction)
    whole = direction == "whole"
    cuts = [(0, 1)] * len(flops_per_s) if whole else split_extent(extent, flops_per_s)
    parts = ((end - start) / max(1, extent) for start, end in cuts)
    return max(2 * layer.macs * part / speed for part, speed in zip(parts, flops_per_s, strict=True))


def reshard_seconds(
    before: SpatialLayer,
    held: Held,
    after: SpatialLayer | None,
    direction: LayerCut | None,
    flops_per_s: Sequence[float],
    link: Link,
) -> float:
    """Seconds from `before`'s output as it is held to what `after` reads in this direction.

    None and None: all of it is wanted everywhere. Every device receives what it lacks at the link's rate,
    one message per sender (h to h and w to w: per neighbour). Summands are added by a ring: reduce-scatter,
    then all-gather where all is needed.
    """
    count, size = len(flops_per_s), before.output_bytes
    wanted = after.reads(direction) if after is not None and direction is not None else "whole"
    if count == 1 or held == "whole":
        return 0.0
    if held == "summands":
        steps = (count - 1) * (2 if wanted == "whole" else 1)
        extra = _halo_rows(before, after, wanted, flops_per_s) / _extent_of(before, wanted)
        return steps * (link.latency_s + size / count / link.bytes_per_s) + extra * size / link.bytes_per_s
    have = _parts(_extent_of(before, held), flops_per_s)
    if wanted == held:
        rows = _halo_rows(before, after, wanted, flops_per_s)
        messages = min(2, count - 1) if rows else 0
        return messages * link.latency_s + rows * size / _extent_of(before, held) / link.bytes_per_s
    need = [Fraction(1)] * count
    if wanted != "whole":
        need = [
            Fraction(end - start, _extent_of(before, wanted))
            for start, end in _needed(before, after, wanted, flops_per_s)
        ]
    lacking = max(float(n * (1 - h)) for n, h in zip(need, have, strict=True))
    return (count - 1) * link.latency_s + lacking * size / link.bytes_per_s


def least_directions(
    layers: Sequence[SpatialLayer],
    flops_per_s: Sequence[float],
    link: Link,
    allowed: Sequence[LayerCut] = CUTS,
) -> Directions:
    """The directions of least time, exactly: O(layers directions^2).

    The network's input is on every device, its output is gathered on every device. Raises InputError where
    some layer allows no direction.
    """
    if not layers or not flops_per_s or not allowed:
        raise InputError("expected at least 1 layer, 1 device and 1 direction")
    costs = [[layer_seconds(layer, d, flops_per_s) for d in allowed] for layer in layers]

    def moved(n: int, i: int, j: int) -> float:
        return reshard_seconds(layers[n], MAKES[allowed[i]], layers[n + 1], allowed[j], flops_per_s, link)

    last = [reshard_seconds(layers[-1], MAKES[d], None, None, flops_per_s, link) for d in allowed]
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
        raise InputError("expected a direction that every layer allows, got a layer that allows none")
    path = [best]
    for origin in reversed(origins):
        path.append(origin[path[-1]])
    return path[::-1], totals[best]


def _extent_of(layer: SpatialLayer, held: Held) -> int:
    extents = {"h": layer.h_out, "w": layer.w_out, "channels": layer.c_out, "batch": layer.batch}
    return max(1, extents.get(held, 1))


def _parts(extent: int, flops_per_s: Sequence[float]) -> list[Fraction]:
    return [Fraction(end - start, extent) for start, end in split_extent(extent, flops_per_s)]


def _needed(
    before: SpatialLayer, after: SpatialLayer | None, held: Held, flops_per_s: Sequence[float]
) -> list[Interval]:
    """Return the rows that each device of the next layer reads along the axis, halo included."""
    if after is None or held not in ("h", "w"):
        return split_extent(_extent_of(before, held), flops_per_s)
    high = held == "h"
    rows, extent, window = (after.h_out, after.h_in, after.h) if high else (after.w_out, after.w_in, after.w)
    return [window.reads(cut, extent) for cut in split_extent(rows, flops_per_s)]


def _halo_rows(
    before: SpatialLayer, after: SpatialLayer | None, held: Held, flops_per_s: Sequence[float]
) -> int:
    """The most rows that a device needs beyond its own split of the axis."""
    if held == "whole":
        return 0
    own = split_extent(_extent_of(before, held), flops_per_s)
    needed = _needed(before, after, held, flops_per_s)
    return max(fetched_rows(a, b) for a, b in zip(own, needed, strict=True))
