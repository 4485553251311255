"""Kernels whose steps have an order: running folds along a line, and updates of a copy at given addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from tilewright.ir import AttrRecord, Expr, Func, InputError, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import WARP
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
    """Threads per block, and owners (a power of two): threads that share the elements of one line."""

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

    Owners share a slice, which its updates never leave. Where several do, and neighbours in memory are of
    different slices, neighbouring threads have those of one owner and find the same updates to be theirs.

    rewrite:  tensor.map, ... of the initial value, tensor.scatter
        -->   copy of own elements; loop over all updates, own ones applied
    """
    p = parameters_of(kernel, ScatterParameters)
    if p.owners & (p.owners - 1):
        raise InputError(f"expected owners to be a power of two, got {p.owners}", where=f"@{kernel.name}")
    return _Scatter(kernel, anchor_of(kernel, "tensor.scatter"), p.threads, p.owners).lower()


#: elements of a slice's last dimension that one thread takes at most: updates are tested once for all of them
MOST_TOGETHER = 4
#: copied elements whose loads are under way at once, and updates that are tested before the first is applied
COPIED_AT_ONCE, TESTED_AT_ONCE = 8, (8, 4, 2)


def tests_at_once(updates: int) -> int:
    """Updates of a walk that a thread tests before it applies those that are its own."""
    return next((n for n in TESTED_AT_ONCE if updates % n == 0), 1)


def elements_together(inner: int) -> int:
    """Elements of a slice's last dimension of this extent that one of several owners' threads takes."""
    return max(n for n in range(1, MOST_TOGETHER + 1) if inner % n == 0 and (n == 1 or inner >= n * WARP))


class _Scatter:
    def __init__(self, kernel: Func, op: Op, threads: int, owners: int) -> None:
        self.op, self.owners = op, owners
        self.shape = op.result.tensor.shape
        self.par = dims(op, "par")
        self.named = slices_of(op)
        self.rest = [d for d in range(len(self.shape)) if d not in self.named]
        extents = [self.shape[d] for d in self.named]
        side_by_side = owners > 1 and len(self.shape) - 1 in self.named
        self.together = elements_together(extents[-1]) if side_by_side else 1
        self.inner = list(self.named)[-1] if extents else None
        if extents:
            extents[-1] //= self.together
        self.total = prod(extents) * owners
        self.w = w = Writer(kernel, threads, (max(1, -(-self.total // threads)), 1, 1))
        self.linear = w.simple(Sym("bid.x") * threads + Sym("tid"))
        if side_by_side:
            self.owner, *index = w.unravel(self.linear, (owners, *extents))
        else:
            *index, self.owner = w.unravel(self.linear, (*extents, owners))
        self.slice = dict(zip(self.named, index, strict=True))

    def lower(self) -> Func:
        w, op = self.w, self.op
        with w.b.at(op.loc), w.when(w.below(self.linear, self.total)):
            self._copy()
            self._apply()
        return w.finish()

    @contextmanager
    def _elements(self) -> Iterator[dict[int, Expr]]:
        """A loop over this thread's elements of the slice; gives the index in the sliced dimensions."""
        w = self.w
        if self.inner is None:
            yield {}
            return
        apart = self.shape[self.inner] // self.together
        with w.loop("j", self.together, unroll=1) as number:
            yield {**self.slice, self.inner: w.simple(number * apart + self.slice[self.inner])}

    def _copy(self) -> None:
        """Own elements of the initial value: every `owners`-th of the slice."""
        w = self.w
        extents = [self.shape[d] for d in self.rest]
        size = prod(extents)
        steps = max(1, -(-size // self.owners)) if size else 0
        at_once = COPIED_AT_ONCE if self.owners > 1 else 1
        with w.loop("e", -(-steps // at_once)) as group, w.loop("f", at_once, unroll=1) as within:
            element = w.simple((group * at_once + within) * self.owners + self.owner)
            with w.when(w.below(element, size)), self._elements() as own:
                index = {**own, **dict(zip(self.rest, w.unravel(element, extents), strict=True))}
                at = tuple(index[d] for d in range(len(self.shape)))
                w.store(Points(w).value(self.op.operands[0], at), w.outputs[self.op.result], at)

    def _apply(self) -> None:
        w = self.w
        fixed: dict[str, Expr] = {p: self.slice[d] for d, p in self.named.items()}
        walked = {p: n for p, n in self.par.items() if p not in fixed}
        *outer, last = walked.values() if walked else (1,)
        at_once = tests_at_once(last) if self.owners > 1 else 1
        with w.loops("u", outer) as first, w.loop("u", last // at_once) as group:
            envs, mine = [], []
            for number in range(at_once):
                step = w.simple(group * at_once + number)
                env = {**fixed, **dict(zip(walked, (*first, step), strict=False))}
                envs.append(env)
                mine.append(self._mine(Address(Points(w), self.op, env, 2)))
            for env, condition in zip(envs, mine, strict=True):
                with w.when((), condition), self._elements() as own:
                    self._update({**env, **{self.named[d]: at for d, at in own.items()}}, own)

    def _update(self, env: Mapping[str, Expr], own: Mapping[int, Expr]) -> None:
        """Apply the update at one iteration point, which this thread owns."""
        w, op = self.w, self.op
        target = w.outputs[op.result]
        inside = tuple((own[d], 0, self.par[p]) for d, p in self.named.items() if self.par[p] < self.shape[d])
        with w.when(inside):
            points = Points(w)
            address = Address(points, op, env, 2)
            offset = address.offset()
            old = w.b.value("thread.gather", target, offset)
            place = tuple(w.simple(substitute(e, env)) for e in reads(op)[0])
            update = points.filled(op.operands[1], place, fills(op)[0] if op.get("fill") else None)
            (new,) = w.inline(op, [old, update], dict(env))
            condition = [address.inside] if address.inside is not None else []
            w.b.do("thread.scatter", new, target, offset, *condition)

    def _mine(self, address: Address) -> Value | None:
        """True where the address belongs to this thread; None where that always holds.

        With one owner, whose address exists; where several own one dimension, an address out of bounds is
        somebody's, who leaves it.
        """
        b = self.w.b
        if self.owners == 1:
            return address.inside
        wrap = self.op.get("mode") == "wrap"
        one = len(self.rest) == 1 and not wrap
        element = address.given[self.rest[0]] if one else address.offset(self.rest)
        last = b.const(self.owners - 1, address.dtype)  # owners are a power of two
        mine = b.value(
            "scalar.eq", b.value("scalar.bit_and", element, last), b.index(self.owner, address.dtype)
        )
        if one or address.inside is None:
            return mine
        return b.value("scalar.and", mine, address.inside)
