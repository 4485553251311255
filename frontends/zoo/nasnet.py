"""NASNet-A for images (Zoph et al. 2018, "Learning Transferable Architectures", CVPR).

Cells are those of the paper's figure 4, put together as in its figure 2 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.frontends.zoo.layers import Layers, image
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module, Value

STEM_CHANNELS = 32


@dataclass(frozen=True)
class _Step:
    """Half of a block: an operation on a state (0: the last cell, 1: the one before, 2 and up: blocks)."""

    kind: str
    state: int
    stride: int = 1


_Block = tuple[_Step, _Step]

NORMAL: tuple[_Block, ...] = (
    (_Step("sep3", 0), _Step("identity", 0)),
    (_Step("sep3", 1), _Step("sep5", 0)),
    (_Step("avg", 0), _Step("identity", 1)),
    (_Step("avg", 1), _Step("avg", 1)),
    (_Step("sep5", 1), _Step("sep3", 1)),
)
REDUCTION: tuple[_Block, ...] = (
    (_Step("sep7", 1, 2), _Step("sep5", 0, 2)),
    (_Step("max", 0, 2), _Step("sep7", 1, 2)),
    (_Step("avg", 0, 2), _Step("sep5", 1, 2)),
    (_Step("max", 0, 2), _Step("sep3", 2)),
    (_Step("avg", 2), _Step("identity", 3)),
)
#: States that are concatenated: those that no block reads, and in the normal cell also the cell before.
NORMAL_RESULT = (1, 2, 3, 4, 5, 6)
REDUCTION_RESULT = (3, 4, 5, 6)


def nasnet_mobile(
    batch: int = 1,
    seed: int = 0,
    *,
    stem_cells: int = 2,
    stages: int = 3,
    cells: int = 4,
    filters: int = 1056,
    size: int = 224,
    classes: int = 1000,
) -> Module:
    """NASNet-A (`cells` @ `filters`), by default the mobile network: 5.3 M parameters, 564 M multiply-adds.

    The graph-level module maps `data` [batch, 3, size, size] to class probabilities [batch, classes], in
    float32 with seeded random weights. stem_cells: reduction cells of the stem, each with twice the
    filters. stages: resolutions after it, each with `cells` normal cells. filters: channels of the last cell,
    a multiple of 3 * 2**(stem_cells + stages). size: rows and columns, at least 32. Raises InputError for
    anything else.
    """
    bounds = {
        "batch": (1, 1 << 16),
        "stem_cells": (1, 8),
        "stages": (1, 8),
        "cells": (1, 64),
        "filters": (1, 1 << 16),
        "size": (32, 1 << 14),
        "classes": (1, 1 << 20),
    }
    values = (batch, stem_cells, stages, cells, filters, size, classes)
    for (what, (least, most)), value in zip(bounds.items(), values, strict=True):
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"nasnet_mobile: expected {what} of {least} to {most}, got {value!r}")
    growth = len(NORMAL_RESULT) * 2 ** (stages - 1)
    unit = growth * 2**stem_cells
    if filters % unit:
        raise InputError(f"nasnet_mobile: expected filters to be a multiple of {unit}, got {filters}")
    data, net, width = image(batch, 3, size), Layers(seed), filters // growth
    with net.scope("stem"):
        stem = net.norm(net.conv(data, STEM_CHANNELS, 3, 2, pad=False, name="kernel"))
    states = [stem, stem]
    for number in range(stem_cells):
        _append_cell(net, states, f"stem_cell{number}", width >> (stem_cells - number), reduce=True)
    for stage in range(stages):
        if stage:
            width *= 2
            _append_cell(net, states, f"reduction{stage}", width, reduce=True)
        for number in range(cells):
            _append_cell(net, states, f"cell{stage * cells + number}", width, reduce=False)
    with net.scope("head"):
        result = net.classify(net.relu(states[-1]), classes)
    return net.module("nasnet_mobile", (data,), result)


def _append_cell(net: Layers, cells: list[Value], name: str, width: int, *, reduce: bool) -> None:
    """Build a cell on the last two of `cells` and append its result."""
    with net.scope(name):
        last = _projected(net, cells[-1], width, "last")
        states = [last, _adjusted(net, cells[-2], cells[-1], width)]
        for number, halves in enumerate(REDUCTION if reduce else NORMAL):
            with net.scope(f"block{number}"):
                first, second = (
                    _apply(net, half, states, width, s) for half, s in zip(halves, "ab", strict=True)
                )
                states.append(net.add(first, second))
        cells.append(net.join([states[i] for i in (REDUCTION_RESULT if reduce else NORMAL_RESULT)]))


def _projected(net: Layers, x: Value, width: int, name: str) -> Value:
    """relu, 1 x 1 convolution to `width` channels, normalisation."""
    with net.scope(name):
        return net.norm(net.conv(net.relu(x), width, 1, name="kernel"))


def _adjusted(net: Layers, before: Value, last: Value, width: int) -> Value:
    """The cell before the last one in the last one's resolution and with `width` channels.

    Halving is factorised: two 1 x 1 convolutions read points of even and of odd coordinates. The first cell
    has only the stem and reads it as it is.
    """
    if before is last:
        return before
    if before.tensor.shape[2:] == last.tensor.shape[2:]:
        return before if before.tensor.shape[1] == width else _projected(net, before, width, "before")
    with net.scope("before"):
        x = net.relu(before)
        halves = (("even", width // 2, 0), ("odd", width - width // 2, 1))
        parts = [net.conv(net.every_other(x, first), n, 1, name=name) for name, n, first in halves]
        return net.norm(net.join(parts))


def _apply(net: Layers, step: _Step, states: list[Value], width: int, side: str) -> Value:
    x = states[step.state]
    if step.kind == "identity":
        return x
    if step.kind in ("avg", "max"):
        return net.pool(x, step.kind, step.stride)
    return _separable(net, x, width, int(step.kind[-1]), step.stride, side)


def _separable(net: Layers, x: Value, width: int, kernel: int, stride: int, side: str) -> Value:
    """relu, depthwise and pointwise convolution, normalisation; twice, the stride in the first."""
    for turn, step in enumerate((stride, 1)):
        with net.scope(f"{side}{turn}"):
            x = net.depthwise(net.relu(x), kernel, step, name="depthwise")
            x = net.norm(net.conv(x, width, 1, name="pointwise"))
    return x
