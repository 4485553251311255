"""A contraction seen as a matrix product, and the implementation parameters of its tensor-core kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from tilewright.ir import Func, InputError, Op, Pairs, Sym
from tilewright.ir.expr import Expr, symbols
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor_ops import dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.lower.skeletons.contract_plan import MAX_THREADS, whole
from tilewright.passes.tensor.kernel_problem import contract_roles

ENGINES = ("mma",)
WARP = 32
#: rows and columns of the instruction's tile, and its depth in bytes of one row of factors
TILE_M, TILE_N, DEPTH_BYTES = 16, 8, 32
#: dtypes of factors that tensor cores take as they are; float32 needs the permission to round
NARROW = ("f16", "bf16")
#: bytes one asynchronous copy may move, widest first
COPY_BYTES = (16, 8, 4)
MAX_STAGES = 6


@dataclass(frozen=True)
class MatrixView:
    """A contraction as batched product of [m, k] and [n, k]: which dimensions make up each of the four.

    `channel` is the reduced dimension that is cut into chunks, `taps` are the others, all taken one by one.
    """

    op: Op
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    taps: tuple[str, ...]
    channel: str

    @property
    def sizes(self) -> Mapping[str, int]:
        return domain(self.op)

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        sizes = self.sizes
        return prod(sizes[d] for d in names)

    @property
    def dtype(self) -> str:
        """Of the factors."""
        return self.op.operands[0].tensor.dtype

    def outer(self, operand: int) -> tuple[str, ...]:
        """The dimensions that make up the rows of an operand's matrix."""
        return self.columns if operand else self.rows

    def along(self, operand: int) -> str:
        """The dimension whose neighbours are neighbours in memory: the channel, the last row, or ''."""
        minor = _minor(self.op, operand)
        if minor is None:
            return ""
        outer = [d for d in self.outer(operand) if self.sizes[d] > 1]
        form = _terms(self.op, reads(self.op)[operand][minor])
        candidates = [self.channel, *outer[-1:]]
        return next((d for d in candidates if form is not None and form[0].get(d) == 1), "")

    def copy_elements(self, operand: int) -> int:
        """Elements one asynchronous copy can move along the operand's memory; 0 where none is wide enough."""
        along, minor = self.along(operand), _minor(self.op, operand)
        if not along or minor is None:
            return 0
        form = _terms(self.op, reads(self.op)[operand][minor])
        tensor = self.op.operands[operand].tensor
        if form is None or not isinstance(form[1], int):
            return 0
        others = [c for d, c in form[0].items() if d != along]
        pitch = tensor.shape[-1] if minor == tensor.rank - 1 else prod(tensor.shape[minor:])
        known = gcd(pitch, self.sizes[along], form[1], *others)
        fitting = (b // itemsize(tensor.dtype) for b in COPY_BYTES)
        return next((n for n in fitting if n and known % n == 0), 0)


def matrix_view(op: Op) -> MatrixView | None:
    """The contraction as a matrix product for tensor cores; None where it is none, or precision forbids."""
    roles, par = contract_roles(op), dims(op, "par")
    first, second = (v.tensor.dtype for v in op.operands[:2])
    allowed = first in NARROW or (first == "f32" and op["factors"] == "tf32")
    if len(op.operands) != 2 or first != second or not allowed or op.result.tensor.dtype != "f32":
        return None
    if not multiplies(op) or any(fill not in (None, 0.0) for fill in fills(op)):
        return None
    if any(_terms(op, e) is None for at in reads(op) for e in at) or not roles.columns or not roles.rows:
        return None
    channels = [d for d in dims(op, "red") if d in roles.channels]
    if not channels:
        return None
    sizes = domain(op)
    contiguous = [d for d in channels if _is_minor(op, 0, d)] + [d for d in channels if _is_minor(op, 1, d)]
    channel = (contiguous or sorted(channels, key=lambda d: -sizes[d]))[0]
    return MatrixView(
        op,
        rows=roles.rows,
        columns=tuple(d for d in par if d in roles.columns),
        batch=roles.batch,
        taps=tuple(d for d in dims(op, "red") if d != channel),
        channel=channel,
    )


def multiplies(op: Op) -> bool:
    """Whether the body adds the product of its two factors, perhaps widened, to the sum."""
    assert op.body is not None
    names = [o.name for o in op.body.ops if o.name != "scalar.cast"]
    casts = [o for o in op.body.ops if o.name == "scalar.cast"]
    if names != ["scalar.fma", "scalar.yield"] or any(o["dtype"] != "f32" for o in casts):
        return False
    source = {o.result: o.operands[0] for o in casts}
    fma = next(o for o in op.body.ops if o.name == "scalar.fma")
    a, b, total = (source.get(v, v) for v in fma.operands)
    x, w, s = op.body.params
    return {a, b} == {x, w} and a is not b and total is s and op.body.ops[-1].operands == (fma.result,)


def _minor(op: Op, operand: int) -> int | None:
    """The innermost dimension of an operand with more than one index."""
    shape = op.operands[operand].tensor.shape
    return max((i for i, n in enumerate(shape) if n > 1), default=None)


def _terms(op: Op, e: Expr) -> tuple[dict[str, int], Expr] | None:
    varying = {d: r for d, r in ranges_of(op).items() if r[1] > 0}
    return coefficients(e, list(domain(op)), varying)


def _is_minor(op: Op, operand: int, d: str) -> bool:
    minor = _minor(op, operand)
    if minor is None or d not in symbols(reads(op)[operand][minor]):
        return False
    form = _terms(op, reads(op)[operand][minor])
    return form is not None and form[0].get(d) == 1


@dataclass(frozen=True)
class MatrixPlan:
    """Parameters of one tensor-core kernel.

    m, n, k: the block's tile, k along the channel; warps_m x warps_n warps share it; stages: buffers of the
    ring of copies in flight; raster: blocks along m that are taken before the next ones along n.
    """

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int
    channel: str
    raster: int = 1
    engine: str = "mma"

    @property
    def threads(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def warp_m(self) -> int:
        """Rows of one warp."""
        return self.m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of one warp."""
        return self.n // self.warps_n

    @classmethod
    def of(cls, kernel: Func, view: MatrixView) -> MatrixPlan:
        """The plan in `params` of a kernel; raises InputError with what does not fit."""
        where = f"@{kernel.name}"
        p = kernel.get("params")
        if not isinstance(p, Pairs):
            raise InputError("expected implementation parameters in 'params'", where=where)
        try:
            block, warps = _pairs(p, "block"), _pairs(p, "warps")
            plan = cls(
                *(whole(block[d], f"block.{d}", 1) for d in "mnk"),
                *(whole(warps[d], f"warps.{d}", 1) for d in "mn"),
                whole(p["stages"], "stages", 1),
                str(p["channel"]),
                whole(p["raster"], "raster", 1),
                str(p["engine"]),
            )
            plan.check(view)
        except KeyError as e:
            raise InputError(f"expected {e} in params", where=where) from e
        except InputError as e:
            raise InputError(str(e), where=where) from e
        return plan

    def params(self) -> Pairs:
        """The plan as the `params` of a kernel."""
        return Pairs.of(
            {
                "block": Pairs.of({"m": self.m, "n": self.n, "k": self.k}),
                "warps": Pairs.of({"m": self.warps_m, "n": self.warps_n}),
                "stages": self.stages,
                "channel": self.channel,
                "raster": self.raster,
                "engine": self.engine,
            }
        )

    def check(self, view: MatrixView) -> None:
        """Raise InputError where tiles, warps, stages or engine are impossible."""
        depth = DEPTH_BYTES // itemsize(view.dtype)
        if self.m % (TILE_M * self.warps_m) or self.n % (TILE_N * self.warps_n) or self.k % depth:
            raise InputError(
                f"expected tiles of warps in multiples of {TILE_M} x {TILE_N} x {depth}, "
                f"got {self.m} x {self.n} x {self.k} for {self.warps_m} x {self.warps_n} warps"
            )
        if self.threads > MAX_THREADS:
            raise InputError(f"expected at most {MAX_THREADS} threads per block, got {self.threads}")
        if self.stages > MAX_STAGES:
            raise InputError(f"expected at most {MAX_STAGES} stages, got {self.stages}")
        if self.channel != view.channel:
            raise InputError(f"expected channel {view.channel}, got {self.channel}")
        if self.engine not in ENGINES:
            raise InputError(f"expected an engine among {', '.join(ENGINES)}, got {self.engine!r}")


def _pairs(p: Pairs, name: str) -> dict[str, object]:
    found = p[name]
    if not isinstance(found, Pairs):
        raise InputError(f"expected {name} in params to be pairs, got {found!r}")
    return dict(found.items)


def plain(at: tuple[Expr, ...]) -> bool:
    """Whether an index is distinct dimensions and nothing else."""
    return all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
