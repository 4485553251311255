"""Plans of whole networks from searches of partitions: every layer's rows, chosen instead of proportional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tilewright.costmodel.partition.exact import least_objective
from tilewright.costmodel.partition.intervals import interval_space, threshold_sizes
from tilewright.costmodel.partition.naive import input_interval, split_extent
from tilewright.costmodel.partition.objective import LayerObjective
from tilewright.costmodel.partition.pruned import pruned_search
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op
from tilewright.passes.graph.distribute.directions import Direction
from tilewright.passes.graph.distribute.distribution import Interval
from tilewright.passes.graph.distribute.layers import Layer, layers_of
from tilewright.passes.graph.distribute.spreading import PlannedLayer


def searched_plan(
    func: Func,
    direction: Direction,
    speeds: Sequence[float],
    method: Literal["exact", "pruned"],
    threshold: float,
) -> Mapping[Op, PlannedLayer]:
    """Rows of every layer along a direction by the objective of the thesis, layer by layer from the last one.

    A layer's reader, already decided, says which rows each rank will need; sizes differ from the proportional
    ones by at most `threshold` percent. Where several layers read one, the largest counts. Layers too small
    for the threshold to link the ranks are left to the proportional split.
    """
    layers = layers_of(func, direction)
    chosen: dict[int, tuple[Interval, ...]] = {}
    for layer in reversed(layers):
        readers = [r for r in layers if layer.number in r.inputs]
        reader = max(readers, key=lambda r: r.macs_per_row * r.output) if readers else None
        required = None if reader is None else _required(reader, chosen, speeds)
        found = _search(layer, speeds, required, method, threshold)
        if found is not None:
            chosen[layer.number] = found
    return {x.op: PlannedLayer(direction, chosen[x.number]) for x in layers if x.number in chosen}


def _required(
    reader: Layer, chosen: Mapping[int, tuple[Interval, ...]], speeds: Sequence[float]
) -> tuple[Interval, ...]:
    """The rows of its input that the ranks' rows of a layer need."""
    rows = chosen.get(reader.number, tuple(split_extent(reader.output, speeds)))
    window = reader.kernel, reader.stride, reader.dilation, reader.pad_before
    needs = (input_interval(r, reader.extent, *window) for r in rows)
    return tuple((n.start, n.end) for n in needs)


def _search(
    layer: Layer,
    speeds: Sequence[float],
    required: tuple[Interval, ...] | None,
    method: Literal["exact", "pruned"],
    threshold: float,
) -> tuple[Interval, ...] | None:
    if layer.output < len(speeds):
        return None
    objective = LayerObjective(tuple(speeds), required)
    space = interval_space(layer.output, threshold_sizes(layer.output, speeds, threshold))
    try:
        if method == "exact":
            return tuple(least_objective(space, objective).intervals)
        return tuple(pruned_search(space, objective).intervals)
    except InputError:  # no sizes within the threshold cover so few rows
        return None
