"""Kernels whose steps have an order: running folds along a line, and updates of a copy at given addresses."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import AttrRecord, Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.analysis.index_sets import slices_of
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.writing.points import Address, Points
from tilewright.passes.kernels.writing.writer import Writer, anchor_of


@dataclass(frozen=True)
class ScanParameters(AttrRecord):
    """Threads per block, each of which walks along lines of its own."""

    threads: int


@dataclass(frozen=True)
class ScatterParameters(AttrRecord):
    """Threads per block, and owners: threads that share the elements of one line."""

    threads: int
    owners: int


def lower_scan(kernel: Func) -> Func:
    """The thread-level function of a running fold: one thread walks along each line."""
    threads = parameters_of(kernel, ScanParameters).threads
    op = anchor_of(kernel, "tensor.scan")
    par, along = dims(op, "par"), str(op["dim"])
    lines = {d: n for d, n in par.items() if d != along}
    total = prod(lines.values())
    w = Writer(kernel, threads, (max(1, -(-total // threads)), 1, 1))
    linear = w.simple(Sym("bid.x") * threads + Sym("tid"))
    dtype = op.result.tensor.dtype
    with w.b.at(op.loc), w.when(w.below(linear, total)):
        at = dict(zip(lines, w.unravel(linear, tuple(lines.values())), strict=True))
        state = w.alloc((1,), dtype, "reg", "held")
        w.store(w.b.const(op["init"], dtype), state, (0,))  # type: ignore[arg-type]
        with w.loop("s", par[along]) as step:
            place = w.simple(par[along] - 1 - step) if op["reverse"] else step
            env: dict[str, Expr] = {**at, along: place}
            points = Points(w)
            before = w.load(state, (0,))
            (after,) = w.inline(op, [*points.operands(op, env), before], env)
            w.store(after, state, (0,))
            index = tuple(env[d] for d in par)
            w.store(before if op["exclusive"] else after, w.outputs[op.result], index)
    return w.finish()


def lower_scatter(kernel: Func) -> Func:
    """The thread-level function of ordered updates: each thread owns some elements and applies their updates.

    Owners share a slice, which its updates never leave.

    rewrite:  tensor.scatter   -->   copy of own elements; loop over all updates, own ones applied
    """
    p = parameters_of(kernel, ScatterParameters)
    return _Scatter(kernel, anchor_of(kernel, "tensor.scatter"), p.threads, p.owners).lower()


class _Scatter:
    def __init__(self, kernel: Func, op: Op, threads: int, owners: int) -> None:
        self.op, self.owners = op, owners
        self.shape = op.result.tensor.shape
        self.par = dims(op, "par")
        self.named = slices_of(op)
        self.rest = [d for d in range(len(self.shape)) if d not in self.named]
        extents = [self.shape[d] for d in self.named]
        self.total = prod(extents) * owners
        self.w = w = Writer(kernel, threads, (max(1, -(-self.total // threads)), 1, 1))
        self.linear = w.simple(Sym("bid.x") * threads + Sym("tid"))
        *index, self.owner = w.unravel(self.linear, (*extents, owners))
        self.slice = dict(zip(self.named, index, strict=True))

    def lower(self) -> Func:
        w, op = self.w, self.op
        with w.b.at(op.loc), w.when(w.below(self.linear, self.total)):
            self._copy()
            inside = tuple(
                (self.slice[d], 0, self.par[p]) for d, p in self.named.items() if self.par[p] < self.shape[d]
            )
            with w.when(inside):
                self._apply()
        return w.finish()

    def _copy(self) -> None:
        """Own elements of the initial value: every `owners`-th of the slice."""
        w = self.w
        extents = [self.shape[d] for d in self.rest]
        size = prod(extents)
        with w.loop("e", max(1, -(-size // self.owners)) if size else 0) as step:
            element = w.simple(step * self.owners + self.owner)
            with w.when(w.below(element, size)):
                index = {**self.slice, **dict(zip(self.rest, w.unravel(element, extents), strict=True))}
                at = tuple(index[d] for d in range(len(self.shape)))
                w.store(Points(w).value(self.op.operands[0], at), w.outputs[self.op.result], at)

    def _apply(self) -> None:
        w, op = self.w, self.op
        fixed: dict[str, Expr] = {p: self.slice[d] for d, p in self.named.items()}
        walked = {p: n for p, n in self.par.items() if p not in fixed}
        target = w.outputs[op.result]
        with w.loops("u", tuple(walked.values())) as step:
            env: dict[str, Expr] = {**fixed, **dict(zip(walked, step, strict=True))}
            points = Points(w)
            address = Address(points, op, env, 2)
            mine = self._mine(address)
            offset = address.offset()
            old = w.b.value("thread.gather", target, offset)
            place = tuple(w.simple(substitute(e, env)) for e in reads(op)[0])
            update = points.filled(op.operands[1], place, fills(op)[0] if op.get("fill") else None)
            (new,) = w.inline(op, [old, update], env)
            operands = [new, target, offset, *([mine] if mine is not None else [])]
            w.b.do("thread.scatter", *operands)

    def _mine(self, address: Address) -> Value | None:
        """True where the address exists and belongs to this thread; None where that always holds."""
        b = self.w.b
        if self.owners == 1:
            return address.inside
        element = address.offset(self.rest)
        turn = b.value("scalar.mod", element, b.const(self.owners, address.dtype))
        mine = b.value("scalar.eq", turn, b.index(self.owner, address.dtype))
        return mine if address.inside is None else b.value("scalar.and", mine, address.inside)
