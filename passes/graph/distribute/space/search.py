"""Plans of whole networks from searches of partitions: every layer's rows, chosen instead of proportional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import Rates, op_flops
from tilewright.costmodel.partition.directions import Held, LayerCut, SpatialLayer, least_directions
from tilewright.costmodel.partition.exact import least_objective
from tilewright.costmodel.partition.fused_blocks import BlockProblem, least_blocks
from tilewright.costmodel.partition.intervals import interval_space, threshold_sizes
from tilewright.costmodel.partition.naive import split_extent
from tilewright.costmodel.partition.objective import LayerObjective
from tilewright.costmodel.partition.pruned import pruned_search
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op
from tilewright.ir.windows import Interval
from tilewright.passes.graph.distribute.rows.layer_axes import INNER, Direction, checked_direction
from tilewright.passes.graph.distribute.rows.spreading import PlannedLayer
from tilewright.passes.graph.distribute.space.layers import SplitLayer, chains, layers_of, window_along
from tilewright.passes.graph.distribute.space.plan import layer_ops

#: most layers of a fused block: halos grow with every one
LONGEST_BLOCK = 4
#: blocks by modelled seconds; or layer by layer by the objective of the thesis, exactly or by its search
Method = Literal["exact", "layers", "pruned"]


def searched_plan(
    func: Func, direction: Direction, speeds: Sequence[float], method: Method, threshold: float, rates: Rates
) -> Mapping[Op, PlannedLayer]:
    """Rows of every layer along a direction, by op.

    exact: chains of layers are cut into blocks whose halos are computed twice instead of exchanged, where
      that takes fewer seconds; boundaries and cuts by `costmodel.partition.fused_blocks`.
    layers, pruned: by the objective of BBGraP, layer by layer from the last one: the reader of a layer,
      already decided, says which rows each rank will need, and sizes differ from the proportional ones by at
      most `threshold` percent. Of several readers the largest counts.
    Layers with fewer rows than ranks are left to the proportional split.
    """
    layers = [x for x in layers_of(func, direction) if x.rows.output_rows >= len(speeds)]
    if method == "exact":
        chosen: dict[int, tuple[Interval, ...]] = {}
        for run in chains(layers):
            chosen |= _blocks(run, speeds, rates)
    else:
        chosen = _layerwise(layers, speeds, method, threshold)
    return {x.op: PlannedLayer(direction, chosen[x.number]) for x in layers if x.number in chosen}


def _blocks(
    run: Sequence[SplitLayer], speeds: Sequence[float], rates: Rates
) -> dict[int, tuple[Interval, ...]]:
    """Rows of the layers of a chain cut into fused blocks: those inside a block overlap."""
    problem = BlockProblem(
        tuple(x.rows for x in run),
        tuple(rates.flops_per_s * v for v in speeds),
        Link(rates.link_bytes_per_s, rates.link_latency_s),
    )
    out: dict[int, tuple[Interval, ...]] = {}
    for block in least_blocks(problem, LONGEST_BLOCK).blocks:
        rows = block.intervals
        for at in reversed(range(block.first, block.stop)):
            out[run[at].number] = _covering(rows, run[at].rows.output_rows)
            rows = tuple(problem.layers[at].reads(r) for r in out[run[at].number])
    return out


def _covering(rows: Sequence[Interval], extent: int) -> tuple[Interval, ...]:
    """Intervals widened over rows that none of them holds, as strides leave them out."""
    out, reached = list(rows), 0
    holders = [n for n, (start, end) in enumerate(rows) if end > start]
    for n in holders:
        start, end = rows[n]
        out[n] = min(start, reached), extent if n == holders[-1] else end
        reached = max(reached, end)
    return tuple(out)


def _layerwise(
    layers: Sequence[SplitLayer], speeds: Sequence[float], method: Method, threshold: float
) -> dict[int, tuple[Interval, ...]]:
    chosen: dict[int, tuple[Interval, ...]] = {}
    for layer in reversed(layers):
        readers = [r for r in layers if layer.number in r.inputs]
        reader = max(readers, key=lambda r: r.rows.macs_per_row * r.rows.output_rows) if readers else None
        required = None if reader is None else _required(reader, chosen, speeds)
        intervals = _search(layer, speeds, required, method, threshold)
        if intervals is not None:
            chosen[layer.number] = intervals
    return chosen


def _required(
    reader: SplitLayer, chosen: Mapping[int, tuple[Interval, ...]], speeds: Sequence[float]
) -> tuple[Interval, ...]:
    """The rows of its input that the ranks' rows of a layer need."""
    rows = chosen.get(reader.number, tuple(split_extent(reader.rows.output_rows, speeds)))
    return tuple(map(reader.rows.reads, rows))


def _search(
    layer: SplitLayer,
    speeds: Sequence[float],
    required: tuple[Interval, ...] | None,
    method: Method,
    threshold: float,
) -> tuple[Interval, ...] | None:
    objective = LayerObjective(tuple(speeds), required)
    output = layer.rows.output_rows
    space = interval_space(output, threshold_sizes(output, speeds, threshold))
    try:
        if method == "layers":
            return tuple(least_objective(space, objective).intervals)
        return tuple(pruned_search(space, objective).intervals)
    except InputError:  # no sizes within the threshold cover so few rows
        return None


def directed_plan(func: Func, speeds: Sequence[float], rates: Rates) -> Mapping[Op, PlannedLayer]:
    """A direction for every layer over two-dimensional images, by op.

    Exact for chains of layers; of networks with branches the layers are taken one after another in program
    order (`costmodel.partition.directions`). Matrix products and other layers have no part in it.
    """
    ops = [op for op in layer_ops(func) if _layout(op) is not None]
    if not ops:
        return {}
    flops_per_s = [rates.flops_per_s * v for v in speeds]
    link = Link(rates.link_bytes_per_s, rates.link_latency_s)
    layers = [_spatial_layer(op) for op in ops]
    cuts = least_directions(layers, flops_per_s, link).directions
    following: list[Held] = [*(x.reads(cut) for x, cut in zip(layers, cuts, strict=True)), "whole"][1:]
    return {op: _planned(cut, held) for op, cut, held in zip(ops, cuts, following, strict=True)}


def _planned(cut: LayerCut, read: Held) -> PlannedLayer:
    """The plan of a layer with this cut, whose reader wants its rows to lie so."""
    if cut == "whole":
        return PlannedLayer(None)
    if cut == INNER:
        return PlannedLayer(INNER, kept=None if read in ("whole", "summands") else checked_direction(read))
    return PlannedLayer(checked_direction(cut))


def _layout(op: Op) -> str | None:
    """The layout of a convolution or pool over two dimensions whose windows slide."""
    layout = op.get("data_layout", op.get("layout"))
    two = isinstance(layout, str) and len(layout) == 4 and op.get("output_padding") is None
    return str(layout) if two else None


def _spatial_layer(op: Op) -> SpatialLayer:
    layout = str(_layout(op))
    x, y = (dict(zip(layout, v.tensor.shape, strict=True)) for v in (op.operands[0], op.result))
    pool = op.get("pool_size") is not None
    return SpatialLayer(
        batch=x["N"],
        c_in=x["C"],
        h_in=x["H"],
        w_in=x["W"],
        c_out=y["C"],
        h_out=y["H"],
        w_out=y["W"],
        macs=op_flops(op) / 2,
        h=window_along(op, "H"),
        w=window_along(op, "W"),
        element_bytes=op.result.tensor.nbytes / op.result.tensor.size,
        per_channel=pool or op.integer("groups") > 1,
    )
