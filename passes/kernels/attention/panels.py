"""Tiles of a factor of attention as warpgroups multiply them: panels of rows of up to 128 bytes, swizzled.

The copy engine brings boxes of a factor that lies in memory in equal steps; other factors, computed ones for
instance, are written by the threads of the role that fills the channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Protocol

from tilewright.ir import BinOp, Expr, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP, WARPGROUP_WARPS
from tilewright.ir.simplify import linear
from tilewright.ir.thread.tensor_maps import ParameterMap, TensorMap, map_faults
from tilewright.ir.types import itemsize, storage_dtype
from tilewright.passes.analysis.terms import Read, Term, leaves
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: bytes of the rows of a panel, as many as they must be
PANEL_BYTES = (32, 64, 128)
#: bytes at whose multiples the order of swizzled pieces starts anew
ALIGNMENT = 1024
#: bytes that a miss brings to the L2 cache: two rows of panels
PROMOTION_BYTES = 256
#: threads of the role that fills channels
COPIERS = WARP * WARPGROUP_WARPS
#: 32-bit words that a thread of the copying role reads before it stores: it waits once for all of them
_WORDS_AHEAD = 48


class PanelFrame(Protocol):
    """What tiles ask of the view of a kernel: extents of dimensions, and the type of the factors."""

    @property
    def sizes(self) -> Mapping[str, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def ranges(self) -> Mapping[str, tuple[int, int]]: ...
    def size(self, names: tuple[str, ...]) -> int: ...


@dataclass(frozen=True)
class PanelShape:
    """The shape of a tile: `rows` rows of `columns` elements, in panels of `panel` columns."""

    rows: int
    columns: int
    panel: int

    @staticmethod
    def of(rows: int, columns: int, dtype: str) -> PanelShape:
        """Panels as wide as rows of 128 bytes are, or narrower where one holds all columns."""
        size = itemsize(dtype)
        nbytes = next((n for n in PANEL_BYTES if columns * size <= n), PANEL_BYTES[-1])
        return PanelShape(rows, columns, nbytes // size)

    @property
    def panels(self) -> int:
        return -(-self.columns // self.panel)

    @property
    def elements(self) -> int:
        """Elements of a tile with those that fill up the last panel."""
        return self.panels * self.rows * self.panel


def read_ahead(term: Term, lanes: int, steps: int) -> int:
    """Vectors of `lanes` elements of a term that a thread reads before it stores: a divisor of `steps`."""
    read = dict.fromkeys(x for x in leaves(term) if isinstance(x, Read))
    words = sum(-(-lanes * itemsize(x.value.tensor.dtype) // 4) for x in read)
    most = min(steps, max(1, _WORDS_AHEAD // max(words, 1)))
    return max(d for d in range(1, most + 1) if steps % d == 0)


def waits_of(term: Term, shape: PanelShape, dtype: str) -> int:
    """Times that a thread of the copying role waits for what it reads of a tile that it computes."""
    lanes = VECTOR_BYTES // itemsize(dtype)
    steps = -(-shape.elements // lanes // COPIERS)
    return steps // read_ahead(term, lanes, steps)


@dataclass(frozen=True)
class Boxes:
    """How a factor lies in memory for the copy engine, in elements.

    outer: per coordinate before rows and columns its indices (each with its extent), its extent and step. An
    index is a dimension of the batch, or the number of a group of them that share rows (`head // 4`). rows:
    extent and step. columns: their number, each next to the one before. start: of the first element.
    """

    outer: tuple[tuple[tuple[tuple[Expr, int], ...], int, int], ...]
    rows: tuple[int, int]
    columns: int
    start: int

    def recipe(self, shape: PanelShape, dtype: str) -> TensorMap:
        """The tensor map for boxes of one panel."""
        size = itemsize(dtype)
        return TensorMap(
            storage_dtype(dtype).name,
            (*(extent for _, extent, _ in self.outer), self.rows[0], self.columns),
            (*(step * size for _, _, step in self.outer), self.rows[1] * size),
            (*(1 for _ in self.outer), shape.rows, shape.panel),
            swizzle=shape.panel * size,
            promotion=PROMOTION_BYTES,
        )

    def coordinates(self, env: Mapping[str, Expr]) -> list[Expr]:
        """The coordinates before rows and columns at a point."""
        out = []
        for indices, _, _ in self.outer:
            at: Expr = 0
            for index, extent in indices:
                at = at * extent + substitute(index, env)
            out.append(at)
        return out


def boxes_of(view: PanelFrame, term: Term, row: str, inner: tuple[str, ...]) -> Boxes | None:
    """How the copy engine sees a factor; None where it is computed, or does not lie in equal steps."""
    if not isinstance(term, Read):
        return None
    t = term.value.tensor
    offset: Expr = t.start
    for e, stride in zip(term.at, t.strides, strict=True):
        offset += e * stride
    wide = {d: n for d, n in view.sizes.items() if n > 1}
    form = linear(substitute(offset, dict.fromkeys(set(view.sizes) - set(wide), 0)), view.ranges)
    steps = dict(form.terms)
    batch = {d: n for d, n in wide.items() if d not in (row, *inner)}
    extents = {index: _extent(index, batch) for index in steps if str(index) not in (row, *inner)}
    if any(n is None for n in extents.values()) or any(step < 0 for step in steps.values()):
        return None
    columns = [(wide[d], steps.get(Sym(d), 0)) for d in inner if d in wide]
    if not columns or columns[-1][1] != 1 or any(a[1] != b[0] * b[1] for a, b in pairwise(columns)):
        return None
    others = [((index, n), steps[index]) for index, n in extents.items() if n is not None]
    outer: list[tuple[tuple[tuple[Expr, int], ...], int, int]] = []
    for (index, extent), step in sorted(others, key=lambda o: -o[1]):
        if outer and outer[-1][2] == extent * step:
            indices, many, _ = outer[-1]
            outer[-1] = ((*indices, (index, extent)), many * extent, step)
        else:
            outer.append((((index, extent),), extent, step))
    count = prod(n for n, _ in columns)
    # a single row may lie anywhere
    rows_step = steps.get(Sym(row), 0) or count
    return Boxes(tuple(outer), (view.sizes[row], rows_step), count, form.constant)


def _extent(index: Expr, batch: Mapping[str, int]) -> int | None:
    """How many values an index has: a dimension of the batch, or such a one divided; None for others."""
    if isinstance(index, Sym):
        return batch.get(index.name)
    if not isinstance(index, BinOp) or index.op != "//":
        return None
    whole, each = index.lhs, index.rhs
    if not isinstance(whole, Sym) or whole.name not in batch or not isinstance(each, int):
        return None
    return -(-batch[whole.name] // each)


def engine_map(
    view: PanelFrame, term: Term, row: str, inner: tuple[str, ...], shape: PanelShape, position: int
) -> tuple[Boxes, ParameterMap] | None:
    """The boxes of a factor and the map of its parameter; None where the copy engine cannot bring it."""
    boxes = boxes_of(view, term, row, inner)
    if boxes is None:
        return None
    recipe = boxes.recipe(shape, view.dtype)
    parameter = ParameterMap(position, recipe, boxes.start * itemsize(view.dtype))
    return None if parameter.offset % 16 or any(map_faults(recipe)) else (boxes, parameter)


class PanelTiles:
    """A ring of tiles [slot, panel, row, column] of one factor, and how a slot is filled."""

    def __init__(
        self,
        w: Writer,
        view: PanelFrame,
        term: Term,
        row: str,
        inner: tuple[str, ...],
        rows: int,
        slots: int,
        name: str,
    ) -> None:
        self.w, self.view, self.term, self.row, self.inner, self.slots = w, view, term, row, inner, slots
        self.shape = PanelShape.of(rows, view.size(inner), view.dtype)
        shape = (slots, self.shape.panels, rows, self.shape.panel)
        self.tiles: Value = w.alloc(shape, view.dtype, "shared", name, swizzled=True, align=ALIGNMENT)
        self.boxes: Boxes | None = None
        if isinstance(term, Read):
            brought = engine_map(view, term, row, inner, self.shape, list(w.inputs).index(term.value))
            if brought is not None:
                self.boxes, self.map = brought[0], w.add_map(brought[1])

    @property
    def by_engine(self) -> bool:
        """Whether the copy engine brings the tiles."""
        return self.boxes is not None

    def fetch(self, slot: Expr, origin: Expr, batch: Mapping[str, Expr]) -> None:
        """Fill a slot with the rows from `origin` on; zeros outside of the factor."""
        if self.boxes is None:
            self._write(slot, origin, batch)
            return
        w, shape, term = self.w, self.shape, self.term
        assert isinstance(term, Read)
        outer = self.boxes.coordinates(batch)
        with w.loop("panel", shape.panels, unroll=1) as panel:
            w.b.do(
                "thread.copy_tile", w.inputs[term.value], self.tiles,
                map=self.map,
                at=tuple(map(w.simple, (*outer, origin, panel * shape.panel))),
                dst=tuple(map(w.simple, (slot, panel, 0, 0))),
                tile=(1,) * len(outer) + (shape.rows, shape.panel),
            )  # fmt: skip

    def _write(self, slot: Expr, origin: Expr, batch: Mapping[str, Expr]) -> None:
        """Compute the elements of a tile: all threads of the role, a vector each at a time."""
        w, shape, view = self.w, self.shape, self.view
        lanes = VECTOR_BYTES // itemsize(view.dtype)
        vectors = shape.panel // lanes
        total = shape.panels * shape.rows * vectors
        steps = -(-total // COPIERS)
        ahead = read_ahead(self.term, lanes, steps)
        with w.loop("f", steps, unroll=1 if ahead == steps else ahead) as step:
            linear = w.simple(step * COPIERS + Sym("tid"))
            panel, row, vector = w.unravel(linear, (shape.panels, shape.rows, vectors))
            with w.when(w.below(linear, total)), w.loop("v", lanes, unroll=1) as lane:
                inside = w.simple(vector * lanes + lane)
                env, mask = self._place(batch, origin + row, panel * shape.panel + inside)
                value = TermWriter(w, env, mask=mask).value(self.term)
                if mask and not isinstance(self.term, Read):
                    zero = w.b.const(0.0, view.dtype)
                    value = w.b.value("scalar.select", w.condition(mask), value, zero)
                w.store(value, self.tiles, (slot, panel, row, inside))

    def _place(self, batch: Mapping[str, Expr], row: Expr, column: Expr) -> tuple[dict[str, Expr], Mask]:
        """The symbols of the factor's term at an element, and where it exists."""
        w, view = self.w, self.view
        env: dict[str, Expr] = dict(batch)
        env[self.row] = w.simple(row)
        at = w.simple(column)
        env.update(zip(self.inner, w.unravel(at, [view.sizes[d] for d in self.inner]), strict=True))
        return env, (*w.below(env[self.row], view.sizes[self.row]), *w.below(at, self.shape.columns))
