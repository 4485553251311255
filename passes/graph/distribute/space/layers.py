"""A graph function as layers along one direction: what searches of partitions need to know of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.costmodel.op_work import op_flops
from tilewright.costmodel.partition.fused_blocks import ChainLayer
from tilewright.ir.graph_ops.layouts import SPATIAL
from tilewright.ir.nodes import Func, Op, Value
from tilewright.ir.windows import POINT, RowWindow
from tilewright.passes.graph.distribute.rows.exchanges import row_bytes
from tilewright.passes.graph.distribute.rows.layer_axes import Direction, direction_axis
from tilewright.passes.graph.distribute.rows.placement import preserved_axis
from tilewright.passes.graph.distribute.space.plan import layer_ops


@dataclass(frozen=True, slots=True)
class SplitLayer:
    """One layer along a direction: its windows over the rows of its input, and what its rows cost.

    number: as plans number it.
    inputs: numbers of the layers whose rows it reads, through ops that keep rows; none where its input is not
      rows of a layer.
    leaves: something else than these layers reads its rows too, or they are a result.
    rows: in and out; its multiplications per output row are half the operations, and those of row-keeping
      ops behind the layer count with it.
    """

    number: int
    op: Op
    inputs: tuple[int, ...]
    leaves: bool
    rows: ChainLayer


def layers_of(func: Func, direction: Direction) -> tuple[SplitLayer, ...]:
    """The layers of a function that have rows in this direction, in program order.

    Layers whose windows do not slide over their input one stride after another (transposed convolutions) are
    left out, as are those of another direction; what reads their rows has no input here.
    """
    numbers = {op: n for n, op in enumerate(layer_ops(func))}
    sources: dict[Value, tuple[int, frozenset[int]]] = {}
    layers: dict[int, SplitLayer] = {}
    extra: dict[int, float] = {}
    leaving: set[int] = set()
    for op in func.body.ops[:-1]:
        number, axis = numbers.get(op), None
        if number is not None:
            axis = direction_axis(op, direction)
            window = None if axis is None else _window(op, axis, direction)
            if axis is not None and window is not None:
                layers[number] = _layer(number, op, axis, window, sources)
                sources[op.result] = axis, frozenset({number})
            read = layers[number].inputs if number in layers else ()
            leaving |= _read(op, sources) - set(read)
            continue
        source = _kept(op, sources)
        if source is None:
            leaving |= _read(op, sources)
        else:
            sources.update((r, source) for r in op.results)
            latest = max(source[1])
            extra[latest] = extra.get(latest, 0.0) + op_flops(op) / 2 / layers[latest].rows.output_rows
    leaving |= _read(func.body.ops[-1], sources)
    return tuple(
        replace(
            x,
            rows=replace(x.rows, macs_per_row=x.rows.macs_per_row + extra.get(n, 0.0)),
            leaves=n in leaving,
        )
        for n, x in layers.items()
    )


def chains(layers: Sequence[SplitLayer]) -> list[tuple[SplitLayer, ...]]:
    """Longest runs of layers that each read the one before only, which nothing else reads."""
    readers: dict[int, list[int]] = {}
    for layer in layers:
        for number in layer.inputs:
            readers.setdefault(number, []).append(layer.number)
    out: list[list[SplitLayer]] = []
    by_end: dict[int, list[SplitLayer]] = {}
    for layer in layers:
        before = layer.inputs[0] if len(layer.inputs) == 1 else None
        alone = before is not None and readers[before] == [layer.number]
        run = by_end.pop(before, None) if alone and before is not None else None
        if run is None:
            out.append(run := [])
        run.append(layer)
        if not layer.leaves:
            by_end[layer.number] = run
    return [tuple(run) for run in out]


def _layer(
    number: int,
    op: Op,
    axis: int,
    window: RowWindow,
    sources: dict[Value, tuple[int, frozenset[int]]],
) -> SplitLayer:
    x, output = op.operands[0], op.result.tensor.shape[axis]
    source = sources.get(x)
    return SplitLayer(
        number=number,
        op=op,
        inputs=tuple(sorted(source[1])) if source is not None and source[0] == axis else (),
        leaves=False,
        rows=ChainLayer(
            x.tensor.shape[axis],
            output,
            window,
            op_flops(op) / 2 / output if output else 0.0,
            row_bytes(x, axis),
        ),
    )


def _window(op: Op, axis: int, direction: Direction) -> RowWindow | None:
    """The window along an axis; None where windows do not slide."""
    if direction == "channels" or op.get("output_padding") is not None:
        return None
    layout = op.get("data_layout", op.get("layout"))
    if direction not in ("h", "w") or not isinstance(layout, str):
        return POINT
    return window_along(op, layout[axis])


def window_along(op: Op, letter: str) -> RowWindow:
    """The window of a convolution or pool along the dimension of its layout that a letter names."""
    layout = str(op.get("data_layout", op.get("layout")))
    d = SPATIAL[len(layout) - 2].index(letter)
    if op.get("pool_size") is not None:
        kernel = op.integers("pool_size")[d]
    else:
        kernel = op.operands[1].tensor.shape[str(op["kernel_layout"]).index(letter)]
    strides, dilation, padding = (op.integers(k) for k in ("strides", "dilation", "padding"))
    return RowWindow(kernel, strides[d], dilation[d], padding[d])


def _kept(op: Op, sources: dict[Value, tuple[int, frozenset[int]]]) -> tuple[int, frozenset[int]] | None:
    """Return the axis and the layers whose rows lie in the results of an op that keeps them."""
    axes, numbers = set(), frozenset[int]()
    for i, v in enumerate(op.operands):
        if v in sources:
            axis = preserved_axis(op, i, sources[v][0])
            if axis is None:
                return None
            axes.add(axis)
            numbers |= sources[v][1]
    return (axes.pop(), numbers) if len(axes) == 1 else None


def _read(op: Op, sources: dict[Value, tuple[int, frozenset[int]]]) -> set[int]:
    """Numbers of the layers whose rows an op reads in any way."""
    return {n for v in op.operands if v in sources for n in sources[v][1]}
