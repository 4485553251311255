"""The contraction of one stage: register tiles over kept operands and operands staged from global memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.tensor.ops import dims, domain, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chain.block import ChainBlock, ChainPoints, contiguous
from tilewright.passes.kernels.chain.parameters import ChainParameters
from tilewright.passes.kernels.chain.stages import Chain, Stage
from tilewright.passes.kernels.chain.tiles import ContractTiles, contract_tiles
from tilewright.passes.kernels.writing.staging import Fetch, Region, region
from tilewright.passes.kernels.writing.writer import Index

#: multiply-adds and loads in one unrolled loop body at most
CHAIN_UNROLL_BUDGET = 512
#: reduction indices whose operands one thread loads together
DEPTH = 4
#: bytes of staged operands that one thread holds in registers while it computes something else, at most
HELD_BYTES = 160


class StageContract:
    """Writes the contraction of a stage, then its maps."""

    def __init__(self, block: ChainBlock, stage: Stage, plan: ChainParameters) -> None:
        self.block, self.stage, self.op, self.w = block, stage, stage.anchor, block.w
        self.tiles: ContractTiles = contract_tiles(self.op, stage.domain, block.threads)
        self.par = list(dims(self.op, "par"))
        self.red = dims(self.op, "red")
        self.origin = dict(zip(self.par, block.base(stage.domain), strict=True))
        self.step = chunk_steps(block.chain, stage, plan)
        self.deep = deep_dim(stage, self.step)
        self.chunks = {d: n // self.step[d] for d, n in self.red.items()}
        self.staged: list[tuple[Region, Value] | None] = []
        self.fetches: list[Fetch] = []
        self.registers: list[Value] = []
        self.acc: Value | None = None
        self.wide = self._wide()

    def prepare(self) -> None:
        """Start what needs no earlier stage: accumulators, the first chunk of staged operands in registers.

        Stages written between this and `lower` hide the wait for global memory.
        """
        w, t = self.w, self.tiles
        dtype = self.op.result.tensor.dtype
        init: Any = self.op["init"]
        self.acc = w.alloc((t.waves, *t.tile.values()), dtype, "reg", "acc")
        with w.loops("i", self.acc.tensor.shape, unroll=1) as at:
            w.store(w.b.const(init[0], dtype), self.acc, at)
        self.staged = [self._stage_buffer(i) for i in (0, 1)]
        origin = self._symbolic_origin()
        self.fetches = [self._fetch(s[0], s[1], origin) for s in self.staged if s is not None]
        if sum(f.steps * f.width * itemsize(f.target.tensor.dtype) for f in self.fetches) <= HELD_BYTES:
            self.registers = [f.registers() for f in self.fetches]
            for f, registers in zip(self.fetches, self.registers, strict=True):
                f.load({**self.origin, **dict.fromkeys(self.red, 0)}, registers)

    def lower(self) -> None:
        """Accumulate over all chunks of the reduced domain, then store."""
        if self.acc is None:
            self.prepare()
        assert self.acc is not None
        looped = [d for d, n in self.chunks.items() if n > 1]
        if len(self.registers) < len(self.fetches) or len(looped) > 1:
            self._in_turn(self.acc)
        else:
            self._ahead(self.acc, looped)
        self._finish(self.acc)

    def _in_turn(self, acc: Value) -> None:
        """Copy a chunk, multiply it, copy the next."""
        w = self.w
        with w.loops("c", list(self.chunks.values())) as at:
            chunk = {d: w.simple(c * self.step[d]) for d, c in zip(self.chunks, at, strict=True)}
            for f in self.fetches:
                f.copy({**self.origin, **chunk})
            self._multiply(acc, chunk)

    def _ahead(self, acc: Value, looped: list[str]) -> None:
        """Fetch the next chunk into registers before multiplying this one."""
        w = self.w
        first: dict[str, Expr] = dict.fromkeys(self.red, 0)
        self._put()
        for d in looped:
            with w.loop("c", self.chunks[d] - 1) as c:
                following = {**first, d: w.simple((c + 1) * self.step[d])}
                for f, registers in zip(self.fetches, self.registers, strict=True):
                    f.load({**self.origin, **following}, registers)
                self._multiply(acc, {**first, d: w.simple(c * self.step[d])})
                self._put()
        last: dict[str, Expr] = {d: (self.chunks[d] - 1) * self.step[d] for d in self.red}
        self._multiply(acc, last)

    def _put(self) -> None:
        for f, registers in zip(self.fetches, self.registers, strict=True):
            f.store(registers)

    # -- operands --------------------------------------------------------------------------------------------
    def _stage_buffer(self, i: int) -> tuple[Region, Value] | None:
        if not is_staged(self.block.chain, self.stage, i):
            return None
        r = staged_region(self.stage, i, self.step)
        if r is None:
            return None
        shape = staged_shape(self.stage, i, r)
        return r, self.w.alloc(shape, r.value.tensor.dtype, "shared", f"{'ab'[i]}_tile")

    def _fetch(self, r: Region, target: Value, origin: Mapping[str, Expr]) -> Fetch:
        """The cooperative copy of an operand; what is computed on the way is computed a vector at a time."""
        widest = VECTOR_BYTES // itemsize(target.tensor.dtype)
        fetch = Fetch(self.w, r, target, origin, widest)
        rows = (r.extents[-1], target.tensor.shape[-1]) if r.extents else (1,)
        if r.value not in self.w.inputs and r.gaps[-1:] == (1,) and not any(n % widest for n in rows):
            fetch.width = widest
        return fetch

    def _symbolic_origin(self) -> dict[str, Expr]:
        """An origin with symbolic chunk indices, for alignment facts that hold in every step."""
        out = dict(self.origin)
        for d, n in self.chunks.items():
            self.w.ranges[f"{d}.chunk"] = (0, n - 1)
            out[d] = Sym(f"{d}.chunk") * self.step[d] if n > 1 else 0
        return out

    def _wide(self) -> bool:
        """Return whether a thread owns neighbouring indices of the fast dimension: vector loads need it."""
        fast = self.tiles.fast
        tile = self.tiles.tile.get(fast, 1)
        return tile % 2 == 0 and any(contiguous(self.op, i, fast) for i in (0, 1))

    # -- compute ---------------------------------------------------------------------------------------------
    def _multiply(self, acc: Value, chunk: Mapping[str, Expr]) -> None:
        w, t = self.w, self.tiles
        depth = DEPTH if self.deep else 1
        sizes = {d: n // depth if d == self.deep else n for d, n in self.step.items()}
        shapes = [self._register_shape(i, depth) for i in (0, 1)]
        tiles = [  # declared outside: loops written out as text declare what they hold only once
            w.alloc([n for _, n in h], v.tensor.dtype, "reg", hint)
            for h, v, hint in zip(shapes, self.op.operands, "ab", strict=True)
        ]
        work = t.accumulators * depth + t.waves * sum(prod(n for _, n in h) for h in shapes)
        with (
            w.reduction_loops(sizes, CHAIN_UNROLL_BUDGET // work) as local,
            w.loop("u", t.waves, unroll=1) as wave,
        ):
            unit = self._unit(wave)
            with w.when(w.below(self._linear(wave), t.units)):
                for i in (0, 1):
                    self._load(i, shapes[i], tiles[i], unit, local, chunk)
                with (
                    w.loops("i", tuple(t.tile.values()), unroll=1) as item,
                    w.loop("v", depth, unroll=1) as v,
                ):
                    at = {**dict(zip(t.tile, item, strict=True)), "": v}
                    loaded = [w.load(x, [at[d] for d, _ in h]) for x, h in zip(tiles, shapes, strict=True)]
                    (total,) = w.inline(self.op, [*loaded, w.load(acc, (wave, *item))], {})
                    w.store(total, acc, (wave, *item))

    def _register_shape(self, i: int, depth: int) -> list[tuple[str, int]]:
        """Tiled dimensions of an operand's registers; the one contiguous in memory last ('' is depth)."""
        mine = self.tiles.row if i == 0 else self.tiles.column
        shape = [(mine, self.tiles.tile[mine])] if mine else []
        if depth > 1:
            shape.append(("", depth))
            if mine and contiguous(self.op, i, mine):
                shape.reverse()
        return shape

    def _load(
        self, i: int, shape: list[tuple[str, int]], registers: Value, unit: Mapping[str, Expr],
        local: Mapping[str, Expr], chunk: Mapping[str, Expr],
    ) -> None:  # fmt: skip
        """This thread's elements of one operand, to registers."""
        w = self.w
        with w.loops("j", [n for _, n in shape], unroll=1) as item:
            at = dict(zip([d for d, _ in shape], item, strict=True))
            offsets = {d: self._offset(d, unit[d], at.get(d, 0)) for d in self.par}
            deep = at.get("", 0)
            inner = {d: e * DEPTH + deep if d == self.deep else e for d, e in local.items()}
            w.store(self._element(i, offsets, inner, chunk), registers, item)

    def _element(
        self, i: int, offsets: Mapping[str, Expr], inner: Mapping[str, Expr], chunk: Mapping[str, Expr]
    ) -> Value:
        w, staged = self.w, self.staged[i]
        if staged is not None:
            return w.load(staged[1], staged[0].local({**offsets, **inner}))
        env = {d: self.origin[d] + offsets[d] for d in self.par}
        env.update({d: chunk[d] + inner[d] for d in self.red})
        at = tuple(w.simple(substitute(e, env)) for e in reads(self.op)[i])
        v = self.op.operands[i]
        if v in self.block.buffers:
            return w.load(self.block.buffers[v], self.block.local(v, at))
        edge = w.bounds(at, v.tensor.shape)
        if fills(self.op)[i] is None:
            return ChainPoints(self.block, self.stage).value(v, at, edge)
        return ChainPoints(self.block, self.stage).filled(v, at, fills(self.op)[i])

    def _offset(self, d: str, group: Expr, item: Expr) -> Expr:
        t = self.tiles
        if d == t.fast and not self.wide:
            return group + item * t.groups[d]
        return group * t.tile[d] + item

    def _linear(self, wave: Expr) -> Expr:
        return self.w.simple(wave * self.block.threads + Sym("tid"))

    def _unit(self, wave: Expr) -> dict[str, Expr]:
        groups = self.tiles.groups
        return dict(zip(groups, self.w.unravel(self._linear(wave), list(groups.values())), strict=True))

    # -- results ---------------------------------------------------------------------------------------------
    def _finish(self, acc: Value) -> None:
        w, t = self.w, self.tiles
        with w.loop("u", t.waves, unroll=1) as wave:
            unit = self._unit(wave)
            mask = w.below(self._linear(wave), t.units)
            with w.when(mask), w.loops("i", tuple(t.tile.values()), unroll=1) as item:
                at = dict(zip(t.tile, item, strict=True))
                offset: Index = tuple(self._offset(d, unit[d], at[d]) for d in self.par)
                self.block.finish(self.stage, {self.op.result: w.load(acc, (wave, *item))}, offset)


