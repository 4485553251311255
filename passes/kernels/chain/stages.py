"""The stages of a chain: which ops are computed together, what stays in shared memory, and which box of it.

A stage is a reduction (or a map that must be stored) with the maps that read, element by element, what its
threads just computed. Cheap maps of the kernel's parameters alone are computed where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.ir import Func, Op, Sym, UnsupportedError, Value
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import REDUCING, dims, fills, ranges_of
from tilewright.passes.analysis.index_sets import POINTWISE, placed_reads, recompute_cost
from tilewright.passes.kernels.chain.regions import Box, Span, read_box

#: additions per element that may be recomputed wherever a map of parameters is read
MAX_INLINE_COST = 8

#: per parallel dimension of an op, which dimension of its stage's anchor it is; None for one of extent 1
Places = tuple[int | None, ...]


@dataclass
class Stage:
    """An anchor, the maps computed with it, and the box of the anchor's parallel domain a block computes."""

    anchor: Op
    members: list[tuple[Op, Places]]
    domain: Box = ()

    @property
    def results(self) -> list[tuple[Value, Places]]:
        return [(r, places) for op, places in self.members for r in op.results]

    def box_of(self, places: Places) -> Box:
        """The box of a member's own domain."""
        return tuple(Span((), 0, 1) if p is None else self.domain[p] for p in places)


@dataclass(frozen=True)
class Kept:
    """An intermediate in shared memory: its box, and the value it has outside the tensor (None: any)."""

    box: Box
    fill: float | int | bool | None


