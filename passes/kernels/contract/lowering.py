"""Contractions: shared-memory tiling with halo, register tiles, one chunk of the reduced domain per step.

The block stages the region of each operand that its tile needs for one step, zero-filled outside the
operand; each thread keeps `thread` outputs per dimension in registers. With two stages the next step is
fetched into registers while this one is computed. A block of one thread (CPU) stages into its own memory
instead, and needs no barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd, prod
from typing import Any

from tilewright.costmodel import ContractParameters
from tilewright.costmodel.kernels.warp_reads import CONTRACT_UNROLL_BUDGET, UNROLL_POINTS
from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import minimum, substitute, symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.simplify import interval
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.contract.parameters import contract_parameters
from tilewright.passes.kernels.writing.points import Points, store_results
from tilewright.passes.kernels.writing.prefetch import emit_prefetch, prefetched
from tilewright.passes.kernels.writing.staging import Fetch, Region, region
from tilewright.passes.kernels.writing.tiling import Grid, Tile, make_grid
from tilewright.passes.kernels.writing.writer import Writer, anchor_of


def operand_dims(op: Op, operand: int) -> set[str]:
    """Iteration dimensions that the index of an operand mentions."""
    return {n for e in reads(op)[operand] for n in symbols(e)}


def lower_contract(kernel: Func) -> Func:
    """The thread-level function of a kernel around one tensor.contract.

    rewrite:  tensor.contract + epilogue maps   -->   fetch, multiply-add and store loops of one thread
    """
    op = anchor_of(kernel, "tensor.contract")
    plan = contract_parameters(kernel, op)
    grid = _grid(op, plan)
    return _Contract(kernel, op, plan, grid).lower()


def _grid(op: Op, plan: ContractParameters) -> Grid:
    par = dims(op, "par")
    in_a, in_b = operand_dims(op, 0), operand_dims(op, 1)
    columns = [d for d in par if d in in_b and d not in in_a]  # vary with the second operand only
    rows = [d for d in reversed(par) if d not in columns and not (d in in_a and d in in_b)]
    batch = [d for d in par if d in in_a and d in in_b]
    run = {**dict.fromkeys(par, 1), **{d: plan.thread[d] for d in columns}, **plan.run}
    order = [*rows, *reversed(columns), *batch]
    tiles = [Tile(d, par[d], plan.block[d], plan.thread[d], run[d], plan.lanes.get(d, 0)) for d in order]
    axes = {**dict.fromkeys(rows, 0), **dict.fromkeys(columns, 1), **dict.fromkeys(batch, 2)}
    return make_grid(tiles, axes)


class _Operand:
    """One operand: where the block keeps its region, or direct global reads."""

    def __init__(self, index: int, r: Region | None, buffer: Value | None) -> None:
        self.index, self.region, self.buffer = index, r, buffer
        self.fetch: Fetch | None = None


class _Contract:
    def __init__(self, kernel: Func, op: Op, plan: ContractParameters, grid: Grid) -> None:
        self.op, self.plan, self.grid = op, plan, grid
        self.par, self.red = dims(op, "par"), dims(op, "red")
        self.step = {d: min(plan.step.get(d, n), n) for d, n in self.red.items()}
        self.w = Writer(kernel, grid.threads, grid.shape)
        last = next(reversed(self.par), "")
        # accumulators in the order of the result where its last dimension can be written in vectors
        self.order = sorted(
            (t.name for t in grid.tiles), key=lambda d: (grid[d].run > 1, grid[d].run > 1 and d == last)
        )
        self.dtype = op.result.tensor.dtype

    def lower(self) -> Func:
        w = self.w
        with w.b.at(self.op.loc):
            acc = w.alloc([self.grid[d].thread for d in self.order], self.dtype, "reg", "acc")
            init: Any = self.op["init"]
            (start,) = init
            with w.loops("i", acc.tensor.shape, unroll=1) as at:
                w.store(w.b.const(start, self.dtype), acc, at)
            self._prefetch()
            operands = [self._operand(i) for i in (0, 1)]
            self._reduce(acc, operands)
        self._epilogue(acc)
        return w.finish()

    def _prefetch(self) -> None:
        """Bring all of the second operand that the block reads to the cache."""
        op, kernel = self.op, self.w.kernel
        if not any(kernel.params[i] is op.operands[1] for i in prefetched(kernel)):
            return
        r = region(op, 1, {**{d: self.grid[d].block for d in self.par}, **self.red})
        if r is not None:
            used = operand_dims(op, 1)
            sharers = [(self.grid.block_index[d], self.grid[d].blocks) for d in self.par if d not in used]
            emit_prefetch(self.w, r, {d: self.grid.origin(d) for d in self.par}, sharers)

    # -- operands --------------------------------------------------------------------------------------------
    def _operand(self, index: int) -> _Operand:
        sizes = {**{d: self.grid[d].block for d in self.par}, **self.step}
        direct = self.plan.staging == "direct"
        if direct:
            sizes.update({d: self.grid[d].thread for d in self.par})
        r = region(self.op, index, sizes)
        if r is None or (direct and not self._needs_fill(index)):
            return _Operand(index, None, None)
        if not direct:
            r = r.reduced_outermost(self.red, sizes)
        pad = self.plan.pad if index == 0 else 0
        pad += VECTOR_BYTES // itemsize(r.value.tensor.dtype) if r.turned else 0
        space = "reg" if direct else "shared"
        buffer = self.w.alloc(r.stored_shape(pad), r.value.tensor.dtype, space, f"{'ab'[index]}_tile")
        return _Operand(index, r, buffer)

    def _needs_fill(self, index: int) -> bool:
        """Direct reads are best unless bounds checks (or a prologue) would sit in the innermost loop."""
        v = self.op.operands[index]
        if v not in self.w.inputs or fills(self.op)[index] is None:
            return v not in self.w.inputs
        spans = (interval(e, ranges_of(self.op)) for e in reads(self.op)[index])
        return any(low < 0 or high >= n for (low, high), n in zip(spans, v.tensor.shape, strict=True))

    def _origin(self, chunk: Mapping[str, Expr]) -> dict[str, Expr]:
        origin = {d: self.grid.origin(d) for d in self.par}
        if self.plan.staging == "direct":
            for t in self.grid.tiles:
                origin[t.name] += self.grid.thread_index[t.name] * t.thread
        return {**origin, **{d: c * self.step[d] for d, c in chunk.items()}}

    # -- reduction -------------------------------------------------------------------------------------------
    def _reduce(self, acc: Value, operands: list[_Operand]) -> None:
        chunks = {d: -(-n // self.step[d]) for d, n in self.red.items()}
        looped = [d for d, n in chunks.items() if n > 1]
        zero = dict.fromkeys(self.red, 0)
        widest = max(1, VECTOR_BYTES // itemsize(self.op.operands[0].tensor.dtype))
        for o in operands:
            if o.region is not None and o.buffer is not None:
                o.fetch = Fetch(self.w, o.region, o.buffer, self._loop_origin(looped, chunks), widest)
        staged = [o for o in operands if o.fetch is not None]
        if self.plan.stages == 2 and len(looped) == 1 and staged and self.plan.staging == "shared":
            self._pipelined(acc, operands, staged, looped[0], chunks[looped[0]])
            return
        with self.w.loops("c", [chunks[d] for d in looped]) as at:
            chunk = {**zero, **dict(zip(looped, at, strict=True))}
            origin = self._origin(chunk)
            for o in staged:
                assert o.fetch is not None
                o.fetch.copy(origin)
            self._multiply(acc, operands, chunk)

    def _loop_origin(self, looped: list[str], chunks: Mapping[str, int]) -> dict[str, Expr]:
        """An origin with a symbolic chunk index, for alignment facts that hold in every step."""
        for d in looped:
            self.w.ranges[f"{d}.chunk"] = (0, chunks[d] - 1)
        chunk: dict[str, Expr] = {d: Sym(f"{d}.chunk") if d in looped else 0 for d in self.red}
        return self._origin(chunk)

    def _pipelined(
        self, acc: Value, operands: list[_Operand], staged: list[_Operand], d: str, chunks: int
    ) -> None:
        """Fetch chunk i+1 into registers before computing chunk i."""
        zero: dict[str, Expr] = dict.fromkeys(self.red, 0)
        fetches = [o.fetch for o in staged if o.fetch is not None]
        registers = [f.registers() for f in fetches]
        for f, buffer in zip(fetches, registers, strict=True):
            f.load(self._origin(zero), buffer)
            f.store(buffer)
        with self.w.loop("c", chunks - 1) as at:
            following = self._origin({**zero, d: at + 1})
            for f, buffer in zip(fetches, registers, strict=True):
                f.load(following, buffer)
            self._multiply(acc, operands, {**zero, d: at})
            for f, buffer in zip(fetches, registers, strict=True):
                f.store(buffer)
        self._multiply(acc, operands, {**zero, d: chunks - 1})

    def _multiply(self, acc: Value, operands: list[_Operand], chunk: Mapping[str, Expr]) -> None:
        w = self.w
        tiles = [self._register_tile(o) for o in operands]
        work = prod(acc.tensor.shape) + sum(prod(tile.tensor.shape) for tile, _ in tiles)
        with w.reduction_loops(self.step, min(CONTRACT_UNROLL_BUDGET // work, UNROLL_POINTS)) as local:
            for o, (tile, used) in zip(operands, tiles, strict=True):
                with self._items("j", used) as at:
                    w.store(self._element(o, at, local, chunk), tile, [at[d] for d in used])
            with w.loops("i", acc.tensor.shape, unroll=1) as item:
                at = dict(zip(self.order, item, strict=True))
                values = [w.load(t, [at[d] for d in used]) for t, used in tiles]
                (total,) = w.inline(self.op, [*values, w.load(acc, item)], {})
                w.store(total, acc, item)

    @contextmanager
    def _items(
        self, name: str, order: Sequence[str], unroll: int = 1, width: int = 1
    ) -> Iterator[dict[str, Expr]]:
        """Loops over this thread's indices of the dimensions, runs of consecutive ones innermost.

        width: steps along the last dimension, which divide its runs.
        """
        runs = [self.grid[d].run for d in order]
        steps = [width if d == order[-1] else 1 for d in order]
        counts = [self.grid[d].thread // n for d, n in zip(order, runs, strict=True)]
        extents = [e for c, n, k in zip(counts, runs, steps, strict=True) for e in (c, n // k)]
        with self.w.loops(name, extents, unroll=unroll) as at:
            start, within = at[0::2], at[1::2]
            parts = zip(order, start, within, runs, steps, strict=True)
            yield {d: s * n + (i * k if k > 1 else i) for d, s, i, n, k in parts}

    def _register_tile(self, o: _Operand) -> tuple[Value, list[str]]:
        """Registers for this thread's values of one operand at one reduction index, and their dimensions."""
        used = [d for d in self.order if d in operand_dims(self.op, o.index)]
        dtype = self.op.operands[o.index].tensor.dtype
        return self.w.alloc([self.grid[d].thread for d in used], dtype, "reg", "ab"[o.index]), used

    def _element(
        self, o: _Operand, item: Mapping[str, Expr], local: Mapping[str, Expr], chunk: Mapping[str, Expr]
    ) -> Value:
        w = self.w
        offsets = {d: self._offset(d, item.get(d, 0)) for d in self.par}
        if o.region is not None and o.buffer is not None:
            if self.plan.staging == "direct":
                offsets = {d: item.get(d, 0) for d in self.par}
            return w.load(o.buffer, o.region.stored(o.region.local({**offsets, **local})))
        env = {d: self.grid.origin(d) + offsets[d] for d in self.par}
        if self.plan.staging == "direct" and o.index == 0:
            env = {d: self._within(d, e) for d, e in env.items()}
        env.update({d: chunk[d] * self.step[d] + local[d] for d in self.red})
        at = tuple(w.simple(substitute(e, env)) for e in reads(self.op)[o.index])
        v = self.op.operands[o.index]
        if v not in w.inputs or fills(self.op)[o.index] is not None:
            return Points(w).filled(v, at, fills(self.op)[o.index])
        return w.load(w.inputs[v], at, w.bounds(at, v.tensor.shape))

    def _within(self, d: str, index: Expr) -> Expr:
        """An index of a tile that may reach beyond the domain, kept inside: what is computed from it is never
        stored, and a loop without conditions keeps its sums in registers."""
        _, last = interval(self.w.simple(index), self.w.ranges)
        return index if last < self.par[d] else minimum(index, self.par[d] - 1)

    def _offset(self, d: str, item: Expr) -> Expr:
        """Index within the block tile; direct kernels own consecutive items in every dimension."""
        t = self.grid[d]
        if self.plan.staging == "direct":
            return self.grid.thread_index[d] * t.thread + item
        return t.local(self.grid.thread_index[d], item)

    # -- epilogue --------------------------------------------------------------------------------------------
    def _epilogue(self, acc: Value) -> None:
        w = self.w
        order, unroll = self.order, 1
        if self.plan.staging == "direct":
            acc, order, unroll = self._spill(acc), [d for d in self.par if d in self.order], 0
        position = {d: i for i, d in enumerate(self.order)}
        last, width = order[-1], self._edge_vector(order[-1])
        with self._items("i", order, unroll, width) as at:
            index = {d: w.simple(self.grid.origin(d) + self._offset(d, at[d])) for d in self.par}
            bounds = w.bounds(tuple(index[d] for d in self.par), tuple(self.par.values()))
            with w.b.at(self.op.loc), w.when(bounds), w.loop("v", width, unroll=1) as lane:
                place = tuple(index[d] + lane if d == last else index[d] for d in self.par)
                own = [at[d] + lane if d == last else at[d] for d in sorted(order, key=position.__getitem__)]
                points = Points(w, {self.op.result: w.load(acc, own)})
                store_results(w, points, place)

    def _edge_vector(self, last: str) -> int:
        """Neighbours along the last dimension that lie inside the array together or not at all, where tiles
        are cut there: one condition holds for all of them, so that a vector stores them."""
        tile = self.grid[last]
        widest = VECTOR_BYTES // itemsize(self.dtype)
        if self.plan.staging == "direct" or last != list(self.par)[-1] or tile.extent % tile.block == 0:
            return 1
        return gcd(widest, tile.run, tile.extent)

    def _spill(self, acc: Value) -> Value:
        """A copy of the accumulators that may be indexed by loop variables.

        It keeps the code of a long epilogue short while the accumulators themselves stay in vector registers.
        """
        w = self.w
        copy = w.alloc(acc.tensor.shape, self.dtype, "reg", "tile")
        with w.loops("i", acc.tensor.shape, unroll=1) as at:
            w.store(w.load(acc, at), copy, at)
        return copy
