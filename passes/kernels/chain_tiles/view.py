"""A chain as products of matrices in shared memory, and windows between them: what is legal, and why not.

What a block keeps is a matrix: pixels (all dimensions but the last, in their order) by channels (the last
one). A product multiplies rows of such a matrix by weights. A window over pixels moves the first row by a
fixed number for each of its taps, if rows are numbered as the factor's pixels are, its halo included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.ir import Func, Op, Sym, UnsupportedError, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M, MMA_N, VECTOR_BYTES
from tilewright.ir.simplify import Linear, linear
from tilewright.ir.tensor.ops import REDUCING, dims, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chain.regions import Box, Span, read_box
from tilewright.passes.kernels.chain.stages import Chain, Stage, chain_of, stages_of
from tilewright.passes.kernels.matrix.problem import packs_rows
from tilewright.passes.kernels.matrix.view import NARROW, MatrixView, matrix_view

#: channels that one instruction multiplies of 16-bit factors
MMA_K = 16
#: elements of a vector that an asynchronous copy moves
VECTOR = 8
#: products and other reductions of a chain at most: longer ones never pay, and take long to look at
MOST_STAGES = 3


@dataclass(frozen=True)
class Place:
    """A dimension of a factor's pixels: how many there are, and how far its neighbours are apart in rows."""

    extent: int
    pitch: int


