"""The product of one stage on tensor cores: weights and rows to shared memory, fragments, results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.ir.tensor.ops import dims, fills
from tilewright.passes.kernels.chain.regions import Span
from tilewright.passes.kernels.chain_tiles.block import TilesBlock, matrix_shape, weight_buffer
from tilewright.passes.kernels.chain_tiles.parameters import warp_tiles
from tilewright.passes.kernels.chain_tiles.view import MMA_K, VECTOR, Product
from tilewright.passes.kernels.writing.writer import Mask

#: rows of a tile of sums that one of a lane's two registers stands for
_HALF = MMA_M // 2
#: instructions along the channel that are written out one after the other, at most
_MOST_STEPS = 8
#: copies of a thread that are written out one after the other, at most
_MOST_COPIES = 8


class StageProduct:
    """Writes the product of a stage, then its maps."""

    def __init__(self, block: TilesBlock, product: Product) -> None:
        self.block, self.product, self.w = block, product, block.w
        self.op, self.view = product.op, product.view
        w, dtype = self.w, product.view.dtype
        self.tiles = warp_tiles(product.row_tiles, product.column_tiles, block.warps)
        warp, self.lane = Sym("tid") // WARP, w.simple(Sym("tid") % WARP)
        self.first_row = w.simple(warp // self.tiles.warps_n * (self.tiles.tiles_m * MMA_M))
        self.first_column = w.simple(warp % self.tiles.warps_n * (self.tiles.tiles_n * MMA_N))
        self.weights = w.alloc(weight_buffer(product, block.warps), dtype, "shared", "weights")
        self.given = product.factor in w.inputs and product.factor not in block.buffers
        self.rows = (
            w.alloc(matrix_shape(block.tiles, product.factor, block.warps), dtype, "shared", "rows")
            if self.given
            else block.buffers[product.factor]
        )
        shape = (self.tiles.tiles_m, self.tiles.tiles_n, MMA_M, MMA_N)
        self.sums = w.alloc(shape, "f32", "frag", "sums")

    # -- copies ----------------------------------------------------------------------------------------------
    def copy_rows(self) -> None:
        """Start copying a first factor that is a parameter: zeros outside of it, and behind its channels."""
        w, p, source = self.w, self.product, self.w.inputs[self.product.factor]
        base, extents = self.block.base(p.box), [s.extent for s in p.box]
        fill = fills(self.op)[0]
        assert fill in (None, 0.0)
        vectors = p.depth // VECTOR
        with w.b.at(self.op.loc), self._copies(prod(extents[:-1]) * vectors) as (number, inside):
            *pixel, vector = w.unravel(number, (*extents[:-1], vectors))
            at = tuple(w.simple(b + o) for b, o in zip(base, (*pixel, vector * VECTOR), strict=True))
            row: Expr = 0
            for o, extent in zip(pixel, extents[:-1], strict=True):
                row = row * extent + o
            with w.when(inside):
                w.b.do(
                    "thread.copy_async", source, self.rows, src=at,
                    dst=(w.simple(row), w.simple(vector * VECTOR)), lanes=VECTOR,
                    mask=w.bounds(at, source.tensor.shape),
                )  # fmt: skip

    def copy_weights(self, origins: Mapping[str, Expr]) -> None:
        """Start copying the weights of one step. origins: the first index of each walked dimension there."""
        w, p = self.w, self.product
        value = self.view.sources[1].value
        taps, rows, columns = p.weight_shape
        vectors = columns // VECTOR
        there = {**self.block.origins, **origins}
        start = {d: s.base(there) for d, s in self._domain().items()}
        channel = p.box[-1].base(there)
        with w.b.at(self.op.loc), self._copies(taps * rows * vectors) as (number, inside):
            tap, major, vector = w.unravel(number, (taps, rows, vectors))
            minor = vector * VECTOR
            column, k = (major, minor) if p.by_channel else (minor, major)
            env: dict[str, Expr] = {
                **start,
                p.column: start[p.column] + column,
                self.view.channel: channel + k,
            }
            sizes = [self.view.sizes[d] for d in self.view.taps]
            env.update(zip(self.view.taps, w.unravel(tap, sizes), strict=True))
            limits = (
                *w.below(column, p.columns), *w.below(k, p.channels),
                *w.below(env[p.column], self.view.sizes[p.column]),
            )  # fmt: skip
            with w.when(inside):
                w.b.do(
                    "thread.copy_async", w.inputs[value], self.weights,
                    src=tuple(w.simple(substitute(e, env)) for e in self.view.sources[1].at),
                    dst=(tap, major, w.simple(minor)), lanes=VECTOR, mask=limits,
                )  # fmt: skip

    @contextmanager
    def _copies(self, vectors: int) -> Iterator[tuple[Expr, Mask]]:
        """The number of each vector that this thread copies, and when there is one."""
        w = self.w
        steps = -(-vectors // w.threads)
        with w.loop("copy", steps, unroll=1 if steps <= _MOST_COPIES else 0) as step:
            number = w.simple(step * w.threads + Sym("tid"))
            yield number, w.below(number, vectors)

    def _domain(self) -> dict[str, Span]:
        return dict(zip(dims(self.op, "par"), self.product.stage.domain, strict=True))

    # -- sums ------------------------------------------------------------------------------------------------
    def clear(self) -> None:
        """Let all sums be what they begin with."""
        self.w.b.do("thread.fill_fragment", self.sums, value=float(self.op["init"][0]))  # type: ignore[index, arg-type]

    def multiply(self) -> None:
        """Add the products of one step: rows and weights lie in shared memory."""
        w, p, tiles = self.w, self.product, self.tiles
        dtype = self.view.dtype
        with w.b.at(self.op.loc):
            a = w.alloc((tiles.tiles_m, MMA_M, MMA_K), dtype, "frag", "a")
            b = w.alloc((tiles.tiles_n, MMA_K, MMA_N), dtype, "frag", "b")
            steps = p.depth // MMA_K
            shift = self._shift()
            sizes = {d: self.view.sizes[d] for d in self.view.taps}
            unroll = 1 if steps <= _MOST_STEPS else 0
            with w.loops("tap", list(sizes.values())) as taps, w.loop("k", steps, unroll=unroll) as k:
                moved: Expr = shift
                number: Expr = 0
                for (d, n), t in zip(sizes.items(), taps, strict=True):
                    moved, number = moved + t * p.taps.get(d, 0), number * n + t
                self._load_rows(a, moved, k)
                self._load_columns(b, number, k)
                with w.loops("i", (tiles.tiles_m, tiles.tiles_n), unroll=1) as (i, j):
                    w.b.do(
                        "thread.mma", a, b, self.sums,
                        shape=(MMA_M, MMA_N, MMA_K), a_item=(i,), b_item=(j,), c_item=(i, j),
                    )  # fmt: skip

    def _shift(self) -> Expr:
        """Rows between the first one that is kept and the first one that is read."""
        p, w = self.product, self.w
        row: Expr = 0
        for mine, kept in zip(p.box[:-1], p.kept[:-1], strict=True):
            apart = mine.base(self.block.origins) - kept.base(self.block.origins)
            row = row * kept.extent + w.simple(apart)
        return w.simple(row)

    def _load_rows(self, a: Value, moved: Expr, k: Expr) -> None:
        w = self.w
        with w.loop("i", self.tiles.tiles_m, unroll=1) as i:
            at = (self.first_row + moved + i * MMA_M, k * MMA_K)
            w.b.do("thread.load_fragment", a, self.rows, at=tuple(map(w.simple, at)), role="a", item=(i,))

    def _load_columns(self, b: Value, tap: Expr, k: Expr) -> None:
        w, count = self.w, 2 if self.tiles.tiles_n % 2 == 0 else 1
        with w.loop("j", self.tiles.tiles_n // count, unroll=1) as j:
            column = self.first_column + j * (count * MMA_N)
            at = (column, k * MMA_K) if self.product.by_channel else (k * MMA_K, column)
            w.b.do(
                "thread.load_fragment", b, self.weights,
                at=tuple(map(w.simple, (tap, *at))), role="b", transposed=self.product.by_channel,
                item=(w.simple(j * count),), count=count,
            )  # fmt: skip

    # -- results ---------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Compute the maps of all sums from where they are, and store what is kept or returned."""
        w, tiles = self.w, self.tiles
        # neighbours in a buffer of their own: maps and stores of both become vectors
        both = w.alloc((2,), "f32", "reg", "both")
        with w.b.at(self.op.loc), w.loops("i", (tiles.tiles_m, 2), unroll=1) as (i, half):
            row = w.simple(self.first_row + i * MMA_M + half * _HALF + self.lane // (MMA_N // 2))
            places, valid = self._pixel(row)
            with w.when(valid), w.loop("j", tiles.tiles_n, unroll=1) as j:
                first = w.simple(self.first_column + j * MMA_N + self.lane % (MMA_N // 2) * 2)
                with w.loop("v", 2, unroll=1) as pair:
                    value = w.b.value("thread.get_fragment", self.sums, item=(i, j), at=(half, pair))
                    w.store(value, both, (pair,))
                with w.when(self._columns(first)), w.loop("v", 2, unroll=1) as pair:
                    offset = [
                        w.simple(first + pair) if d == self.product.column else places.get(d, 0)
                        for d in dims(self.op, "par")
                    ]
                    self.block.finish(self.product.stage, {self.op.result: w.load(both, (pair,))}, offset)

    def _pixel(self, row: Expr) -> tuple[dict[str, Expr], Mask]:
        """The place of a row in the stage's domain, and when it belongs to it."""
        w, p = self.w, self.product
        places: dict[str, Expr] = {}
        valid: list[tuple[Expr, Expr, Expr]] = []
        outermost = max(p.places.values(), key=lambda q: q.pitch, default=None)
        for d, q in p.places.items():
            at = row // q.pitch
            places[d] = w.simple(at if q is outermost else at % q.extent)
            valid += w.below(places[d], p.extents[d])
        if not p.places:
            valid += w.below(row, 1)
        return places, tuple(valid)

    def _columns(self, first: Expr) -> Mask:
        """The condition under which both columns of a lane are among those of the block."""
        return self.w.below(self.w.simple(first + 1), self.product.columns)
