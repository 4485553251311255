"""Results that the copy engine writes: from sums in fragments through pieces of a warp in shared memory.

A warp computes the epilogue on the sums where they are, 16 rows and up to 128 bytes of columns at a time, and
lays the results down as the engine reads them; its first lane has them written. While one piece is written
the next one is computed: two pieces take turns. Lanes may read a piece besides, for sums of what is stored;
values that are not stored at all are laid down for lanes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.ir.thread.tensor_maps import ParameterMap, TensorMap, copied_as, map_faults
from tilewright.ir.types import TensorType, itemsize, storage_dtype
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: bytes of a row of a piece at most: those of the widest swizzle
ROW_BYTES = 128
#: bytes of rows that a swizzle takes
SWIZZLES = (32, 64, 128)
#: bytes at whose multiples a swizzle begins
ALIGNMENT = 1024
#: elements of other tensors, by row and column of the block's tile
Further = Callable[[Expr, Expr], dict[Value, Value]]
#: pieces of a warp that take turns
PIECES = 2


@dataclass(frozen=True)
class Tiling:
    """A tile of results of a team of warps: names of the dimensions that make up batch, rows and columns.

    domain: the extents of results. warps: of the team. warp_columns: those of results that a warp holds.
    """

    domain: Mapping[str, int]
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    warps: int
    warp_columns: int


@dataclass(frozen=True)
class Place:
    """The place of a warp's results: batch index, first row and column of the tile, and those of the warp.

    rows: per tile of rows of the fragments its first row in the block's tile.
    """

    batch: Mapping[str, Expr]
    m: Expr
    n: Expr
    rows: Sequence[Expr]
    column: Expr


@dataclass(frozen=True)
class Panel:
    """Results of a warp in shared memory: 16 rows, whose first one and first column in the tile are given.

    laid: of a result its buffer, and the place of the panel's first element therein.
    """

    row: Expr
    column: Expr
    laid: Mapping[Value, tuple[Value, tuple[Expr, ...]]]


class EngineResults:
    """Results of one contraction that the copy engine writes; `of` says whether it can.

    sums: the values of the kernel from which a result is computed, one after the other by groups of columns.
    columns: of a piece. maps: the number of the tensor map of each result; none for those handed on only.
    laid: values that are laid down, and not written.
    """

    def __init__(
        self,
        w: Writer,
        sums: Sequence[Value],
        tiling: Tiling,
        columns: int,
        maps: Mapping[Value, int],
        laid: Sequence[Value] = (),
    ) -> None:
        self.w, self.sums, self.tiling, self.columns, self.maps = w, sums, tiling, columns, maps
        self.laid = (*maps, *laid)
        sizes = tiling.domain
        self.m, self.n = (_count(sizes, names) for names in (tiling.rows, tiling.columns))
        self.outer = tuple(d for d in tiling.batch if sizes[d] > 1)

    @staticmethod
    def of(
        w: Writer, sums: Sequence[Value], tiling: Tiling, results: Sequence[Value] | None = None
    ) -> EngineResults | None:
        """Results of `sums`, their maps given to the kernel; None where the engine cannot write them.

        results: those of the kernel that are computed from `sums`, all by default.
        """
        outputs = list(w.outputs)
        own = outputs if results is None else list(dict.fromkeys(results))
        written = result_maps({len(w.inputs) + outputs.index(v): v.tensor for v in own}, tiling)
        if written is None:
            return None
        columns, known = written
        maps = {v: w.add_map(p) for v, p in zip(own, known, strict=True)}
        return EngineResults(w, sums, tiling, columns, maps)

    @staticmethod
    def unwritten(
        w: Writer, sums: Sequence[Value], tiling: Tiling, laid: Sequence[Value]
    ) -> EngineResults | None:
        """Values computed from `sums` that lanes read and nobody writes; None where no piece holds them."""
        columns = columns_of_piece([v.tensor for v in laid], tiling)
        return None if columns is None else EngineResults(w, sums, tiling, columns, {}, laid)

    @property
    def piece_types(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of the buffer in which the warps of a team lay down each result."""
        shape = (self.tiling.warps, PIECES, MMA_M, self.columns)
        return [(shape, v.tensor.dtype) for v in self.laid]

    def pieces(self) -> dict[Value, Value]:
        """Where the warps of a team lay down their results: a buffer per result."""
        return {
            v: self.w.alloc(shape, dtype, "shared", "pieces", swizzled=True, align=ALIGNMENT)
            for v, (shape, dtype) in zip(self.laid, self.piece_types, strict=True)
        }

    def write(
        self,
        sums: Value,
        pieces: Mapping[Value, Value],
        place: Place,
        whole: frozenset[str],
        *,
        handed: Value | None = None,
        further: Further | None = None,
        read: Callable[[Panel], None] | None = None,
    ) -> None:
        """Compute the results of this warp's sums and have them written; the pieces are free at the end.

        whole: which of `m` and `n` all of the tile lies inside of the results along. handed: what takes the
        place of the sums, in their fragments: numbers of 16 bits that are computed from one sum each, 0
        beyond the last column. further: gives elements of other tensors at a row and a column of the block's
        tile. read: writes what reads a panel besides, while the engine does.
        """
        w = self.w
        panels = self.tiling.warp_columns // self.columns
        for i, row in enumerate(place.rows):
            for panel in range(panels):
                number = i * panels + panel
                if self.maps and number >= PIECES:
                    w.b.do("thread.bulk_wait", pending=PIECES - 1, by_warp=True)
                self._piece(sums, pieces, place, i, row, panel, number % PIECES, whole, handed, further)
                if read is not None:
                    at = (Sym("tid") // WARP, number % PIECES, 0, 0)
                    laid = {v: (piece, at) for v, piece in pieces.items()}
                    read(Panel(row, w.simple(place.column + panel * self.columns), laid))
        if self.maps:
            w.b.do("thread.bulk_wait", by_warp=True)

    def _piece(
        self,
        sums: Value,
        pieces: Mapping[Value, Value],
        place: Place,
        i: int,
        row: Expr,
        panel: int,
        turn: int,
        whole: frozenset[str],
        handed: Value | None,
        further: Further | None,
    ) -> None:
        w, tiles = self.w, self.columns // MMA_N
        warp, lane = Sym("tid") // WARP, Sym("tid") % WARP
        column = place.column + panel * self.columns
        with w.loop("j", tiles, unroll=1) as j, w.loop("half", 2, unroll=1) as half:
            pairs = [self._pair(sums, i, panel * tiles + j, member, half) for member in range(len(self.sums))]
            item = (i, w.simple(panel * tiles + j))
            if handed is not None and "n" not in whole:
                # beyond the last column what is handed on may be no number, but is multiplied with zeros
                for pair in (0, 1):
                    zero = w.b.const(0.0, "f32")
                    w.b.do("thread.set_fragment", zero, sums, item=item, at=(half, pair))
            inner = w.simple(half * (MMA_M // 2) + lane // 4)
            first = w.simple(j * MMA_N + lane % 4 * 2)
            mask = self._inside(place.m + row + inner, place.n + column + first, whole)
            with w.when(mask), w.loop("v", 2, unroll=1) as v:
                known = {s: w.load(both, (v,)) for s, both in zip(self.sums, pairs, strict=True)}
                if further is not None:
                    known |= further(w.simple(row + inner), w.simple(column + first + v))
                points = Points(w, known)
                index = self._index(place, place.m + row + inner, place.n + column + first + v)
                for result, piece in pieces.items():
                    with w.b.at(w.producers[result].loc):
                        w.store(points.value(result, index), piece, (warp, turn, inner, first + v))
                if handed is not None:
                    element = w.b.cast(points.value(handed, index), "f32")
                    w.b.do("thread.set_fragment", element, sums, item=item, at=(half, v))
        if not pieces:
            return
        if self.maps:
            w.b.do("thread.fence_async_proxy")
        w.b.do("thread.warp_barrier")
        for result in self.maps:
            self._store(result, pieces[result], place, row, column, (warp, turn, 0, 0))
        if self.maps:
            w.b.do("thread.bulk_commit", by_warp=True)

    def _pair(self, sums: Value, i: int, tile: Expr, member: int, half: Expr) -> Value:
        """Both sums of a member that this thread has in a tile of results."""
        w = self.w
        both = w.alloc((2,), sums.tensor.dtype, "reg", "pair")
        item = (i, w.simple(tile * len(self.sums) + member))
        for pair in (0, 1):
            element = w.b.value("thread.get_fragment", sums, item=item, at=(half, pair))
            w.store(element, both, (pair,))
        return both

    def _store(
        self, result: Value, piece: Value, place: Place, row: Expr, column: Expr, src: tuple[Expr, ...]
    ) -> None:
        w = self.w
        at = (*(place.batch[d] for d in self.outer), place.m + row, place.n + column)
        w.b.do(
            "thread.store_tile", piece, w.outputs[result],
            map=self.maps[result], src=tuple(map(w.simple, src)), at=tuple(map(w.simple, at)),
            tile=(1,) * len(self.outer) + (MMA_M, self.columns), by_warp=True,
        )  # fmt: skip

    def _inside(self, m: Expr, n: Expr, whole: frozenset[str]) -> Mask:
        """Where an element and its neighbour are results; neighbours are so together, or masked alone."""
        w = self.w
        rows = () if "m" in whole else w.below(w.simple(m), self.m)
        return rows if "n" in whole else (*rows, *w.below(w.simple(n), self.n))

    def _index(self, place: Place, m: Expr, n: Expr) -> tuple[Expr, ...]:
        w, index = self.w, dict(place.batch)
        for names, at in ((self.tiling.rows, m), (self.tiling.columns, n)):
            parts = w.unravel(w.simple(at), [self.tiling.domain[d] for d in names])
            index.update(zip(names, parts, strict=True))
        return tuple(index[d] for d in self.tiling.domain)


def result_maps(results: Mapping[int, TensorType], tiling: Tiling) -> tuple[int, list[ParameterMap]] | None:
    """Columns of a piece, and the maps of results, which are given by their number among the parameters.

    None where the engine cannot write them all.
    """
    columns = columns_of_piece(list(results.values()), tiling)
    if columns is None:
        return None
    box = (MMA_M, columns)
    parameters = [map_of_tiles(t, tiling, position, box) for position, t in results.items()]
    known = [p for p in parameters if p is not None]
    return (columns, known) if len(known) == len(parameters) else None


def columns_of_piece(values: Sequence[TensorType], tiling: Tiling) -> int | None:
    """Columns of a piece that holds 16 rows of these values; None where their sizes allow none."""
    sizes = {itemsize(t.dtype) for t in values}
    if len(sizes) != 1:
        return None
    columns = gcd(ROW_BYTES // max(sizes), tiling.warp_columns)
    return columns if columns * max(sizes) in SWIZZLES else None


def _count(sizes: Mapping[str, int], names: Sequence[str]) -> int:
    total = 1
    for d in names:
        total *= sizes[d]
    return total


def map_of_tiles(t: TensorType, tiling: Tiling, position: int, box: tuple[int, int]) -> ParameterMap | None:
    """The map of a parameter with the extents of the results, for boxes of so many rows and columns.

    None where rows or columns are no run, or rules forbid.
    """
    par, size = tiling.domain, itemsize(t.dtype)
    if t.shape != tuple(par.values()) or _count(par, tiling.columns) % 2:
        return None
    steps = dict(zip(par, t.strides, strict=True))
    runs = []
    for names in (tiling.rows, tiling.columns):
        run = [(par[d], steps[d]) for d in names if par[d] > 1]
        if not run or any(a[1] != b[0] * b[1] for a, b in pairwise(run)):
            return None
        runs.append((_count(par, names), run[-1][1]))
    (m, row_step), (n, column_step) = runs
    outer = [d for d in tiling.batch if par[d] > 1]
    if column_step != 1:
        return None
    recipe = TensorMap(
        copied_as(storage_dtype(t.dtype).name),
        (*(par[d] for d in outer), m, n),
        (*(steps[d] * size for d in outer), row_step * size),
        (*(1 for _ in outer), *box),
        swizzle=box[1] * size,
    )
    parameter = ParameterMap(position, recipe, t.start * size)
    return None if parameter.offset % 16 or any(map_faults(recipe)) else parameter
