"""Contractions on tensor cores: an implicit matrix product by warps, with a ring of asynchronous copies.

A block computes a tile of rows (all row dimensions as one) by columns. Chunks of both factors travel to a
ring of buffers in shared memory; the warps load fragments of the oldest chunk with ldmatrix and multiply them
with mma.sync while later chunks are on their way, or groups of four warps multiply tiles as they lie there
(`matrix_warpgroup`). At the end the sums pass through shared memory once more,
so that the epilogue reads and writes whole vectors; it adds those of several sets of warps, where each set
multiplies a part of every chunk, or of several blocks, where each multiplies a part of the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP, WARPGROUP_WARPS
from tilewright.ir.tensor.ops import dims
from tilewright.passes.analysis.shared_work import LANES
from tilewright.passes.kernels.column_members import column_of, members_apart
from tilewright.passes.kernels.matrix.parameters import (
    WARPGROUPS,
    MatrixParameters,
    chunks_of_part,
    matrix_parameters,
)
from tilewright.passes.kernels.matrix.ring import Ring, Slots
from tilewright.passes.kernels.matrix.roles import lower_by_roles, raster_place
from tilewright.passes.kernels.matrix.split import (
    any_not_finite,
    chain_of,
    reduce_split,
    reduce_split_by_warpgroups,
    scale_split,
)
from tilewright.passes.kernels.matrix.stage import Staged, chunk_count
from tilewright.passes.kernels.matrix.view import MatrixView, matrix_view, result_lanes, sums_of
from tilewright.passes.kernels.matrix.warpgroup import reduce_by_warpgroups, warpgroup_rows
from tilewright.passes.kernels.writing.cluster_sums import SUM_PADS, meet, own_part, own_vectors, summed
from tilewright.passes.kernels.writing.column_sums import GROUP_ROWS, TileSums, column_sums
from tilewright.passes.kernels.writing.points import Points, store_results
from tilewright.passes.kernels.writing.prefetch import shared_lines
from tilewright.passes.kernels.writing.tile_edges import inside_and_edges
from tilewright.passes.kernels.writing.tiling import MAX_GRID_YZ
from tilewright.passes.kernels.writing.writer import Mask, Writer, anchor_of

#: steps of the epilogue that are unrolled together
EPILOGUE_UNROLL = 8


def lower_matrix(kernel: Func) -> Func:
    """The thread-level function of a kernel around one tensor.contract, on tensor cores.

    rewrite:  tensor.contract + epilogue maps   -->   copies in flight, fragments, mma, tile of sums, epilogue
    """
    op = anchor_of(kernel, "tensor.contract")
    view = matrix_view(kernel, op)
    if view is None:
        raise InputError(
            "expected a product of f16, bf16, f8e4m3, TF32 or split factors, or of bytes",
            where=f"@{kernel.name}",
        )
    plan, view = matrix_parameters(kernel, view)
    if plan.copiers:
        return lower_by_roles(kernel, view, plan)
    return _Matrix(kernel, view, plan).lower()


class _Matrix:
    def __init__(self, kernel: Func, view: MatrixView, plan: MatrixParameters) -> None:
        kernel, self.totals = members_apart(kernel, view.op, view.members)
        self.members = len(self.totals)
        self.kernel, self.view, self.plan, self.op = kernel, view, plan, view.op
        self.m, self.n = view.size(view.rows), view.size(view.columns)
        self.blocks_m, self.blocks_n = -(-self.m // plan.block.m), -(-self.n // plan.block.n)
        batch, tiles = view.size(view.batch), self.blocks_m * self.blocks_n
        self.on_z = batch <= MAX_GRID_YZ
        self.on_x = (tiles if self.on_z else tiles * batch) * plan.parts
        grid = (self.on_x, 1, batch if self.on_z else 1)
        self.w = Writer(kernel, plan.threads, grid, cluster=plan.parts)
        self.depth = view.depth
        self.all_chunks = chunk_count(view, plan)
        self.chunks, last = chunks_of_part(self.all_chunks, plan.parts)
        self.uneven = last != self.chunks
        slots = min(plan.stages, self.chunks)
        #: of either factor
        self.slots = (slots, self.chunks if plan.preloaded else slots)
        self.by_groups = plan.engine == WARPGROUPS
        self.sums = sums_of(view.dtype)
        #: sums of columns that the kernel takes besides, and the tiles of what is summed
        self.column_sums = column_sums(kernel, view)
        self.summed: dict[Value, Value] = {}

    def lower(self) -> Func:
        w, plan = self.w, self.plan
        with w.b.at(self.op.loc):
            block_m, block_n, batch = self._block()
            self.origin_m = w.simple(block_m * plan.block.m)
            self.origin_n = w.simple(block_n * plan.block.n)
            self.first_result = w.simple(block_n * (plan.block.n // self.members))
            self.batch = batch
            warp = Sym("tid") // WARP
            # set and place along m are one number, and one row of the tiles of sums: see _spill
            rows = warp % (plan.warps.k * plan.warps.m)
            self.sum_row = w.simple(rows * plan.warp_m)
            if self.by_groups:
                self.sum_row = warpgroup_rows(w, plan)[1]
            self.warp_m = w.simple(rows % plan.warps.m * plan.warp_m)
            self.warp_n = w.simple(warp // (plan.warps.k * plan.warps.m) * plan.warp_n)
            self.warp_k = w.simple(rows // plan.warps.m * (plan.block.k // plan.warps.k))
            factors = [
                Staged(w, self.view, plan, i, origin, batch, self.slots[i])
                for i, origin in enumerate((self.origin_m, self.origin_n))
            ]
            factors[1].share_lines(*shared_lines(block_m, self.blocks_m))
            if plan.parts > 1:
                for factor in factors:
                    first = w.simple(own_part(plan.parts) * self.chunks)
                    factor.begin_at(first, self.all_chunks if self.uneven else None)
            shape = (plan.warp_m // MMA_M, plan.warp_n // MMA_N, MMA_M, MMA_N)
            acc = w.alloc(shape, self.sums, "frag", "sums")
            start = self._start()
            w.b.do("thread.fill_fragment", acc, value=type(start)(0) if self.starts_late else start)
            not_finite = None
            if self.view.splits:
                if self.by_groups:
                    reduce_split_by_warpgroups(w, plan, factors, acc, self.chunks)
                else:
                    reduce_split(w, plan, factors, acc, self.chunks, self._place_of_warp())
                scale_split(w, acc)
                not_finite = any_not_finite(w, acc) if plan.parts == 1 else None
            elif self.by_groups:
                reduce_by_warpgroups(w, plan, factors, acc, self.chunks)
            else:
                self._reduce(factors, acc)
            tile, transposed = self._spill(acc)
            if not_finite is not None:
                self._recompute(not_finite, tile, transposed)
            if plan.parts > 1:
                meet(w)
        tile_sums = self._prepare_sums()
        self._epilogue(tile, transposed)
        if tile_sums is not None:
            with w.b.at(self.op.loc):
                self._sum_columns(tile_sums)
        if plan.parts > 1:
            with w.b.at(self.op.loc):
                meet(w)
        return w.finish()

    @property
    def starts_late(self) -> bool:
        """Whether the start of a sum is added to the finished one: it is in one part only, and not scaled."""
        return self.plan.warps.k > 1 or self.plan.parts > 1 or self.view.splits

    def _place_of_warp(self) -> tuple[Expr, Expr, Expr]:
        return self.warp_m, self.warp_n, self.warp_k

    def _start(self) -> float:
        start = float(self.op["init"][0])  # type: ignore[index, arg-type]
        return start if self.sums == "f32" else int(start)

    def _block(self) -> tuple[Expr, Expr, Mapping[str, Expr]]:
        """Tile of the block along m and n, and its index in each batch dimension."""
        w, tiles = self.w, self.blocks_m * self.blocks_n
        x: Expr = Sym("bid.x") // self.plan.parts
        number: Expr = Sym("bid.z") if self.on_z else x // tiles
        place = x if self.on_z else x % tiles
        block_m, block_n = raster_place(place, gcd(self.plan.raster, self.blocks_m), self.blocks_n)
        names, sizes = self.view.batch, self.view.sizes
        batch = dict(zip(names, w.unravel(number, [sizes[d] for d in names]), strict=True))
        return w.simple(block_m), w.simple(block_n), batch

    # -- reduction -------------------------------------------------------------------------------------------
    def _reduce(self, factors: list[Staged], acc: Value) -> None:
        w = self.w
        ring = Ring(w, factors, self.chunks)
        ring.start()
        kinds = [source.value.tensor.dtype for source in self.view.sources]
        steps = self.plan.block.k // self.depth // self.plan.warps.k
        fragments = [
            w.alloc((min(2, steps), acc.tensor.shape[0], MMA_M, self.depth), kinds[0], "frag", "a"),
            w.alloc((min(2, steps), acc.tensor.shape[1], self.depth, MMA_N), kinds[1], "frag", "b"),
        ]
        # Fragments of the next step are loaded before those of a step are multiplied, also from the next
        # chunk. That takes two sets of registers in turns, which is why the number of steps must be even.
        across = steps % 2 == 0
        if across:
            ring.arrive()
            self._load(factors, fragments, (0, 0), 0)
        with w.loop("chunk", self.chunks) as chunk:
            slots = ring.slots_of(chunk)
            if not across:
                ring.arrive()
                self._load(factors, fragments, slots, 0)
            waiting = ring.refill(chunk)
            for step in range(steps):
                if step + 1 < steps:
                    self._load(factors, fragments, slots, step + 1)
                else:
                    for factor, ahead, later in waiting:
                        factor.store(ahead, later)
                    if across and self.chunks > 1:
                        ring.arrive()
                        self._load(factors, fragments, ring.slots_of(chunk + 1), 0)
                self._multiply(fragments, acc, step)

    def _load(self, factors: list[Staged], fragments: list[Value], slots: Slots, step: Expr) -> None:
        """Fragments of both factors for one step along k."""
        w = self.w
        for f, frag, origin in zip(factors, fragments, (self.warp_m, self.warp_n), strict=True):
            tiles = frag.tensor.shape[1]
            rounds = self.view.dtype == "f32" and not (f.operand and self.plan.rounded)
            width = MMA_N if f.operand else MMA_M
            count = 2 if f.operand and tiles % 2 == 0 else 1
            k = self.warp_k + step * self.depth
            with w.loop("i", tiles // count, unroll=1) as i:
                outer = origin + i * (width * count)
                w.b.do(
                    "thread.load_fragment", frag, f.tiles,
                    at=tuple(w.simple(e) for e in f.place(slots[f.operand], outer, k)),
                    role="ab"[f.operand],
                    transposed=f.by_channel == bool(f.operand),
                    item=(self._buffer(frag, step), w.simple(i * count)),
                    count=count,
                    rounding="tf32" if rounds else "",
                )  # fmt: skip

    def _buffer(self, frag: Value, step: Expr) -> Expr:
        return self.w.simple(step % frag.tensor.shape[0])

    def _multiply(self, fragments: list[Value], acc: Value, step: Expr) -> None:
        a, b = fragments
        with self.w.loops("i", acc.tensor.shape[:2], unroll=1) as (i, j):
            self.w.b.do(
                "thread.mma", a, b, acc,
                shape=(MMA_M, MMA_N, self.depth),
                engine=self.plan.engine,
                a_item=(self._buffer(a, step), i),
                b_item=(self._buffer(b, step), j),
                c_item=(i, j),
                rounded=self.view.dtype == "f32",
            )  # fmt: skip

    # -- sums of columns -------------------------------------------------------------------------------------
    def _prepare_sums(self) -> TileSums | None:
        if self.column_sums is None:
            return None
        w, block = self.w, self.plan.block
        with w.b.at(self.op.loc):
            shape = (block.m, block.n + SUM_PADS[False])
            self.summed = {
                v: w.alloc(shape, v.tensor.dtype, "shared", "summed") for v in self.column_sums.points
            }
            return TileSums(w, self.view, self.column_sums, block.m, block.n)

    def _sum_columns(self, tile_sums: TileSums) -> None:
        """Add up the columns of all groups of rows, a thread each, and what follows from them."""
        w, plan = self.w, self.plan
        place = (self.origin_m, self.origin_n)
        shape = (plan.block.m // GROUP_ROWS, plan.block.n)
        count = shape[0] * shape[1]
        with w.loop("g", -(-count // plan.threads)) as step:
            number = w.simple(step * plan.threads + Sym("tid"))
            group, column = w.unravel(number, shape)
            with w.when(w.below(number, count)):
                tile_sums.fold(
                    lambda v, row, _: w.load(self.summed[v], (w.simple(group * GROUP_ROWS + row), column)),
                    place,
                    group,
                    column,
                )
        tile_sums.finish(place, plan.threads)

    # -- epilogue --------------------------------------------------------------------------------------------
    def _last(self) -> str:
        """The dimension along which results are neighbours in memory."""
        par = dims(self.op, "par")
        return next((d for d in reversed(par) if par[d] > 1), "")

    def _spill(self, acc: Value) -> tuple[Value, bool]:
        """The block's sums as a tile in shared memory, [m, n] or [n, m]: neighbours in memory are last.

        Along m stand the sums of one set of warps after those of another, so that a warp's place in the tile
        is quotient and remainder of its number, by which it is known to be the warp's own.
        """
        w, plan = self.w, self.plan
        transposed = self._last() in self.view.rows
        m = plan.warps.k * plan.block.m
        shape = (plan.block.n, m + SUM_PADS[True]) if transposed else (m, plan.block.n + SUM_PADS[False])
        w.b.do("thread.async_wait", pending=0)
        w.b.do("thread.barrier")
        tile = w.alloc(shape, self.sums, "shared", "sum_tile")
        with w.loops("i", acc.tensor.shape[:2], unroll=1) as (i, j):
            row = self.sum_row + i * (WARPGROUP_WARPS * MMA_M if self.by_groups else MMA_M)
            column = self.warp_n + j * MMA_N
            at = (column, row) if transposed else (row, column)
            w.b.do(
                "thread.store_fragment", acc, tile,
                at=tuple(map(w.simple, at)), transposed=transposed, item=(i, j),
            )  # fmt: skip
        return tile, transposed

    def _epilogue(self, tile: Value, transposed: bool) -> None:
        """Write the kernel's results; blocks at an edge do it on their own, so that others test nothing."""
        w, plan = self.w, self.plan
        sides = (
            ("m", self.origin_m, self.m, plan.block.m),
            ("n", self.first_result, self.view.result_columns, plan.block.n // self.members),
        )
        for mask, whole in inside_and_edges(sides):
            with w.when(mask):
                self._results(tile, transposed, whole)

    def _results(self, tile: Value, transposed: bool, whole: frozenset[str]) -> None:
        """All threads walk over the tile of sums by vectors; along `whole` dimensions all of it is inside."""
        w, plan = self.w, self.plan
        m, n = plan.block.m, plan.block.n // self.members
        major, minor = (n, m) if transposed else (m, n)
        lanes = result_lanes(self.kernel, self.view, minor, major)
        lanes = gcd(lanes, LANES) if plan.parts > 1 else lanes
        total = major * minor // lanes
        if plan.parts > 1:
            self._shared_results(tile, transposed, whole, minor, lanes, total)
            return
        steps = -(-total // plan.threads)
        with w.loop("e", steps, unroll=1 if steps <= EPILOGUE_UNROLL else _together(steps)) as step:
            linear = w.simple(step * plan.threads + Sym("tid"))
            outer, vector = w.unravel(linear, (major, minor // lanes))
            first = w.simple(vector * lanes)
            mask = (*w.below(linear, total), *self._inside_results(outer, first, transposed, whole))
            with w.when(mask), w.loop("v", lanes, unroll=1) as lane:
                sums = [
                    self._sum(tile, transposed, *self._sum_of(transposed, outer, first, lane, member))
                    for member in range(self.members)
                ]
                self._store(sums, transposed, outer, w.simple(first + lane))

    def _shared_results(
        self, tile: Value, transposed: bool, whole: frozenset[str], minor: int, lanes: int, total: int
    ) -> None:
        """This block's part of the vectors, each the sum of what the blocks of the cluster have."""
        w, plan = self.w, self.plan
        with own_vectors(w, plan.parts, total, plan.threads) as (number, inside):
            outer, vector = w.unravel(number, (total * lanes // minor, minor // lanes))
            first = w.simple(vector * lanes)
            with w.when((*inside, *self._inside(outer, first, transposed, whole))):
                sums = [summed(w, tile, at, lanes) for at in self._sets(transposed, outer, first)]
                if self.view.splits:
                    self._recompute_shared(sums, transposed, outer, first)
                with w.loop("v", lanes, unroll=1) as lane:
                    sum_of_sets = self._total([w.load(s, (lane,)) for s in sums])
                    self._store([sum_of_sets], transposed, outer, w.simple(first + lane))

    def _recompute_shared(self, sums: list[Value], transposed: bool, outer: Expr, first: Expr) -> None:
        """Compute sums that are not finite once more, as kernels on the lanes do."""
        w, lanes = self.w, sums[0].tensor.shape[0]
        with w.loop("s", lanes, unroll=1) as lane:  # sums stay in registers
            finite = w.b.value("scalar.isfinite", self._total([w.load(s, (lane,)) for s in sums]))
            with w.when((), w.b.value("scalar.not", finite)):
                chain = chain_of(w, self.op, self._index(transposed, outer, w.simple(first + lane)))
                w.store(chain, sums[0], (lane,))
                for others in sums[1:]:
                    w.store(w.b.const(0.0, "f32"), others, (lane,))

    def _inside(self, outer: Expr, inner: Expr, transposed: bool, whole: frozenset[str]) -> Mask:
        """Return the conditions under which a place in the tile of sums holds one."""
        m, n = (inner, outer) if transposed else (outer, inner)
        return self._within(m, self.origin_n + n, self.n, whole)

    def _inside_results(self, outer: Expr, inner: Expr, transposed: bool, whole: frozenset[str]) -> Mask:
        """Return the conditions under which a place in the tile of results holds one."""
        m, n = (inner, outer) if transposed else (outer, inner)
        return self._within(m, self.first_result + n, self.view.result_columns, whole)

    def _within(self, m: Expr, column: Expr, columns: int, whole: frozenset[str]) -> Mask:
        found: Mask = ()
        for name, at, size in (("m", self.origin_m + m, self.m), ("n", column, columns)):
            if name not in whole:
                found += self.w.bounds((self.w.simple(at),), (size,))
        return found

    def _sum_of(
        self, transposed: bool, outer: Expr, inner: Expr, lane: Expr, member: int
    ) -> tuple[Expr, Expr]:
        """Where the tile of sums holds a member of a result, `lane` places behind one of the tile of results.

        The neighbours of a vector lie within a group of columns.
        """
        w = self.w
        if transposed:
            return w.simple(column_of(outer, member, self.members)), w.simple(inner + lane)
        return outer, w.simple(column_of(inner, member, self.members) + lane)

    def _store(self, totals: Sequence[Value], transposed: bool, outer: Expr, inner: Expr) -> None:
        """Write the results of finished sums, by their place in the tile of results."""
        w, (m, n) = self.w, (inner, outer) if transposed else (outer, inner)
        index = self._placed(self.view.results, m, self.first_result + n)
        place = tuple(index[d] for d in dims(self.op, "par"))
        if self.starts_late and self._start() != 0.0:
            start = w.b.const(self._start(), self.sums)
            totals = [w.b.value("scalar.add", total, start) for total in totals]
        points = Points(w, dict(zip(self.totals, totals, strict=True)))
        ends = self.column_sums.results if self.column_sums is not None else frozenset()
        store_results(w, points, place, [v for v in w.outputs if v not in ends])
        for value, buffer in self.summed.items():
            w.store(points.value(value, place), buffer, (outer, inner))

    def _index(self, transposed: bool, outer: Expr, inner: Expr) -> dict[str, Expr]:
        """The index of a sum in every dimension, by its place in the tile of sums."""
        m, n = (inner, outer) if transposed else (outer, inner)
        return self._placed(self.view.sizes, m, self.origin_n + n)

    def _placed(self, sizes: Mapping[str, int], m: Expr, column: Expr) -> dict[str, Expr]:
        """The index in every dimension of a row of the block's tile and a column of all."""
        w, view = self.w, self.view
        index: dict[str, Expr] = dict(self.batch)
        for names, at in ((view.rows, self.origin_m + m), (view.columns, column)):
            where = w.unravel(w.simple(at), [sizes[d] for d in names])
            index.update(zip(names, where, strict=True))
        return index

    def _sum(self, tile: Value, transposed: bool, outer: Expr, inner: Expr) -> Value:
        """The element of the tile of sums, over all sets of warps."""
        w = self.w
        first, *others = self._sets(transposed, outer, inner)
        total = w.load(tile, first)
        for at in others:
            total = w.b.value("scalar.add", total, w.load(tile, at))
        return total

    def _total(self, sums: list[Value]) -> Value:
        """The sum of what all sets of warps have."""
        total = sums[0]
        for other in sums[1:]:
            total = self.w.b.value("scalar.add", total, other)
        return total

    def _sets(self, transposed: bool, outer: Expr, inner: Expr) -> list[tuple[Expr, ...]]:
        """Where the tile holds an element's sums, one for each set of warps."""
        w, plan = self.w, self.plan
        found = []
        for rows in range(0, plan.warps.k * plan.block.m, plan.block.m):
            at = (outer, inner + rows) if transposed else (outer + rows, inner)
            found.append(tuple(map(w.simple, at)))
        return found

    def _recompute(self, not_finite: Value, tile: Value, transposed: bool) -> None:
        """In a block with sums that are not finite, compute these as kernels on the lanes do.

        Its threads walk over the tile of sums; most elements of most such tiles are finite and stay.
        """
        w, plan = self.w, self.plan
        major, minor = (plan.block.n, plan.block.m) if transposed else (plan.block.m, plan.block.n)
        total = major * minor
        with w.when((), not_finite), w.loop("s", -(-total // plan.threads)) as step:
            linear = w.simple(step * plan.threads + Sym("tid"))
            outer, inner = w.unravel(linear, (major, minor))
            mask = (*w.below(linear, total), *self._inside(outer, inner, transposed, frozenset()))
            with w.when(mask):
                first, *others = self._sets(transposed, outer, inner)
                finite = w.b.value("scalar.isfinite", self._sum(tile, transposed, outer, inner))
                with w.when((), w.b.value("scalar.not", finite)):
                    chain = chain_of(w, self.op, self._index(transposed, outer, inner))
                    w.store(chain, tile, first)
                    for at in others:
                        w.store(w.b.const(0.0, "f32"), tile, at)


def _together(steps: int) -> int:
    """Steps of a long epilogue that are unrolled together: a divisor, so that they load before they store."""
    divisors = [n for n in range(2, EPILOGUE_UNROLL + 1) if steps % n == 0]
    return max(divisors, default=EPILOGUE_UNROLL)
