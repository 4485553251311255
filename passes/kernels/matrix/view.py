"""A contraction seen as a matrix product that tensor cores can compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod

from tilewright.ir import Func, Op, Sym, TensorType, Value
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, MMA_K_BYTES, WARP
from tilewright.ir.simplify import Ranges, coefficients, multiple_of, simplify, within
from tilewright.ir.tensor.ops import SPLIT, TF32, dims, domain, fills, ranges_of, reads
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.ir.types import BYTES, FLOAT8, itemsize
from tilewright.passes.analysis.shared_work import LANES, LONG_LANES, lanes_of
from tilewright.passes.kernels.column_members import Members, members_of, results_of
from tilewright.passes.kernels.kernel_problem import contract_roles

#: dtypes of factors that tensor cores take as they are; float32 needs the permission to round
NARROW = ("f16", "bf16")
#: products of the shortest sum for which warpgroups split factors: they promote sums every 32 of them, and
#: cut off more than chains of float32 additions round off in shorter ones (docs/adr/0046)
LEAST_GROUP_SUM = 192
#: the same of factors that are stored in pieces, whose products, small and large ones, are added to one sum:
#: it is cut off once more in each chunk
LEAST_STORED_SUM = 512
#: those of factors whose products are summed as integers, modulo 2^32 as everywhere; both may differ
EXACT = BYTES


@dataclass(frozen=True)
class Source:
    """The source of the elements of a factor: a tensor, and its index at each point of the contraction.

    Maps that only move elements are looked through. given: it is a parameter of the kernel, not computed.
    """

    value: Value
    at: tuple[Expr, ...]
    given: bool

    def offset(self) -> Expr:
        """The element offset in memory."""
        return _offset(self.value.tensor, self.at)


def _offset(tensor: TensorType, at: tuple[Expr, ...]) -> Expr:
    total: Expr = tensor.start
    for e, stride in zip(at, tensor.strides, strict=True):
        total += e * stride
    return total


@dataclass(frozen=True)
class MatrixView:
    """A contraction as batched product of [m, k] and [n, k]: which dimensions make up each of the four.

    `channel` is the reduced dimension that is cut into chunks, `taps` are the others, all taken one by one.
    exchanged: the first factor of the product is the contraction's second operand, and rows are its columns.
    further: where float32 factors are stored in pieces of bfloat16, the sources of those after the first
    pieces, which are the `sources` then. members: where each result is computed from several sums of its row.
    """

    op: Op
    sources: tuple[Source, Source]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    taps: tuple[str, ...]
    channel: str
    further: tuple[tuple[Source, Source], ...] = ()
    exchanged: bool = False
    members: Members | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        return domain(self.op)

    @property
    def results(self) -> Mapping[str, int]:
        """The domain of the results, which has fewer columns where several sums make a result."""
        return results_of(self.op, self.members)

    @property
    def sums_of_result(self) -> int:
        """Sums from which a result is computed."""
        return 1 if self.members is None else self.members.count

    @property
    def result_columns(self) -> int:
        """Columns of results."""
        return prod(self.results[d] for d in self.columns)

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        sizes = self.sizes
        return prod(sizes[d] for d in names)

    @property
    def dtype(self) -> str:
        """Dtype of the factors, or of their pieces where these are stored; of bytes that of the first one."""
        return self.sources[0].value.tensor.dtype

    @property
    def splits(self) -> bool:
        """Whether the kernel splits float32 factors into pieces of bfloat16."""
        return may_split(self.op) and not self.stored

    @property
    def stored(self) -> bool:
        """Whether float32 factors are stored in pieces of bfloat16."""
        return bool(self.further)

    @property
    def promotes(self) -> bool:
        """Whether warpgroups add sums of chunks in float32: tensor cores round those of 8-bit floats."""
        return self.dtype in FLOAT8

    @property
    def rounds(self) -> bool:
        """Whether float32 factors are rounded to TF32."""
        return self.dtype == "f32" and not self.splits

    def in_rows(self, operand: int) -> bool:
        """Return whether a factor lies in rows of the channel, or as single elements."""
        return self.along(operand) in ("", self.channel)

    def exchange(self) -> MatrixView:
        """The same contraction as the product of its second operand and its first one: results in columns."""
        return replace(
            self,
            sources=self.sources[::-1],
            rows=self.columns,
            columns=self.rows,
            exchanged=not self.exchanged,
        )

    def pieces(self) -> Iterator[MatrixView]:
        """The product of pieces of one size each, the largest first; the whole where there are none."""
        yield replace(self, further=())
        for sources in self.further:
            yield replace(self, sources=sources, further=())

    @property
    def depth(self) -> int:
        """Elements along the channel that one instruction multiplies."""
        return MMA_K_BYTES // itemsize("bf16" if self.splits else self.dtype)

    def outer(self, operand: int) -> tuple[str, ...]:
        """The dimensions that make up the rows of an operand's matrix."""
        return self.columns if operand else self.rows

    def along(self, operand: int) -> str:
        """The dimension whose neighbours are neighbours in memory: the channel, the last row, or ''."""
        outer = [d for d in self.outer(operand) if self.sizes[d] > 1]
        candidates = [self.channel, *outer[-1:]]
        return next((d for d in candidates if neighbours(self.op, self.sources[operand], d)), "")

    def lanes(self, operand: int, widest: int) -> int:
        """The longest run of elements, up to `widest`, that lies aligned in memory at every start."""
        along = self.along(operand)
        return run_of(self.op, self.sources[operand], along, widest) if along else 1

    def copy_elements(self, operand: int) -> int:
        """Elements one asynchronous copy can move; 0 where the factor is computed, or none is wide enough."""
        size = itemsize(self.dtype)
        if not self.sources[operand].given:
            return 0
        lanes = self.lanes(operand, ASYNC_COPY_BYTES[0] // size)
        return lanes if lanes * size in ASYNC_COPY_BYTES else 0


def result_lanes(kernel: Func, view: MatrixView, minor: int, major: int) -> int:
    """Neighbouring results that a thread has at a time, of a piece of so many times `minor` neighbours.

    Longer vectors meet in the banks of shared memory, which the words of one random call outweigh.
    """
    par = dims(view.op, "par")
    last = next((d for d in reversed(par) if par[d] > 1), "")
    if last not in view.rows and last not in view.columns:
        return 1
    after = kernel.body.ops[kernel.body.ops.index(view.op) + 1 : -1]
    whole = minor * major % (LONG_LANES * WARP) == 0
    longest = LONG_LANES if whole and lanes_of(after) == LONG_LANES else LANES
    return gcd(longest, view.results[last], minor)


@lru_cache(maxsize=1024)
def matrix_view(kernel: Func, op: Op) -> MatrixView | None:
    """The contraction as a matrix product for tensor cores; None where it is none, or precision forbids.

    Memoised: all who look for ways to compute a kernel ask for it.
    """
    roles, par = contract_roles(op), dims(op, "par")
    first, second = (v.tensor.dtype for v in op.operands[:2])
    alike = first == second or {first, second} <= {*EXACT}
    if len(op.operands) != 2 or not alike or op.result.tensor.dtype != sums_of(first):
        return None
    if not on_tensor_cores(op) and not may_split(op):
        return None
    if not multiplies(op) or any(fill not in (None, 0.0) for fill in fills(op)):
        return None
    if any(_terms(op, e) is None for at in reads(op) for e in at) or not roles.columns or not roles.rows:
        return None
    sources, *further = _pieces(kernel, op) or [(_source(kernel, op, 0), _source(kernel, op, 1))]
    channels = [d for d in dims(op, "red") if d in roles.channels]
    # a window's dimension serves as well where it runs through memory
    channels = channels or [d for d in dims(op, "red") if neighbours(op, sources[0], d)]
    if not channels:
        return None
    sizes = domain(op)
    contiguous = [d for source in sources for d in channels if neighbours(op, source, d)]
    channel = (contiguous or sorted(channels, key=lambda d: -sizes[d]))[0]
    return MatrixView(
        op,
        sources,
        rows=roles.rows,
        columns=tuple(d for d in par if d in roles.columns),
        batch=roles.batch,
        taps=tuple(d for d in dims(op, "red") if d != channel),
        channel=channel,
        further=tuple(further),
        members=members_of(kernel, op),
    )


def on_tensor_cores(op: Op) -> bool:
    """Return whether tensor cores take the first factor of a contraction as it is, or may round it."""
    dtype = op.operands[0].tensor.dtype
    if dtype in EXACT:
        return op.operands[-1].tensor.dtype in EXACT and op.result.tensor.dtype == sums_of(dtype)
    return dtype in NARROW or dtype in FLOAT8 or (dtype == "f32" and op["factors"] == TF32)


def may_split(op: Op) -> bool:
    """Return whether tensor cores may multiply a contraction's float32 factors in pieces."""
    return op.operands[0].tensor.dtype == "f32" and op["factors"] == SPLIT


def sums_of(dtype: str) -> str:
    """The dtype in which tensor cores sum products of factors of a dtype."""
    return "i32" if dtype in EXACT else "f32"


def _pieces(kernel: Func, op: Op) -> list[tuple[Source, Source]] | None:
    """The sources of the pieces of both factors, the largest first; None where a factor is not stored so."""
    if not may_split(op):
        return None
    first, second = (_pieces_of(kernel, op, operand) for operand in (0, 1))
    return list(zip(first, second, strict=True)) if first and second else None


def _pieces_of(kernel: Func, op: Op, operand: int) -> tuple[Source, ...]:
    """The sources of the pieces that a map joins to a factor; none where it is another factor."""
    joins = next((o for o in kernel.body.ops if op.operands[operand] in o.results), None)
    if joins is None or joins.name != "tensor.map" or joins.body is None or len(joins.operands) != PIECES:
        return ()
    names = [o.name for o in joins.body.ops]
    if names != ["scalar.join_pieces", "scalar.yield"] or joins.body.ops[0].operands != joins.body.params:
        return ()
    # Beyond an edge pieces are 0 where the factor is, which must be where they are stored.
    whole = tuple(Sym(d) for d in dims(joins, "par"))
    if fills(op)[operand] is not None and any(at != whole for at in reads(joins)):
        return ()
    if any(fill is not None for fill in fills(joins)) or not {*joins.operands} <= {*kernel.params}:
        return ()
    env, ranges = dict(zip(dims(joins, "par"), reads(op)[operand], strict=True)), ranges_of(op)
    return tuple(
        Source(v, tuple(simplify(substitute(e, env), ranges) for e in at), given=True)
        for v, at in zip(joins.operands, reads(joins), strict=True)
    )


def _source(kernel: Func, op: Op, operand: int) -> Source:
    """The tensor whose elements a factor holds, through maps that only move them."""
    producers = {r: o for o in kernel.body.ops for r in o.results}
    value, at = op.operands[operand], reads(op)[operand]
    inside = fills(op)[operand] is None
    while inside and value in producers and (moved := _moves(producers[value])) is not None:
        env = dict(zip(dims(producers[value], "par"), at, strict=True))
        value, at = moved[0], tuple(substitute(e, env) for e in moved[1])
    ranges = ranges_of(op)
    return Source(value, tuple(simplify(e, ranges) for e in at), value in kernel.params)


def _moves(op: Op) -> tuple[Value, tuple[Expr, ...]] | None:
    """The one operand of a map that yields its elements as they are, and where it reads them."""
    if op.name != "tensor.map" or len(op.operands) != 1 or op.body is None or len(op.body.ops) != 1:
        return None
    if fills(op)[0] is not None or op.body.ops[0].operands != op.body.params:
        return None
    return op.operands[0], reads(op)[0]


def neighbours(op: Op, source: Source, d: str) -> bool:
    """Return whether neighbours along a dimension are neighbours in memory, at least in pairs."""
    return run_of(op, source, d, 2) == 2 or _are_neighbours(_extents(op), source.value.tensor, source.at, d)


@lru_cache(maxsize=4096)
def _are_neighbours(extents: _Extents, tensor: TensorType, at: tuple[Expr, ...], d: str) -> bool:
    """Return whether the next element along a dimension is the next one in memory."""
    known, varying = dict(extents), {name: (0, n - 1) for name, n in extents if n > 1}
    form = coefficients(_offset(tensor, at), list(known), varying)
    return known[d] > 1 and form is not None and form[0].get(d) == 1


def run_of(op: Op, source: Source, d: str, widest: int) -> int:
    """The longest run along `d` (a power of two) that is contiguous, aligned, and inside as one."""
    return _run_of(_extents(op), source.value.tensor, source.at, d, widest)


#: names and extents of the dimensions of a contraction
_Extents = tuple[tuple[str, int], ...]


def _extents(op: Op) -> _Extents:
    return tuple(domain(op).items())


@lru_cache(maxsize=16384)
def _run_of(extents: _Extents, tensor: TensorType, at: tuple[Expr, ...], d: str, widest: int) -> int:
    """Those of a factor at such places: products of a network ask for the same ones again and again."""
    extent = dict(extents)[d]
    while widest > 1:
        if extent % widest == 0:
            run = Sym("run.q") * widest + Sym("run.l")
            known = {name: (0, n - 1) for name, n in extents}
            known |= {"run.q": (0, extent // widest - 1), "run.l": (0, widest - 1)}
            whole = coefficients(substitute(_offset(tensor, at), {d: run}), ["run.l"], known)
            aligned = whole is not None and not multiple_of(whole[1], known) % widest
            together = all(
                _as_one(substitute(e, {d: run}), size, widest, known)
                for e, size in zip(at, tensor.shape, strict=True)
            )
            if whole is not None and whole[0].get("run.l") == 1 and aligned and together:
                return widest
        widest //= 2
    return 1


def _as_one(e: Expr, extent: int, lanes: int, ranges: Ranges) -> bool:
    """Return whether the elements of a run are all inside of a dimension or all outside of it."""
    form = coefficients(e, ["run.l"], ranges)
    if within(simplify(e, ranges), extent, ranges) or (form is not None and not form[0]):
        return True
    return form is not None and not multiple_of(form[1], ranges) % lanes and not extent % lanes


def multiplies(op: Op) -> bool:
    """Return whether the body adds the product of its two factors, perhaps widened, to the sum."""
    assert op.body is not None
    names = [o.name for o in op.body.ops if o.name != "scalar.cast"]
    casts = [o for o in op.body.ops if o.name == "scalar.cast"]
    wide = sums_of(op.operands[0].tensor.dtype)
    if names != ["scalar.fma", "scalar.yield"] or any(o["dtype"] != wide for o in casts):
        return False
    source = {o.result: o.operands[0] for o in casts}
    fma = next(o for o in op.body.ops if o.name == "scalar.fma")
    a, b, total = (source.get(v, v) for v in fma.operands)
    x, w, s = op.body.params
    return {a, b} == {x, w} and a is not b and total is s and op.body.ops[-1].operands == (fma.result,)


def _terms(op: Op, e: Expr) -> tuple[dict[str, int], Expr] | None:
    varying = {d: r for d, r in ranges_of(op).items() if r[1] > 0}
    return coefficients(e, list(domain(op)), varying)


def takes_warpgroups(view: MatrixView) -> bool:
    """Return whether warpgroups multiply such tiles: of 16 bits, or of 8 or 32 in rows of the channel.

    Sums of split factors must be long enough for sums that are cut off over a chunk.
    """
    least = LEAST_STORED_SUM if view.stored else LEAST_GROUP_SUM
    if may_split(view.op) and view.size(view.taps) * view.sizes[view.channel] < least:
        return False
    size = itemsize(view.dtype)
    return size == 2 or (view.in_rows(0) and view.in_rows(1))


def takes_roles(view: MatrixView) -> bool:
    """Return whether warpgroups that nothing but multiply take such tiles: TF32 ones that the engine rounds.

    The first factor may then lie in columns of the channel, from which they load registers; the second may
    besides, where a role turns it.
    """
    return takes_warpgroups(view) or (view.rounds and (view.in_rows(1) or not view.in_rows(0)))


def sums_apart(view: MatrixView) -> int:
    """Return how many sums the products of pieces have: small and large ones apart where sums are short."""
    return 1 if view.size(view.taps) * view.sizes[view.channel] >= LEAST_STORED_SUM else len(PRODUCTS)


def turns_second(view: MatrixView) -> bool:
    """Return whether roles turn the second factor to rows of the channel: TF32 ones, both in columns."""
    return view.rounds and not view.in_rows(0) and not view.in_rows(1)


def plain(at: tuple[Expr, ...]) -> bool:
    """Return whether an index is distinct dimensions and nothing else."""
    return all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