def is_staged(chain: Chain, stage: Stage, i: int) -> bool:
    """Return whether an operand, which the block does not keep, is copied to shared memory by chunks."""
    return stage.anchor.operands[i] not in chain.kept


def staged_region(stage: Stage, i: int, step: Mapping[str, int]) -> Region | None:
    """The box of an operand one chunk of the reduction needs; None where its reads are not affine."""
    form = _form(stage.anchor, i)
    if form is None:
        return None
    sizes = {d: s.extent for d, s in zip(dims(stage.anchor, "par"), stage.domain, strict=True)}
    sizes.update(step)
    extents = tuple(1 + sum(c * (sizes[d] - 1) for d, c in terms.items()) for terms in form.scaled)
    return replace(form, extents=extents)


@lru_cache(maxsize=1024)
def _form(op: Op, i: int) -> Region | None:
    """The region of an operand for a single index of every dimension."""
    return region(op, i, dict.fromkeys(domain(op), 1))


def staged_shape(stage: Stage, i: int, r: Region) -> tuple[int, ...]:
    """The shared buffer of a staged operand; rows that the reduction walks along are padded by one vector."""
    shape = list(r.extents)
    if len(shape) > 1 and any(contiguous(stage.anchor, i, d) for d in dims(stage.anchor, "red")):
        shape[-1] += VECTOR_BYTES // itemsize(r.value.tensor.dtype)
    return tuple(shape)


def chunk_steps(chain: Chain, stage: Stage, plan: ChainParameters) -> dict[str, int]:
    """Chunk of every reduced dimension: the longest is cut until the staged operands fit `stage_bytes`."""
    op = stage.anchor
    red = dims(op, "red")
    step = dict(red)
    if not red:
        return step
    cut = max(red, key=lambda d: red[d])
    for size in (s for s in range(red[cut], 0, -1) if red[cut] % s == 0):
        step[cut] = size
        regions = [staged_region(stage, i, step) for i in (0, 1) if is_staged(chain, stage, i)]
        largest = max(
            (prod(r.extents) * itemsize(r.value.tensor.dtype) for r in regions if r is not None), default=0
        )
        if largest <= plan.stage_bytes:
            break
    return step


def deep_dim(stage: Stage, step: Mapping[str, int]) -> str:
    """A reduced dimension along which an operand lies contiguously, read DEPTH at a time; '' if none."""
    for d in dims(stage.anchor, "red"):
        if step[d] % DEPTH == 0 and any(contiguous(stage.anchor, i, d) for i in (0, 1)):
            return d
    return ""