@dataclass
class Chain:
    """A kernel cut into stages; `kept` are the values that later stages read.

    walked: of reduced dimensions of the last stage, how many indices a block takes at a time; the boxes of
    what it reads of them move with each step.
    """

    kernel: Func
    stages: list[Stage]
    tiles: Mapping[str, int]
    kept: dict[Value, Kept] = field(default_factory=dict)
    walked: Mapping[str, int] = field(default_factory=dict)

    @property
    def blocks(self) -> dict[str, int]:
        """Number of blocks along each dimension of the final result."""
        extents = dims(self.stages[-1].anchor, "par")
        return {d: -(-n // self.tiles[d]) for d, n in extents.items()}

    @property
    def last_origins(self) -> dict[str, int]:
        first = {d: (n - 1) * self.tiles[d] for d, n in self.blocks.items()}
        return first | {d: (n - 1) * self.walked[d] for d, n in self.steps.items()}

    @property
    def steps(self) -> dict[str, int]:
        """Number of steps along each walked dimension."""
        extents = dims(self.stages[-1].anchor, "red")
        return {d: extents[d] // part for d, part in self.walked.items()}


def stages_of(kernel: Func) -> list[Stage]:
    """The stages of a kernel in program order, without their boxes.

    Raises UnsupportedError for ops that no chain computes.
    """
    returned = set(kernel.body.ops[-1].operands)
    stages: list[Stage] = []
    level: dict[Value, int] = dict.fromkeys(kernel.params, -1)
    stage_of: dict[Value, tuple[Stage, Places]] = {}
    for op in kernel.body.ops[:-1]:
        if op.name not in REDUCING | POINTWISE:
            raise UnsupportedError(f"no chain computes {op.name}", where=op.loc)
        if op.name == "tensor.gather" and op.operands[0] not in kernel.params:
            raise UnsupportedError("a chain gathers from parameters only", where=op.loc)
        latest = max((level[v] for v in op.operands), default=-1)
        pointwise = op.name in POINTWISE and not returned & set(op.results)
        if latest < 0 and pointwise and recompute_cost(op) <= MAX_INLINE_COST:
            level.update(dict.fromkeys(op.results, -1))
            continue
        joined = _places(op, stages[latest], stage_of) if latest >= 0 else None
        if joined is not None:
            stage, places = stages[latest], joined
            stage.members.append((op, places))
        else:
            places = tuple(range(len(dims(op, "par"))))
            stage = Stage(op, [(op, places)])
            stages.append(stage)
        level.update(dict.fromkeys(op.results, stages.index(stage)))
        stage_of.update(dict.fromkeys(op.results, (stage, places)))
    if not stages or not returned & {r for r, _ in stages[-1].results}:
        raise UnsupportedError("expected the last stage of a chain to give a result", where=f"@{kernel.name}")
    return stages


def _places(op: Op, stage: Stage, stage_of: Mapping[Value, tuple[Stage, Places]]) -> Places | None:
    """Return the op's dimensions among the stage's, if it reads only its own point of it; else None."""
    if op.name != "tensor.map":
        return None
    par, ranges = dims(op, "par"), ranges_of(op)
    names = list(par)
    found: Places | None = None
    anchor_shape = tuple(dims(stage.anchor, "par").values())
    for (v, at), fill in zip(placed_reads(op), fills(op), strict=True):
        if v not in stage_of or stage_of[v][0] is not stage:
            continue
        if fill is not None:
            return None
        mine: list[int | None] = [None] * len(names)
        for e, place in zip(at, stage_of[v][1], strict=True):
            index = simplify(e, ranges)
            if isinstance(index, Sym) and place is not None and mine[names.index(index.name)] is None:
                mine[names.index(index.name)] = place
            elif index != 0 or (place is not None and anchor_shape[place] != 1):
                return None
        if any(p is None and par[d] != 1 for d, p in zip(names, mine, strict=True)):
            return None
        if any(p is not None and par[d] != anchor_shape[p] for d, p in zip(names, mine, strict=True)):
            return None
        if found is not None and found != tuple(mine):
            return None
        found = tuple(mine)
    return found


@lru_cache(maxsize=64)
def _stages(kernel: Func) -> tuple[Stage, ...]:
    return tuple(stages_of(kernel))


def chain_of(kernel: Func, tiles: Mapping[str, int], walked: Mapping[str, int] | None = None) -> Chain:
    """The stages of a kernel with the boxes a block needs when it owns `tiles` of the final result.

    tiles: block extent per parallel dimension of the last stage's anchor. walked: indices per step of reduced
    dimensions of it, which divide their extents. Raises UnsupportedError where values outside an intermediate
    would have to differ between its readers, or where blocks would not partition a result.
    """
    stages = [Stage(s.anchor, s.members) for s in _stages(kernel)]
    chain = Chain(kernel, stages, dict(tiles), walked=dict(walked or {}))
    _Regions(chain).infer()
    return chain


class _Regions:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.last = chain.last_origins
        self.needs: dict[Value, Box] = {}
        self.fills: dict[Value, set[float | int | bool]] = {}
        self.producer = {r: op for op in chain.kernel.body.ops for r in op.results}
        self.staged = {r for s in chain.stages for r, _ in s.results}
        self.owner = {r: s for s in chain.stages for r, _ in s.results}

    def infer(self) -> None:
        final = self.chain.stages[-1]
        extents = dims(final.anchor, "par")
        final.domain = tuple(Span(((d, 1),), 0, self.chain.tiles[d]) for d in extents)
        for stage in reversed(self.chain.stages):
            if stage is not final:
                self._unite(stage)
            for op, places in stage.members:
                self._walk(op, stage.box_of(places), stage)
        self._check_results()
        self._keep()

    def _unite(self, stage: Stage) -> None:
        """The stage's domain: the box around what is needed of all its results."""
        spans: list[Span | None] = [None] * len(dims(stage.anchor, "par"))
        for r, places in stage.results:
            for span, p in zip(self.needs.get(r, ()), places, strict=False):
                if p is not None:
                    old = spans[p]
                    spans[p] = span if old is None else old.hull(span, self.last)
        shape = tuple(dims(stage.anchor, "par").values())
        stage.domain = tuple(Span((), 0, n) if s is None else s for s, n in zip(spans, shape, strict=True))

    def _walk(self, op: Op, domain: Box, stage: Stage) -> None:
        """Add what one op reads while it runs over `domain`; maps computed in place are walked through."""
        filled = fills(op) if len(fills(op)) == len(op.operands) else (None,) * len(op.operands)
        first = len(op.operands) - len(placed_reads(op))
        for i, (v, at) in enumerate(placed_reads(op), first):
            if self.owner.get(v) is stage or v in self.chain.kernel.params:
                continue
            box = read_box(op, at, domain, self._reduced(op))
            if v not in self.staged:
                self._walk(self.producer[v], box, stage)
                continue
            old = self.needs.get(v)
            hulls = box if old is None else tuple(a.hull(b, self.last) for a, b in zip(old, box, strict=True))
            self.needs[v] = hulls
            fill = filled[i]
            if fill is not None:
                self.fills.setdefault(v, set()).add(fill)

    def _reduced(self, op: Op) -> dict[str, Span]:
        """Return what one step takes of the reduced dimensions that are walked."""
        if op is not self.chain.stages[-1].anchor:
            return {}
        return {d: Span(((d, 1),), 0, part) for d, part in self.chain.walked.items()}

    def _check_results(self) -> None:
        """Each result is stored once: the blocks partition it."""
        tiled = {d for d, n in self.chain.blocks.items() if n > 1}
        for v in self.chain.kernel.body.ops[-1].operands:
            if v not in self.owner:
                raise UnsupportedError("a chain returns only what its stages compute")
            stage = self.owner[v]
            places = next(p for r, p in stage.results if r is v)
            moved: set[str] = set()
            for span, n in zip(stage.box_of(places), v.tensor.shape, strict=True):
                names = {d for d, _ in span.terms}
                own = len(names) == 1 and span == Span(((*names, 1),), 0, self.chain.tiles[min(names)])  # type: ignore[arg-type]
                if names & moved or not (own or (not names and span.constant <= 0 and span.extent >= n)):
                    raise UnsupportedError("blocks of the chain do not partition one of its results")
                moved |= names
            if not tiled <= moved:
                raise UnsupportedError("several blocks of the chain would store the same result")

    def _keep(self) -> None:
        for v in self.needs:
            stage = self.owner[v]
            box = stage.box_of(next(p for r, p in stage.results if r is v))
            outside = any(
                low < 0 or high >= n
                for (low, high), n in zip((s.reach(self.last) for s in box), v.tensor.shape, strict=True)
            )
            values = self.fills.get(v, set())
            if outside and len(values) > 1:
                raise UnsupportedError(f"readers of an intermediate want {len(values)} values outside it")
            fill = next(iter(values)) if outside and values else None
            self.chain.kept[v] = Kept(box, fill)
