"""Plans with a direction per layer, by dynamic programming over the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.costmodel.op_work import op_flops
from tilewright.costmodel.partition import directions as search
from tilewright.costmodel.partition.chain import Device, Link
from tilewright.ir.graph_ops.layouts import SPATIAL
from tilewright.ir.nodes import Func, Op
from tilewright.passes.graph.distribute.directions import INNER, Direction
from tilewright.passes.graph.distribute.space.cost import Rates
from tilewright.passes.graph.distribute.space.plan import layer_ops
from tilewright.passes.graph.distribute.spreading import PlannedLayer

_NAMES: dict[search.Direction, Direction] = {
    search.Direction.H: "h",
    search.Direction.W: "w",
    search.Direction.C_OUT: "channels",
    search.Direction.BATCH: "batch",
}
_KEPT: dict[search.Held, Direction] = {
    search.Held.H: "h",
    search.Held.W: "w",
    search.Held.CHANNELS: "channels",
    search.Held.BATCH: "batch",
}


def directed_plan(func: Func, speeds: Sequence[float], rates: Rates) -> Mapping[Op, PlannedLayer]:
    """A direction for every layer over two-dimensional images, by op.

    Exact for chains of layers; of networks with branches the layers are taken one after another in program
    order (`costmodel.partition.directions`). Matrix products and other layers have no part in it.
    """
    ops = [op for op in layer_ops(func) if _layout(op) is not None]
    if not ops:
        return {}
    devices = [Device(rates.flops_per_s * v) for v in speeds]
    link = Link(rates.link_bytes_per_s, rates.link_latency_s)
    layers = [_layer(op) for op in ops]
    found = search.least_directions(layers, devices, link).directions
    after = [layer.reads(d) for layer, d in zip(layers, found, strict=True)][1:]
    out = {}
    for op, direction, wanted in zip(ops, found, [*after, search.Held.WHOLE], strict=True):
        if direction is search.Direction.C_IN:
            out[op] = PlannedLayer(INNER, kept=_KEPT.get(wanted))
        else:
            out[op] = PlannedLayer(_NAMES.get(direction))
    return out


def _layout(op: Op) -> str | None:
    """The layout of a convolution or pool over two dimensions whose windows slide."""
    found = op.get("data_layout", op.get("layout"))
    two = isinstance(found, str) and len(found) == 4 and not op.name.endswith("_transpose")
    return str(found) if two else None


def _layer(op: Op) -> search.SpatialLayer:
    layout = str(_layout(op))
    x, y = (dict(zip(layout, v.tensor.shape, strict=True)) for v in (op.operands[0], op.result))
    pool = op.get("pool_size") is not None
    return search.SpatialLayer(
        batch=x["N"],
        c_in=x["C"],
        h_in=x["H"],
        w_in=x["W"],
        c_out=y["C"],
        h_out=y["H"],
        w_out=y["W"],
        macs=op_flops(op) / 2,
        h=_window(op, "H"),
        w=_window(op, "W"),
        weight_bytes=sum(v.tensor.nbytes for v in op.operands[1:]),
        element_bytes=op.result.tensor.nbytes / op.result.tensor.size,
        per_channel=pool or op.integer("groups") > 1,
    )


def _window(op: Op, letter: str) -> search.Window:
    d = SPATIAL[2].index(letter)
    if op.get("pool_size") is not None:
        kernel = op.integers("pool_size")[d]
    else:
        kernel = op.operands[1].tensor.shape[str(op["kernel_layout"]).index(letter)]
    return search.Window(
        kernel, op.integers("strides")[d], op.integers("dilation")[d], op.integers("padding")[d]
    )