@dataclass(frozen=True)
class Product:
    """One product of a chain, as a block computes it.

    by_channel: whether weights lie, or are stored as constants, in rows of the channel, one for each column.
    box, kept: what it reads of its first factor, and the box of that in shared memory; places: of each row
    dimension, where it moves in the factor; taps: rows by which one step of a reduced dimension moves.
    """

    stage: Stage
    view: MatrixView
    box: Box
    kept: Box
    places: Mapping[str, Place]
    taps: Mapping[str, int]
    by_channel: bool
    walks: bool
    last: bool

    @property
    def op(self) -> Op:
        """The contraction."""
        return self.view.op

    @property
    def factor(self) -> Value:
        """The first factor."""
        return self.op.operands[0]

    @property
    def column(self) -> str:
        """The dimension of its columns."""
        return self.view.columns[-1]

    @property
    def extents(self) -> Mapping[str, int]:
        """Return what a block computes of each dimension of the results at a time."""
        return {d: s.extent for d, s in zip(dims(self.op, "par"), self.stage.domain, strict=True)}

    @property
    def rows(self) -> int:
        """Rows from the first to the last one, those that belong to halos in between included."""
        return 1 + sum((self.extents[d] - 1) * p.pitch for d, p in self.places.items())

    @property
    def columns(self) -> int:
        return self.extents[self.column]

    @property
    def depth(self) -> int:
        """Channels that are multiplied at a time, in whole instructions."""
        return -(-self.channels // MMA_K) * MMA_K

    @property
    def channels(self) -> int:
        """Channels that there are at a time."""
        return self.box[-1].extent

    @property
    def tap_points(self) -> tuple[dict[str, int], ...]:
        """All taps in order."""
        points: list[dict[str, int]] = [{}]
        for d in self.view.taps:
            points = [{**p, d: i} for p in points for i in range(self.view.sizes[d])]
        return tuple(points)

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        """Taps, rows and columns of the weights of one step in shared memory, without what pads rows."""
        columns = -(-self.columns // MMA_N) * MMA_N
        count = len(self.tap_points)
        return (count, columns, self.depth) if self.by_channel else (count, self.depth, columns)

    @property
    def pixels(self) -> int:
        """Rows of the first factor in shared memory."""
        return prod(s.extent for s in self.kept[:-1])

    @property
    def row_tiles(self) -> int:
        return -(-self.rows // MMA_M)

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // MMA_N)


@dataclass(frozen=True)
class TilesChain:
    """A chain, its products by stage number, and what it walks over in steps."""

    chain: Chain
    products: Mapping[int, Product]
    steps: int

    def walks(self, number: int) -> bool:
        """Return whether a stage is computed in each step, the last one apart."""
        return _moves(self.chain.stages[number], self.chain.walked)


def _moves(stage: Stage, walked: Mapping[str, int]) -> bool:
    return any(d in walked for span in stage.domain for d, _ in span.terms)


@lru_cache(maxsize=256)
def walked_dim(kernel: Func) -> str:
    """The reduced dimension of the last stage that a chain can walk over; '' where that stage is no product.

    Its first factor is then what earlier stages leave, and has the dimension as its last index.
    """
    last = stages_of(kernel)[-1].anchor
    view = matrix_view(kernel, last) if last.name == "tensor.contract" else None
    if view is None or last.operands[0] in kernel.params:
        return ""
    return view.channel


@lru_cache(maxsize=256)
def unfit(kernel: Func) -> str:
    """The reason, as one clause, for which no tile makes a kernel such a chain; '' where there is none."""
    try:
        stages = stages_of(kernel)
    except UnsupportedError as e:
        return str(e)
    reducing = [s for s in stages if s.anchor.name in REDUCING]
    if not 2 <= len(reducing) <= MOST_STAGES:
        return f"it has {len(reducing)} products and other reductions, where 2 to {MOST_STAGES} are expected"
    if len(reducing) < len(stages):
        return "a map between its stages needs what other threads compute"
    if any(s.anchor.name not in ("tensor.contract", "tensor.window") for s in stages):
        return "it has reductions other than products and windows"
    outside = set(kernel.body.ops[-1].operands) - {v for v, _ in stages[-1].results}
    if outside:
        return "something behind it reads what a stage before the last one gives"
    products = [s.anchor for s in stages if s.anchor.name == "tensor.contract"]
    if not products:
        return "it has no product"
    for op in products:
        reason = _unfit_product(kernel, op)
        if reason:
            return reason
    return ""


def _unfit_product(kernel: Func, op: Op) -> str:
    view = matrix_view(kernel, op)
    if view is None or view.dtype not in NARROW or view.members is not None:
        return "a product has no factors of 16 bits for tensor cores"
    if view.batch and view.size(view.batch) > 1:
        return "a product has weights of its own for each of a batch"
    if len([d for d in view.columns if view.sizes[d] > 1]) != 1 or view.sizes[view.columns[-1]] == 1:
        return "a product has columns of several dimensions"
    packed = packs_rows(kernel, view) and view.sizes[view.channel] % VECTOR == 0
    if not view.sources[1].given or not (packed or lies_in_vectors(view)):
        return "weights of a product do not lie in vectors of 16 bytes"
    value, forms = op.operands[0], _forms(op)
    if not forms or forms[-1] != Linear(((Sym(view.channel), 1),)):
        return "channels of a product's first factor are not its innermost dimension"
    if any(view.channel in symbols(form.expr()) for form in forms[:-1]):
        return "channels of a product's first factor are in two of its indices"
    if value in kernel.params:
        tensor = value.tensor
        if tensor.shape[-1] % VECTOR or not tensor.rows_of(VECTOR):
            return "the first factor of a product does not lie in vectors of 16 bytes"
    elif view.sources[0].value in kernel.params or not _is_stage_result(kernel, value):
        return "the first factor of a product is computed from parameters"
    return ""


def lies_in_vectors(view: MatrixView) -> bool:
    """Return whether asynchronous copies of 16 bytes bring the weights as they lie in memory."""
    return view.copy_elements(1) * itemsize(view.dtype) == VECTOR_BYTES


def _is_stage_result(kernel: Func, value: Value) -> bool:
    return any(value is v for s in stages_of(kernel) for v, _ in s.results)


def _forms(op: Op) -> tuple[Linear, ...]:
    """The index at which a product reads its first factor, as sums."""
    ranges = ranges_of(op)
    return tuple(linear(e, ranges) for e in reads(op)[0])


def tiles_chain(kernel: Func, block: Mapping[str, int], part: int) -> TilesChain:
    """A kernel whose blocks have these tiles and take `part` channels between stages at a time (0: all).

    Raises UnsupportedError, with the reason, where that is not legal.
    """
    reason = unfit(kernel)
    if reason:
        raise UnsupportedError(reason)
    walked = walked_dim(kernel)
    if part and not walked:
        raise UnsupportedError("its last stage is no product of what it keeps, so that nothing can be walked")
    extent = dims(stages_of(kernel)[-1].anchor, "red").get(walked, 0)
    if part and extent % part:
        raise UnsupportedError(f"steps of {part} channels do not divide {extent} of them")
    chain = chain_of(kernel, block, {walked: part} if part else {})
    products = {
        i: _product(chain, stage)
        for i, stage in enumerate(chain.stages)
        if stage.anchor.name == "tensor.contract"
    }
    found = TilesChain(chain, products, prod(chain.steps.values()))
    if found.steps > 1 and not any(_moves(s, chain.walked) for s in chain.stages[:-1]):
        raise UnsupportedError("all it keeps is needed in each step, so that steps save nothing")
    for value, kept in chain.kept.items():
        if len(kept.box) < 2:
            raise UnsupportedError(f"what a stage keeps, {value.type}, is no matrix")
    return found


def _product(chain: Chain, stage: Stage) -> Product:
    op = stage.anchor
    view = matrix_view(chain.kernel, op)
    assert view is not None
    last = stage is chain.stages[-1]
    reduced = {d: Span(((d, 1),), 0, n) for d, n in chain.walked.items()} if last else {}
    box = read_box(op, reads(op)[0], stage.domain, reduced)
    value = op.operands[0]
    kept = chain.kept[value].box if value in chain.kept else box
    if any(d in chain.walked for span in box for d, _ in span.terms) and value not in chain.kept:
        raise UnsupportedError("a parameter of a product would be read anew in each step")
    if box[-1] != kept[-1]:
        raise UnsupportedError("a product reads some of the channels that another stage reads")
    if value in chain.kept and box[-1].extent % MMA_K:
        raise UnsupportedError(
            f"a step has {box[-1].extent} channels, where multiples of {MMA_K} are expected"
        )
    sizes = {d: s.extent for d, s in zip(dims(op, "par"), stage.domain, strict=True)}
    places: dict[str, Place] = {}
    taps: dict[str, int] = {}
    pitch = 1
    for form, span in zip(_forms(op)[-2::-1], kept[-2::-1], strict=True):
        if any(not isinstance(atom, Sym) for atom, _ in form.terms):
            raise UnsupportedError("rows of a product are no rows of its first factor")
        steps = {a.name: c for a, c in form.terms if isinstance(a, Sym) and _several(a.name, sizes, view)}
        for d, step in steps.items():
            if step < 0 or (step != 1 and d in sizes):
                raise UnsupportedError("rows of a product step over rows of its first factor")
            if d not in sizes:
                taps[d] = taps.get(d, 0) + step * pitch
            elif d in places or any(other in sizes for other in steps if other != d):
                raise UnsupportedError("rows of a product are no rows of its first factor")
            else:
                places[d] = Place(span.extent, pitch)
        pitch *= span.extent
    if any(sizes[d] > 1 and d not in places for d in view.rows):
        raise UnsupportedError("rows of a product are no rows of its first factor")
    if sizes[view.columns[-1]] % MMA_N:
        raise UnsupportedError(f"a product has no whole tiles of {MMA_N} columns")
    by_channel = view.in_rows(1) or packs_rows(chain.kernel, view)
    return Product(stage, view, box, kept, places, taps, by_channel, _moves(stage, chain.walked), last)


def _several(d: str, sizes: Mapping[str, int], view: MatrixView) -> bool:
    """Return whether a dimension has more than one index in a block."""
    return sizes.get(d, view.sizes[d]) > 1
