"""Two chained products by roles: the second multiplies what the first one finished, from registers.

A block owns rows. One role copies chunks of the factors of both products to channels, warpgroups of 64 rows
multiply. The sums of a tile of columns of the first product are finished where they are, results that others
read are written by the copy engine, and the numbers that the second product reads are packed to its first
factor: what a lane holds of the sums of 16 x 8 tiles is what it must hold of a factor of 16 x 16. While they
are multiplied the copies, and then the multiplications, of the next tile of columns go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chained.parameters import (
    CHUNK,
    STEP,
    ChainedParameters,
    chained_parameters,
)
from tilewright.passes.kernels.chained.view import ChainedView, chained_view
from tilewright.passes.kernels.matrix.problem import tiling_of
from tilewright.passes.kernels.matrix.roles import role_registers
from tilewright.passes.kernels.matrix.stage import Staged, chunk_count
from tilewright.passes.kernels.matrix.view import MatrixView
from tilewright.passes.kernels.matrix.warpgroup import multiply_held, start_multiplying, warpgroup_rows
from tilewright.passes.kernels.writing.engine_results import (
    ALIGNMENT,
    ROW_BYTES,
    EngineResults,
    Further,
    Place,
    Tiling,
    map_of_tiles,
)
from tilewright.passes.kernels.writing.tile_edges import inside_and_edges
from tilewright.passes.kernels.writing.writer import Writer


def lower_chained(kernel: Func) -> Func:
    """The thread-level function of a kernel of two chained products.

    rewrite:  contract -> maps -> contract -> maps
        -->   role { acquire; copies of chunks of either product; publish }
              role { sums of a tile of columns; maps; results; its product with the second weights }
    """
    view = chained_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected two chained products, but {view}", where=f"@{kernel.name}")
    return _Chained(kernel, view, chained_parameters(kernel, view)).lower()


@dataclass(frozen=True)
class _Rows:
    """A tile of rows of the block: its first row, and how many the block has had before."""

    m: Expr
    own: Expr


class _Further:
    """Tensors that the results of a product are computed from: their tiles, brought by the copy engine."""

    def __init__(
        self, w: Writer, view: MatrixView, tiling: Tiling, plan: ChainedParameters, tile: int
    ) -> None:
        self.w, self.rows, self.slots = w, plan.rows, plan.read_stages
        self.view, self.tiling, self.tile = view, tiling, tile
        self.piece = gcd(ROW_BYTES // itemsize(view.dtype), tile)
        self.tiles: dict[Value, Value] = {}
        self.maps: dict[Value, int] = {}
        self.channel: Value | None = None

    def hold(self, values: Sequence[Value], where: str) -> None:
        """Have tiles of these tensors, and a channel by which they come."""
        w = self.w
        for v in values:
            position = list(w.inputs).index(v)
            found = map_of_tiles(v.tensor, self.tiling, position, (self.rows, self.piece))
            if found is None:
                raise InputError("expected further tensors that the copy engine can bring", where=where)
            shape = (self.slots, self.tile // self.piece, self.rows, self.piece)
            self.tiles[v] = w.alloc(
                shape, v.tensor.dtype, "shared", "further", swizzled=True, align=ALIGNMENT
            )
            self.maps[v] = w.add_map(found)
        if self.tiles:
            self.channel = w.b.value(
                "thread.channel", *self.tiles.values(), hint="further", slots=self.slots
            )  # fmt: skip

    def fetch(self, item: Expr, m: Expr, n: Expr) -> None:
        """Bring the tiles of an item, whose first row and column are m and n."""
        w = self.w
        if self.channel is None:
            return
        w.b.do("thread.acquire", self.channel, item=item)
        for v, tiles in self.tiles.items():
            with w.loop("panel", tiles.tensor.shape[1], unroll=1) as panel:
                w.b.do(
                    "thread.copy_tile", w.inputs[v], tiles,
                    map=self.maps[v],
                    at=(w.simple(m), w.simple(n + panel * self.piece)),
                    dst=(w.simple(item % self.slots), panel, 0, 0),
                    tile=(self.rows, self.piece),
                    to=(),
                )  # fmt: skip
        w.b.do("thread.publish", self.channel, item=item)

    @contextmanager
    def held(self, item: Expr) -> Iterator[Further | None]:
        """The elements of an item, which is received before and released behind what is inside."""
        w = self.w
        if self.channel is None:
            yield None
            return
        slot = w.simple(item % self.slots)

        def at(m: Expr, n: Expr) -> dict[Value, Value]:
            place = (slot, w.simple(n // self.piece), m, w.simple(n % self.piece))
            return {v: w.load(tiles, place) for v, tiles in self.tiles.items()}

        w.b.do("thread.receive", self.channel, item=item)
        yield at
        w.b.do("thread.release", self.channel, item=item)


class _Chained:
    def __init__(self, kernel: Func, view: ChainedView, plan: ChainedParameters) -> None:
        self.name, self.view, self.plan = kernel.name, view, plan
        self.plans = (plan.first(view.first.channel), plan.second(view.second.channel))
        self.row_tiles, self.blocks = plan.row_tiles(view), plan.grid(view)
        self.turns = -(-self.row_tiles // self.blocks)
        self.column_tiles, self.width_tiles = plan.column_tiles(view), plan.width_tiles(view)
        #: chunks of a tile of columns of the first product, and those that it is for the second one
        self.depth_chunks = chunk_count(view.first, self.plans[0])
        self.chunks = plan.chunks
        #: items per tile of rows, of the factors of the first product and of the second weights
        self.items = self.column_tiles * self.depth_chunks
        self.second_items = self.column_tiles * self.width_tiles * self.chunks
        self.w = Writer(kernel, plan.threads, (self.blocks, 1, 1))

    def lower(self) -> Func:
        w, view, plan = self.w, self.view, self.plan
        with w.b.at(view.first.op.loc):
            self.factors = [Staged(w, view.first, self.plans[0], i, 0, {}, plan.stages) for i in (0, 1)]
            self.weights = Staged(w, view.second, self.plans[1], 1, 0, {}, plan.second_stages)
            if not all(f.by_engine for f in (*self.factors, self.weights)):
                raise InputError(
                    "expected factors that the copy engine can bring", where=f"@{self.name}"
                )  # fmt: skip
            self.results = [self._results(i) for i in (0, 1)]
            self.pieces = self._pieces()
            self.further = [
                _Further(w, v, self._tiling(i), plan, self.plans[i].block.n)
                for i, v in enumerate(view.products)
            ]
            if plan.read_stages:
                for i, further in enumerate(self.further):
                    further.hold(view.further(i), f"@{self.name}")
            tiles = [f.tiles for f in self.factors]
            self.ring = w.b.value("thread.channel", *tiles, hint="ring", slots=plan.stages)
            self.second_ring = w.b.value(
                "thread.channel", self.weights.tiles, hint="weights", slots=plan.second_stages
            )
            copiers, others = role_registers(self.plans[0], by_engine=True)
            with w.role("copy", self.plans[0].copiers, copiers):
                self._copy()
            with w.role("multiply", plan.warps, others):
                self._multiply()
        lowered = w.finish()
        return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)

    # -- results ---------------------------------------------------------------------------------------------
    def _tiling(self, product: int) -> Tiling:
        return tiling_of(self.view.products[product], self.plans[product])

    def _results(self, product: int) -> EngineResults:
        """The results of a product that the copy engine writes because the kernel returns them."""
        view, tiling, results = self.view.products[product], self._tiling(product), self.view.results[product]
        if not results:
            columns = gcd(ROW_BYTES // itemsize(view.dtype), tiling.warp_columns)
            return EngineResults(self.w, [view.op.result], tiling, columns, {})
        written = EngineResults.of(self.w, [view.op.result], tiling, results)
        if written is None:
            raise InputError("expected results that the copy engine can write", where=f"@{self.name}")
        return written

    def _pieces(self) -> list[Mapping[Value, Value]]:
        """Where warps lay down the results of either product, which take turns with the same buffers."""
        w, free = self.w, dict[tuple[tuple[int, ...], str], list[Value]]()
        out: list[Mapping[Value, Value]] = []
        for results in self.results:
            used: dict[tuple[tuple[int, ...], str], int] = {}
            own: dict[Value, Value] = {}
            for v, (shape, dtype) in zip(results.maps, results.piece_types, strict=True):
                known, number = free.setdefault((shape, dtype), []), used.get((shape, dtype), 0)
                if number == len(known):
                    known.append(w.alloc(shape, dtype, "shared", "pieces", swizzled=True, align=ALIGNMENT))
                own[v] = known[number]
                used[shape, dtype] = number + 1
            out.append(own)
        return out

    def _finish(self, product: int, acc: Value, rows: _Rows, tile: Expr) -> None:
        """Finish a tile: results are written, and what the second product reads takes the place of sums.

        Tiles at an edge have code of their own, so that others test nothing.
        """
        w, view, plan = self.w, self.view.products[product], self.plans[product]
        column = w.simple(tile * plan.block.n)
        m, n = view.size(view.rows), view.size(view.columns)
        sides = (("m", rows.m, m, plan.block.m), ("n", column, n, plan.block.n))
        always = frozenset(name for name, _, size, extent in sides if not size % extent)
        _, own = warpgroup_rows(w, plan)
        place = Place(dict.fromkeys(view.batch, 0), rows.m, column, (own,), 0)
        handed = None if product else self.view.handed
        item = self._tile_item(product, rows, tile)
        with w.b.at(view.op.loc), self.further[product].held(item) as further:
            for mask, whole in inside_and_edges(sides):
                with w.when(mask):
                    inside, pieces = always | whole, self.pieces[product]
                    self.results[product].write(acc, pieces, place, inside, handed=handed, further=further)

    # -- roles -----------------------------------------------------------------------------------------------
    @contextmanager
    def _row_tiles(self) -> Iterator[_Rows]:
        """The tiles of rows of this block, one after the other."""
        w = self.w
        with w.loop("turn", self.turns) as turn:
            number = w.simple(turn * self.blocks + Sym("bid.x"))
            with w.when(w.below(number, self.row_tiles)):
                yield _Rows(w.simple(number * self.plan.rows), turn)

    def _copy(self) -> None:
        w, plan = self.w, self.plan
        with self._row_tiles() as rows, w.loop("column", self.column_tiles) as column:
            first, weights = self.factors
            first.move_to(rows.m, {})
            weights.move_to(w.simple(column * plan.columns), {})
            with w.loop("chunk", self.depth_chunks) as chunk:
                item = self._item(rows, column, chunk)
                self._fill(self.ring, self.factors, chunk, item, plan.stages)
            item = self._tile_item(0, rows, column)
            self.further[0].fetch(item, rows.m, w.simple(column * plan.columns))
            with w.loop("width", self.width_tiles) as width:
                self.weights.move_to(w.simple(width * plan.width), {})
                with w.loop("part", self.chunks) as part:
                    item = self._second_item(rows, column, width, part)
                    chunk = w.simple(column * self.chunks + part)
                    self._fill(self.second_ring, [self.weights], chunk, item, plan.second_stages)
                with w.when(w.bounds((w.simple(column + 1 - self.column_tiles),), (1,))):
                    item = self._tile_item(1, rows, width)
                    self.further[1].fetch(item, rows.m, w.simple(width * plan.width))

    def _fill(self, channel: Value, factors: Sequence[Staged], chunk: Expr, item: Expr, slots: int) -> None:
        """Copy a chunk of some factors as an item of their channel."""
        w = self.w
        w.b.do("thread.acquire", channel, item=item)
        for factor in reversed(factors):
            factor.fetch(chunk, w.simple(item % slots))
        w.b.do("thread.publish", channel, item=item)

    def _item(self, rows: _Rows, column: Expr, chunk: Expr) -> Expr:
        """The number of a chunk of the first product."""
        return self.w.simple(rows.own * self.items + column * self.depth_chunks + chunk)

    def _second_item(self, rows: _Rows, column: Expr, width: Expr, part: Expr) -> Expr:
        """The number of a chunk of the second weights: one of `column` and `width` has but one tile."""
        tile = column * self.width_tiles + width
        return self.w.simple(rows.own * self.second_items + tile * self.chunks + part)

    def _tile_item(self, product: int, rows: _Rows, tile: Expr) -> Expr:
        """The number of a tile of columns of a product."""
        tiles = self.width_tiles if product else self.column_tiles
        return self.w.simple(rows.own * tiles + tile)

    def _multiply(self) -> None:
        w, plan = self.w, self.plan
        self.sums = w.alloc((1, plan.columns // MMA_N, MMA_M, MMA_N), "f32", "frag", "sums")
        self.factor = w.alloc(
            (plan.columns // STEP, 1, MMA_M, STEP), self.view.second.dtype, "frag", "handed"
        )
        self.second_sums = w.alloc((1, plan.width // MMA_N, MMA_M, MMA_N), "f32", "frag", "second_sums")
        with self._row_tiles() as rows:
            if self.width_tiles > 1:
                self._kept_columns(rows)
            else:
                self._kept_sums(rows)

    def _kept_columns(self, rows: _Rows) -> None:
        """All columns of the first product are kept as the factor of every tile of the second."""
        w = self.w
        self._sum_first(rows, 0)
        self._finish_first(rows, 0)
        with w.loop("width", self.width_tiles) as width:
            w.b.do("thread.fill_fragment", self.second_sums, value=_start(self.view.second))
            self._start_second(rows, 0, width)
            w.b.do("thread.warpgroup_wait", self.second_sums)
            self._release_second(rows, 0, width)
            self._finish(1, self.second_sums, rows, width)

    def _kept_sums(self, rows: _Rows) -> None:
        """All sums of the second product are kept, to which every tile of the first is added."""
        w, last = self.w, self.column_tiles - 1
        w.b.do("thread.fill_fragment", self.second_sums, value=_start(self.view.second))
        with w.loop("column", self.column_tiles) as column:
            self._sum_first(rows, column)
            if last:
                # the sums of this tile are finished, so is what was started before them
                with w.when(w.bounds((w.simple(column - 1),), (self.column_tiles,))):
                    self._release_second(rows, w.simple(column - 1), 0)
            self._finish_first(rows, column)
            self._start_second(rows, column, 0)
        w.b.do("thread.warpgroup_wait", self.second_sums)
        self._release_second(rows, last, 0)
        self._finish(1, self.second_sums, rows, 0)

    def _sum_first(self, rows: _Rows, column: Expr) -> None:
        """The sums of a tile of columns of the first product; no multiplication is under way at the end."""
        w, plan, chunks = self.w, self.plan, self.depth_chunks
        w.b.do("thread.fill_fragment", self.sums, value=_start(self.view.first))
        with w.loop("chunk", chunks) as chunk:
            item = self._item(rows, column, chunk)
            w.b.do("thread.receive", self.ring, item=item)
            slot = w.simple(item % plan.stages)
            start_multiplying(w, self.plans[0], self.factors, self.sums, (slot, slot))
            if chunks > 1:
                w.b.do("thread.warpgroup_wait", self.sums, pending=1)
                with w.when(w.bounds((w.simple(chunk - 1),), (chunks,))):
                    w.b.do("thread.release", self.ring, item=w.simple(item - 1))
        w.b.do("thread.warpgroup_wait", self.sums)
        w.b.do("thread.release", self.ring, item=self._item(rows, column, chunks - 1))

    def _finish_first(self, rows: _Rows, column: Expr) -> None:
        """Finish a tile of the first product, and pack it to the first factor of the second one."""
        w = self.w
        self._finish(0, self.sums, rows, column)
        with w.loop("k", self.plan.columns // STEP, unroll=1) as k:
            item = (0, w.simple(k * (STEP // MMA_N)))
            w.b.do("thread.pack_fragment", self.sums, self.factor, item=item, to=(k, 0))

    def _start_second(self, rows: _Rows, column: Expr, width: Expr) -> None:
        """Start to add the product of what was handed on and its part of the second weights."""
        w, plan = self.w, self.plan
        for part in range(self.chunks):
            item = self._second_item(rows, column, width, part)
            w.b.do("thread.receive", self.second_ring, item=item)
            steps = (min(plan.columns, (part + 1) * CHUNK) - part * CHUNK) // STEP
            multiply_held(
                w, self.plans[1], self.factor, self.weights, self.second_sums,
                w.simple(item % plan.second_stages), first=part * (CHUNK // STEP), steps=steps,
            )  # fmt: skip

    def _release_second(self, rows: _Rows, column: Expr, width: Expr) -> None:
        for part in range(self.chunks):
            item = self._second_item(rows, column, width, part)
            self.w.b.do("thread.release", self.second_ring, item=item)


def _start(view: MatrixView) -> float:
    """Return the number that the sums of a product begin with."""
    return float(view.op["init"][0])  # type: ignore[index, arg-type]
