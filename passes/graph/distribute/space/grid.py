"""One inference split in rows and columns: along the height, then each of the parts along the width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import op_flops
from tilewright.costmodel.partition.grids import GridProblem, alternating_grid, best_grid
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Func, Module, Op
from tilewright.ir.opdef import op_def
from tilewright.passes.graph.distribute.rows.layer_axes import direction_axis
from tilewright.passes.graph.distribute.rows.placement import Distribution
from tilewright.passes.graph.distribute.rows.rank_module import rank_module
from tilewright.passes.graph.distribute.rows.spreading import SplitRequest, Spread, spread
from tilewright.passes.graph.distribute.space.layers import SplitLayer, layers_of


@dataclass(frozen=True)
class GridShares:
    """Parts of the height and of the width, relative to each other; device i * columns + j has (i, j)."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]


def grid_modules(module: Module, request: SplitRequest, grid: str, ranks: Sequence[int]) -> list[Module]:
    """The modules of some ranks of a grid.

    grid: `2x3` for two rows of three devices; an empty text takes the grid that is best for the layer with
    most operations (`costmodel.partition.grids`). request: its direction and overlap are those of the second
    split, along the width. Halo rows are exchanged first, then columns of the rows with their halos: so
    corners come with the second exchange, by way of a neighbour. Raises InputError for a grid of another
    number of devices, UnsupportedError for a network that the rows of the grid would cut into columns
    differently.
    """
    shares = _shares(module.main, request, grid)
    wide = len(shares.columns)
    speeds = [request.speeds[i * wide : (i + 1) * wide] for i in range(len(shares.rows))]
    first = replace(request, overlap="never", direction="h", shares=shares.rows, speeds=_joined(speeds))
    second = replace(
        request, direction="w", shares=shares.columns, speeds=_joined(list(zip(*speeds, strict=True)))
    )
    parts = spread(module.main, first)
    out = []
    for rank in ranks:
        row, column = divmod(rank, wide)
        above = tuple(range(column, len(request.speeds), wide))
        halves = [rank_module(module, parts, i, above) for i in range(len(above))]
        spreads = [spread(m.main, second, end=_end(m.main, request.late)) for m in halves]
        _check_columns([_exchanged(m.main, s) for m, s in zip(halves, spreads, strict=True)])
        beside = tuple(range(row * wide, (row + 1) * wide))
        out.append(rank_module(halves[row], spreads[row], column, beside))
    return out


def _joined(groups: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Speeds of groups of devices that share an axis, the fastest one's being 1."""
    sums = [sum(g) for g in groups]
    return tuple(s / max(sums) for s in sums)


def _end(func: Func, late: bool) -> int:
    """Return the end of the second split: that of the first one, behind its last exchange."""
    ops = func.body.ops[:-1]
    exchanges = [at for at, op in enumerate(ops) if _communicates(op)]
    return len(ops) if late or not exchanges else exchanges[-1] + 1


def _communicates(op: Op) -> bool:
    return "communicate" in op_def(op.name).effects


def _exchanged(func: Func, made: Spread) -> list[tuple[str, list[Distribution]]]:
    """Return the columns in which the rows of the grid hold what they exchange with each other."""
    ops = [op for op in func.body.ops if _communicates(op)]
    return [(op.name, [made.held[v] for v in op.operands]) for op in ops]


def _check_columns(rows: Sequence[list[tuple[str, list[Distribution]]]]) -> None:
    """All rows of the grid have to hold what they exchange in the same columns."""
    for number, row in enumerate(rows):
        if row != rows[0]:
            pairs = zip(row, rows[0], strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(row), len(rows[0])))
            raise UnsupportedError(
                f"expected a network that all rows of the grid cut into the same columns, but row {number} "
                f"differs from row 0 in communication {at}: split it along one axis"
            )


def _shares(func: Func, request: SplitRequest, grid: str) -> GridShares:
    """Parts by which all devices compute equally long; the grid, if left open, by all that it costs."""
    problem = _problem(func, request)
    if problem is None:
        raise InputError(
            "axis=grid expects a layer over images that gives as many rows and columns as it reads"
        )
    shape = _shape(grid, request.devices)
    if shape is None:
        best = best_grid(problem)
        shape = len(best.rows), len(best.columns)
    even = replace(problem, link=Link(problem.link.bytes_per_s, 0.0), bytes=0.0)
    if len(set(request.speeds)) == 1:
        return GridShares((1.0,) * shape[0], (1.0,) * shape[1])
    made = alternating_grid(even, *shape)
    rows, columns = ([e - s for s, e in cut] for cut in (made.rows, made.columns))
    return GridShares(tuple(max(1.0, n) for n in rows), tuple(max(1.0, n) for n in columns))


def _shape(text: str, devices: int) -> tuple[int, int] | None:
    """Rows and columns of devices; None where they are left open."""
    if not text.strip():
        return None
    match = re.fullmatch(r"\s*([1-9]\d*)\s*x\s*([1-9]\d*)\s*", text)
    if match is None or int(match[1]) * int(match[2]) != devices:
        raise InputError(f"option 'grid' expects rows x columns of {devices} devices as in 2x2, got '{text}'")
    return int(match[1]), int(match[2])


def _problem(func: Func, request: SplitRequest) -> GridProblem | None:
    """The layer of stride 1 over images that takes most operations, by element of its plane."""
    columns = {x.op: x for x in layers_of(func, "w") if _plain(x)}
    both = [(x, columns[x.op]) for x in layers_of(func, "h") if _plain(x) and x.op in columns]
    if not both:
        return None
    h, w = max(both, key=lambda x: op_flops(x[0].op))
    high, wide = h.rows, w.rows
    plane = high.output_rows * wide.output_rows
    rates = request.rates
    return GridProblem(
        high.output_rows,
        wide.output_rows,
        tuple(rates.flops_per_s * v for v in request.speeds),
        Link(rates.link_bytes_per_s, rates.link_latency_s),
        op_flops(h.op) / 2 / plane,
        h.op.operands[0].tensor.nbytes / (high.input_rows * wide.input_rows),
        high.window,
        wide.window,
    )


def _plain(layer: SplitLayer) -> bool:
    """A layer over images that gives as many rows as it reads."""
    image = direction_axis(layer.op, "h") is not None
    return image and layer.rows.window.stride == 1 and 0 < layer.rows.output_rows == layer.rows.input_rows
