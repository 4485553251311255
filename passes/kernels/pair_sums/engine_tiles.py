"""Tiles of factors, and runs of numbers, that the copy engine brings for sums over pairs by roles.

A tile of a factor is panels of columns whose rows are as long as a swizzle: products of pairs multiply panel
by panel along rows, sums multiply the same tile turned, all panels at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir import Expr, Func, Value
from tilewright.ir.hardware_facts import MMA_K_BYTES
from tilewright.ir.simplify import coefficients, interval
from tilewright.ir.thread.tensor_maps import ParameterMap, TensorMap, map_faults
from tilewright.ir.thread.transport_ops import TILE_ALIGNMENT
from tilewright.ir.thread.warpgroup_ops import ROW_BYTES
from tilewright.ir.types import itemsize, numpy_dtype
from tilewright.passes.analysis.terms import Read, Term, names_in
from tilewright.passes.kernels.attention.parameters import padded
from tilewright.passes.kernels.pair_sums.view import PairView
from tilewright.passes.kernels.writing.writer import Writer

#: dimensions of a map, and bytes of which a start in memory is a multiple
MOST_RANK, START_BYTES = 5, 16
#: bytes that a miss brings to the L2 cache
PROMOTION_BYTES = 256


@dataclass(frozen=True)
class EngineTile:
    """A box of a parameter: rows of one side of the pairs, and of a factor its columns in panels.

    outer: groups of dimensions that are one dimension of the map each, the outermost first; the last of them
    is that of the rows. panels: how many boxes a tile is; columns: of a panel, 0 for a run of numbers.
    """

    read: Read
    map: ParameterMap
    outer: tuple[tuple[str, ...], ...]
    rows: int
    panels: int
    columns: int

    @property
    def dtype(self) -> str:
        return self.read.value.tensor.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tile."""
        return self.rows * self.panels * max(1, self.columns) * itemsize(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile in shared memory: [panel, row, column], or [row] of numbers."""
        return (self.panels, self.rows, self.columns) if self.columns else (self.rows,)

    def alloc(self, w: Writer, slots: int, name: str) -> Value:
        """Slots for the tile."""
        row = self.columns * itemsize(self.dtype)
        align = 8 * row if row else TILE_ALIGNMENT
        return w.alloc((slots, *self.shape), self.dtype, "shared", name, swizzled=bool(row), align=align)

    def fetch(
        self, w: Writer, number: int, tiles: Value, slot: Expr, index: Mapping[str, Expr], row: Expr
    ) -> None:
        """Start bringing the tile whose first row is `row`; number: of the map in the kernel."""
        at: list[Expr] = []
        for group in self.outer[:-1]:
            place: Expr = 0
            for d in group:
                place = place * self._sizes[d] + index[d]
            at.append(w.simple(place))
        for panel in range(self.panels):
            inner = (panel * self.columns,) if self.columns else ()
            w.b.do(
                "thread.copy_tile", w.inputs[self.read.value], tiles,
                map=number, at=(*at, w.simple(row), *inner),
                dst=(slot, panel, 0, 0) if self.columns else (slot, 0), tile=self.map.recipe.tile,
            )  # fmt: skip

    @property
    def _sizes(self) -> Mapping[str, int]:
        dims = self.map.recipe.dims
        return {g[0]: n for g, n in zip(self.outer, dims, strict=False) if len(g) == 1} | dict(self.sizes)

    sizes: tuple[tuple[str, int], ...] = ()


def engine_tile(
    kernel: Func, view: PairView, term: Term, side: tuple[str, ...], inner: tuple[str, ...], rows: int
) -> EngineTile | None:
    """The tile of `rows` rows along the dimensions `side` of a factor, or of numbers where `inner` is empty.

    None where the copy engine cannot bring it: factors that are computed, that are not contiguous along their
    columns, or rows of several dimensions that tiles do not divide.
    """
    wide = [d for d in side if view.sizes[d] > 1]
    columns = [d for d in inner if view.sizes[d] > 1]
    if not isinstance(term, Read) or not wide or len(columns) != bool(inner):
        return None
    place = _place(view, term)
    if place is None:
        return None
    (steps, start), last = place, wide[-1]
    if not steps.get(last) or (len(wide) > 1 and view.sizes[last] % rows):
        return None
    before = [d for d in (*view.batch, *wide[:-1]) if steps.get(d)]
    if set(steps) - {*before, last, *columns} or any(n < 0 for n in steps.values()):
        return None
    if steps[columns[0] if columns else last] != 1:
        return None
    groups = _groups(view, steps, before, MOST_RANK - 1 - len(columns))
    if groups is None:
        return None
    return _mapped(kernel, view, term, (*groups, (last,)), columns, steps, start, rows)


def _place(view: PairView, term: Read) -> tuple[dict[str, int], int] | None:
    """Elements from one index to the next per dimension, and before the first; None for other places."""
    ranges = {d: (0, n - 1) for d, n in view.sizes.items() if n > 1}
    t = term.value.tensor
    inside = all(
        interval(e, ranges)[0] >= 0 and interval(e, ranges)[1] < n
        for e, n in zip(term.at, t.shape, strict=True)
    )
    place: Expr = 0
    for e, step in zip(term.at, t.strides, strict=True):
        place = place + e * step
    form = coefficients(place, list(view.sizes), ranges)
    if not inside or form is None or not isinstance(form[1], int):
        return None
    return dict(form[0]), form[1]


def _groups(
    view: PairView, steps: Mapping[str, int], dims: list[str], most: int
) -> tuple[tuple[str, ...], ...] | None:
    """Dimensions as at most so many: neighbours of equal steps are one where there are too many."""
    groups: list[tuple[str, ...]] = [(d,) for d in dims]
    while len(groups) > most:
        for i, (a, b) in enumerate(pairwise(groups)):
            size = 1
            for d in b:
                size *= view.sizes[d]
            if steps[a[-1]] == size * steps[b[-1]]:
                groups[i : i + 2] = [(*a, *b)]
                break
        else:
            return None
    return tuple(groups)


def _mapped(
    kernel: Func,
    view: PairView,
    term: Read,
    groups: tuple[tuple[str, ...], ...],
    columns: list[str],
    steps: Mapping[str, int],
    start: int,
    rows: int,
) -> EngineTile | None:
    t = term.value.tensor
    size, depth = itemsize(t.dtype), MMA_K_BYTES // itemsize(t.dtype)
    dims = [1] * len(groups)
    for i, g in enumerate(groups):
        for d in g:
            dims[i] *= view.sizes[d]
    strides = [steps[g[-1]] * size for g in groups]
    box, panels, width, swizzle = [*[1] * (len(groups) - 1), rows], 1, 0, 0
    if columns:
        whole = padded(view.sizes[columns[0]], depth)
        swizzle = next(b for b in sorted(ROW_BYTES, reverse=True) if whole * size % b == 0)
        width = swizzle // size
        panels = whole // width
        dims.append(view.sizes[columns[0]])
        strides.append(size)
        box.append(width)
    elif rows * size % TILE_ALIGNMENT:
        return None
    recipe = TensorMap(
        numpy_dtype(t.dtype).name, tuple(dims), tuple(strides[:-1]), tuple(box),
        swizzle=swizzle, promotion=PROMOTION_BYTES if columns else 0,
    )  # fmt: skip
    parameter = ParameterMap(kernel.params.index(term.value), recipe, (t.start + start) * size)
    if parameter.offset % START_BYTES or any(map_faults(recipe)):
        return None
    sizes = tuple((d, view.sizes[d]) for g in groups for d in g)
    return EngineTile(term, parameter, groups, rows, panels, width, sizes)


@dataclass(frozen=True)
class RoleTiles:
    """What a kernel by roles brings: own rows and others, a tile per product; further tiles of sums; numbers.

    of_sum: the tile of others of each sum; lines: numbers that depend on others, and not on own rows.
    """

    own: tuple[EngineTile, ...]
    others: tuple[EngineTile, ...]
    of_sum: tuple[int, ...]
    lines: tuple[EngineTile, ...]

    @property
    def fetched_bytes(self) -> int:
        """Of one tile of others."""
        return sum(x.nbytes for x in (*self.others, *self.lines))

    @property
    def own_bytes(self) -> int:
        """Of own rows."""
        return sum(x.nbytes for x in self.own)


def role_tiles(kernel: Func, view: PairView, rows: int, tile: int) -> RoleTiles | None:
    """The tiles of a kernel by roles; None where the copy engine cannot bring all factors."""
    own = [engine_tile(kernel, view, p.own, view.rows, (p.inner,), rows) for p in view.products]
    others = [engine_tile(kernel, view, p.other, view.other, (p.inner,), tile) for p in view.products]
    of_sum = []
    for pair in view.sums:
        shared = view.shared_with(pair)
        if shared is None:
            shared = len(others)
            others.append(engine_tile(kernel, view, pair.factor, view.other, pair.width, tile))
        of_sum.append(shared)
    if any(x is None for x in (*own, *others)):
        return None
    lines = []
    for read in view.reads:
        names = names_in(read)
        if names & set(view.other) and not names & set(view.rows):
            line = engine_tile(kernel, view, read, view.other, (), tile)
            lines += [line] if line is not None else []
    return RoleTiles(
        tuple(x for x in own if x is not None),
        tuple(x for x in others if x is not None),
        tuple(of_sum),
        tuple(lines),
    )
