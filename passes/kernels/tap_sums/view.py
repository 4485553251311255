"""Which kernels sum products of an image with another one that a window moves over, and in what terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir import Expr, Func, Op
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import REDUCING, dims, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.row_phases import RowPhases, row_phases
from tilewright.passes.kernels.rows.combiners import combiner


@dataclass(frozen=True)
class TapSums:
    """A sum with a result for each tap: `par` = (..., taps, channels), `red` = (samples, ..., pixels).

    slid: the reduced dimension along which a window moves by `stride` while `tap`, a dimension of results,
    moves by `dilation` within it. others: further dimensions of taps. inner: the dimension of results along
    which memory runs. plain: operands that all taps read at the same place; windowed: the others.
    """

    op: Op
    phases: RowPhases
    slid: str
    tap: str
    others: tuple[str, ...]
    inner: str
    stride: int
    dilation: int
    plain: tuple[int, ...]
    windowed: tuple[int, ...]

    @property
    def kept(self) -> dict[str, int]:
        """Dimensions of results besides taps, with their extents."""
        return {d: n for d, n in dims(self.op, "par").items() if d not in (self.tap, *self.others)}

    @property
    def taps(self) -> int:
        """Results that share what they read."""
        return prod(dims(self.op, "par")[d] for d in (self.tap, *self.others))

    @property
    def other_taps(self) -> int:
        """Places of the window across the dimension that is slid along."""
        return self.taps // dims(self.op, "par")[self.tap]

    def span(self, outputs: int) -> int:
        """Elements of the windowed operand from the first to the last that so many neighbours read."""
        return (outputs - 1) * self.stride + (dims(self.op, "par")[self.tap] - 1) * self.dilation + 1

    def places(self, outputs: int) -> dict[int, tuple[int, int]]:
        """The elements among them that are read, each with a neighbour and a tap that read it."""
        taps = range(dims(self.op, "par")[self.tap])
        return {n * self.stride + t * self.dilation: (n, t) for n in range(outputs) for t in taps}

    def bytes_of(self, operands: Sequence[int]) -> int:
        """Bytes of one element of each of these operands together."""
        return sum(itemsize(self.op.operands[k].tensor.dtype) for k in operands)


def tap_sums(kernel: Func) -> TapSums | None:
    """The kernel as sums for the taps of a window; None where it is something else."""
    ops = [op for op in kernel.body.ops if op.name in REDUCING]
    plain_ops = all(op.name in ("tensor.map", "tensor.return") for op in kernel.body.ops if op not in ops)
    if len(ops) != 1 or ops[0].name != "tensor.reduce" or combiner(ops[0]) is None or not plain_ops:
        return None
    (op,), phases = ops, row_phases(kernel)
    if phases is None or phases.phases[0].op is not op or any(p.columns for p in phases.phases[1:]):
        return None
    return _view(kernel, op, phases)


def _view(kernel: Func, op: Op, phases: RowPhases) -> TapSums | None:
    par, red = dims(op, "par"), dims(op, "red")
    where = reads(op)
    mentioned = [{d for e in at for d in symbols(e)} for at in where]
    taps = [d for d in par if any(d in m for m in mentioned) and not all(d in m for m in mentioned)]
    inner = phases.inner(kernel)
    kind, _, number = inner.partition(".")
    if not taps or kind != "row" or list(par)[int(number)] in taps:
        return None
    windowed = tuple(k for k, m in enumerate(mentioned) if m & set(taps))
    plain = tuple(k for k in range(len(where)) if k not in windowed)
    for slid in reversed(red):
        for tap in taps:
            moves = {_moves(op, where[k], slid, tap) for k in windowed}
            (move,) = moves if len(moves) == 1 else (None,)
            if move is None:
                continue
            others = tuple(d for d in taps if d != tap)
            return TapSums(
                op, phases, slid, tap, others, list(par)[int(number)], *move, plain=plain, windowed=windowed
            )
    return None


def _moves(op: Op, at: Sequence[Expr], slid: str, tap: str) -> tuple[int, int] | None:
    """Steps along memory of a pixel and of a tap, which share one index; None where they do not."""
    found = [e for e in at if {slid, tap} & set(symbols(e))]
    if len(found) != 1:
        return None
    form = coefficients(found[0], [slid, tap], ranges_of(op))
    if form is None:
        return None
    stride, dilation = form[0].get(slid, 0), form[0].get(tap, 0)
    return (stride, dilation) if stride > 0 and dilation > 0 else None
