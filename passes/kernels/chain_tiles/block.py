"""The block of a chain on tensor cores while its kernel is written: matrices of pixels by channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.ir import Expr, Value
from tilewright.ir.hardware_facts import MMA_M, VECTOR_BYTES
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chain.block import ChainBlock, ChainPoints
from tilewright.passes.kernels.chain.regions import Box
from tilewright.passes.kernels.chain.stages import Stage
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters, warp_tiles
from tilewright.passes.kernels.chain_tiles.view import Product, TilesChain
from tilewright.passes.kernels.writing.writer import Index, Mask


def row_pitch(channels: int, dtype: str) -> int:
    """Elements from one row in shared memory to the next: a vector more than there are.

    Eight rows of an even number of vectors then begin in different banks, as ldmatrix reads them.
    """
    return channels + VECTOR_BYTES // itemsize(dtype)


def read_rows(product: Product, warps: int) -> int:
    """Rows of the first factor's matrix that warps touch, whole tiles beyond the last row included."""
    tiles = warp_tiles(product.row_tiles, product.column_tiles, warps)
    return product.pixels + tiles.warps_m * tiles.tiles_m * MMA_M - product.rows


def matrix_shape(tiles: TilesChain, v: Value, warps: int) -> tuple[int, int]:
    """The shape of the matrix in shared memory of a kept value, or of a product's first factor."""
    readers = [p for p in tiles.products.values() if p.factor is v]
    box: Box = tiles.chain.kept[v].box if v in tiles.chain.kept else readers[0].kept
    rows = max([prod(s.extent for s in box[:-1]), *(read_rows(p, warps) for p in readers)])
    channels = box[-1].extent if v in tiles.chain.kept else max(p.depth for p in readers)
    return rows, row_pitch(channels, v.tensor.dtype)


def weight_buffer(product: Product, warps: int) -> tuple[int, int, int]:
    """The shape of the buffer of one step's weights: rows as long as instructions and warps take them."""
    taps, rows, columns = product.weight_shape
    tiles = warp_tiles(product.row_tiles, product.column_tiles, warps)
    whole = tiles.warps_n * tiles.tiles_n * 8
    if product.by_channel:
        rows = max(rows, whole)
    else:
        columns = max(columns, whole + whole % 16)
    return taps, rows, row_pitch(columns, product.view.dtype)


class TilesPoints(ChainPoints):
    """Values at points that a thread is known to compute: what it reads of shared memory is there.

    Outside of its tensor a kept value is what its readers want there. Parameters are read under a mask only
    where their index may be outside: values that nothing stores may be anything.
    """

    def filled(self, v: Value, at: Index, fill: float | int | bool | None, mask: Mask = ()) -> Value:
        if v in self.buffers:
            return self.value(v, at)
        # a parameter with a value outside is read where its index is inside, whether or not the point is
        edges = v in self.w.inputs and fill is not None
        return super().filled(v, at, fill, () if edges else mask)

    def _compute(self, v: Value, at: Index, mask: Mask) -> Value:
        if v in self.buffers:
            return self.w.load(self.buffers[v], self.block.kept_at(v, at))
        if v in self.w.inputs and not self.w.bounds(at, v.tensor.shape):
            return self.w.load(self.w.inputs[v], at)
        return super()._compute(v, at, mask)


class TilesBlock(ChainBlock):
    """A block whose kept values are matrices."""

    def __init__(self, tiles: TilesChain, plan: ChainTilesParameters) -> None:
        super().__init__(tiles.chain, plan.threads)
        self.tiles = tiles
        self.warps = plan.warps
        for stage in tiles.chain.stages:
            for v, _ in stage.results:
                if v in tiles.chain.kept:
                    shape = matrix_shape(tiles, v, plan.warps)
                    self.buffers[v] = self.w.alloc(shape, v.tensor.dtype, "shared", "kept")

    def slot(self, v: Value, offset: Sequence[Expr]) -> Index:
        row: Expr = 0
        for at, span in zip(offset[:-1], self.chain.kept[v].box[:-1], strict=True):
            row = row * span.extent + at
        return (self.w.simple(row), offset[-1])

    def points(self, stage: Stage, known: Mapping[Value, Value] | None = None) -> ChainPoints:
        return TilesPoints(self, stage, known)
