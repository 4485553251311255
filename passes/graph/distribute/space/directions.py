"""Plans with a direction per layer, by dynamic programming over the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import op_flops
from tilewright.costmodel.partition.directions import Held, LayerCut, SpatialLayer, least_directions
from tilewright.ir.nodes import Func, Op
from tilewright.passes.graph.distribute.directions import INNER, checked_direction
from tilewright.passes.graph.distribute.layers import window_along
from tilewright.passes.graph.distribute.space.cost import Rates
from tilewright.passes.graph.distribute.space.plan import layer_ops
from tilewright.passes.graph.distribute.spreading import PlannedLayer


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
    layers = [_layer(op) for op in ops]
    cuts = least_directions(layers, flops_per_s, link).directions
    following: list[Held] = [*(x.reads(cut) for x, cut in zip(layers, cuts, strict=True)), "whole"][1:]
    return {op: _planned(cut, wanted) for op, cut, wanted in zip(ops, cuts, following, strict=True)}


def _planned(cut: LayerCut, wanted: Held) -> PlannedLayer:
    """The plan of a layer with this cut, whose reader wants its rows to lie so."""
    if cut == "whole":
        return PlannedLayer(None)
    if cut == INNER:
        return PlannedLayer(
            INNER, kept=None if wanted in ("whole", "summands") else checked_direction(wanted)
        )
    return PlannedLayer(checked_direction(cut))


def _layout(op: Op) -> str | None:
    """The layout of a convolution or pool over two dimensions whose windows slide."""
    found = op.get("data_layout", op.get("layout"))
    two = isinstance(found, str) and len(found) == 4 and not op.name.endswith("_transpose")
    return str(found) if two else None


def _layer(op: Op) -> SpatialLayer:
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
