"""Pass relay-launches: kernels let the next launch start where both fit on the GPU side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.costmodel.kernels.relays import Footprint, may_relay, relay_gain_s, starts_early
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.hardware_facts import LINE_BYTES
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Ref, walk
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.thread.launch_ops import (
    EARLY_FACTORS,
    HOLDERS,
    PREFETCH,
    RELEASE,
    WAIT,
    constant_params,
    holder_axis,
    releases_dependents,
    waits_for_launches,
)
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.work.footprints import footprint_of, grid_of
from tilewright.passes.analysis.work.weight_traffic import (
    WeightBytes,
    asked_only_late,
    weight_bytes,
    weights_leave_l2,
)
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.thread.scopes import launch_ranges

When = Literal["auto", "always", "never"]
Release = Literal["after-wait", "first"]
#: seconds of a replay that are worth compiling a twin of a kernel, which releases nothing
TWIN_GAIN_S = 2e-6
_CONTROL = ("thread.loop", "thread.if", "thread.yield")


@register_pass(Level.THREAD)
def relay_launches(
    module: Module, ctx: PassContext, *, when: When = "auto", release: Release = "after-wait"
) -> Module:
    """Let kernels release the launch that follows, where its blocks crowd nowhere.

    rewrite:  func @k(...) { wait_for_launches; ... }
        -->   func @k(...) { wait_for_launches; release_dependents; ... }

    rewrite:  call(callee = @k); call(callee = @k); call(callee = @large)
        -->   call(callee = @k); call(callee = @k_alone_0); call(callee = @large)

    A launch and the next one are a relay where both fit on the GPU at the same time, each with its blocks
    spread evenly: so no block of the later one crowds where another has ended. Its blocks then have computed
    their indices, and their weights are on the way, when the earlier launch ends. Two launches are a relay,
    too, where each block of both has a multiprocessor alone: those of the later one start where those of the
    earlier one end, and no two of them have room on one multiprocessor. A kernel releases in all its launches
    or in none; where some of the next ones may not start early, but relays with the others save
    `TWIN_GAIN_S`, a twin of it runs before those. `auto` asks the cost model whether relays save time,
    `always` takes all that are possible, `never` none. Registers of kernels by roles are known, those
    of others once they are compiled: all are checked then.

    Where the next launch's blocks would crowd because a kernel has fewer than there are multiprocessors, more
    blocks are launched, which compute nothing and stay for a moment after the release (attribute `holders`).

    release: `after-wait` lets the next launch start when what this one waits for has ended, so that no more
    than two launches are on the GPU; `first` at once, unless there are kernels with `early_factors`: what
    stands above the launches that these wait for must have ended. Prefetches that pay only in kernels which
    start early are dropped from all others. Where the weights of a network leave the L2, kernels that start
    early also prefetch constants that they ask for later, such as what an epilogue adds, as far as that takes
    a thread no more than a line.
    """
    if any(f.get(EARLY_FACTORS) for f in module.funcs):
        release = "after-wait"
    releasing: set[str] = set()
    started: set[str] = set()
    held: dict[str, tuple[int, int]] = {}
    launches = any(f.name == "main" for f in module.funcs)
    if launches and starts_early(ctx.target) and when != "never":
        hardware = ctx.hardware or load_hardware(ctx.target)
        if isinstance(hardware, GpuHardware):
            relays = _Relays(module, hardware)
            module, releasing, started, holders = relays.chosen(always=when == "always")
            cycles = int(hardware.relay.hold_s * hardware.clock_hz)
            held = {name: (blocks, cycles) for name, blocks in holders.items()}
            if not relays.in_l2:
                module = module.with_funcs(
                    tuple(_with_late_constants(f) if f.name in started else f for f in module.funcs)
                )
    return module.with_funcs(
        tuple(
            _rewritten(f, f.name in releasing, f.name in started, release, held.get(f.name))
            if f.level is Level.THREAD
            else f
            for f in module.funcs
        )
    )


@dataclass(frozen=True)
class _Kernel:
    """What the choice sees of a kernel: seconds without boundaries, its weights by when it asks for them."""

    footprint: Footprint
    seconds: float
    weights: WeightBytes


class _Relays:
    """The launches of a module that follow one another directly."""

    def __init__(self, module: Module, gpu: GpuHardware) -> None:
        self.gpu = gpu
        self.in_l2 = not weights_leave_l2(module, gpu)
        self.module = module
        self.kernels = {f.name: _kernel(f, gpu) for f in module.funcs if _may_overlap(f)}
        self.grids = {f.name: grid_of(f) for f in module.funcs if f.name in self.kernels}
        pairs = enumerate(pairwise(_launched(module)))
        #: launches, by number, that the next one may overlap, with the kernels of both
        self.edges = [(i, u, v) for i, (u, v) in pairs if u in self.kernels and v in self.kernels]

    def chosen(self, *, always: bool) -> tuple[Module, set[str], set[str], dict[str, int]]:
        """The module with twins, the kernels that release, those of which a launch then starts early, and how
        many blocks hold places for which kernel.
        """
        gains: dict[str, float] = {}
        crowded: dict[str, list[int]] = {}
        for i, u, v in self.edges:
            first, second = self.kernels[u], self.kernels[v]
            fits = may_relay(first.footprint, second.footprint, self.gpu)
            gains[u] = gains.get(u, 0.0) + (self._gain_s(first, second) if fits else 0.0)
            if not fits:
                crowded.setdefault(u, []).append(i)
        releasing = {
            name
            for name, gain_s in gains.items()
            if (gain_s >= TWIN_GAIN_S if name in crowded else always or gain_s > 0.0)
        }
        alone = {i for name in releasing for i in crowded.get(name, ())}
        started = {v for i, u, v in self.edges if u in releasing and i not in alone}
        return _with_twins(self.module, alone), releasing, started, self._holders(releasing, alone)

    def _holders(self, releasing: Collection[str], alone: Collection[int]) -> dict[str, int]:
        """Blocks that hold places for kernels while the next launches take others, where there are some.

        A launch of fewer blocks than multiprocessors leaves some that are empty, where the next launch, whose
        blocks go where there is most room first, begins: once each multiprocessor has one block, those have
        the next ones as well as all others, so that two blocks of the launch share a multiprocessor. A kernel
        that takes less than holders stay has none.
        """
        crowding = {u for i, u, v in self.edges if u in releasing and i not in alone and self._crowds(u, v)}
        holders: dict[str, int] = {}
        for name in crowding:
            _, slice_blocks = holder_axis(self.grids[name])
            blocks = self._free(name) // slice_blocks * slice_blocks
            if blocks > 0 and self.kernels[name].seconds >= self.gpu.relay.hold_s:
                holders[name] = blocks
        return holders

    def _crowds(self, first: str, second: str) -> bool:
        """Return whether blocks of the second launch go where the first one has none, and elsewhere too."""
        u, v = self.kernels[first].footprint, self.kernels[second].footprint
        return u.cluster == 1 and v.blocks > self._free(first) and u.fits_beside(v, self.gpu)

    def _free(self, name: str) -> int:
        """Multiprocessors on which a kernel of one block each has none."""
        return self.gpu.sm_count - self.kernels[name].footprint.blocks

    def _gain_s(self, first: _Kernel, second: _Kernel) -> float:
        early = second.weights.total - second.weights.exposed
        places = first.footprint, second.footprint
        return relay_gain_s(first.seconds, second.seconds, *places, early, self.gpu, in_l2=self.in_l2)


def _launched(module: Module) -> Iterator[str]:
    """The kernels of all launches in their order; a communication, which has no kernel, as an empty name."""
    return (ref.name if isinstance(ref := op.get("callee"), Ref) else "" for op in _launches(module))


def _launches(module: Module) -> Iterator[Op]:
    """The calls and communications of @main."""
    for main in (f for f in module.funcs if f.name == "main"):
        yield from (op for op in main.body.ops if isinstance(op.get("callee"), Ref) or op.name == COMMUNICATE)


def _with_twins(module: Module, alone: Collection[int]) -> Module:
    """The module in which the launches of these numbers are those of twins of their kernels."""
    if not alone:
        return module
    twins: dict[str, Func] = {}
    moved: dict[Op, Op] = {}
    names = {f.name for f in module.funcs}
    for i, op in enumerate(_launches(module)):
        ref = op.get("callee")
        if i not in alone or not isinstance(ref, Ref):
            continue
        if ref.name not in twins:
            twins[ref.name] = replace(module[ref.name], name=numbered(f"{ref.name}_alone", names))
        moved[op] = op.with_attrs(callee=Ref(twins[ref.name].name))
    main = module.main
    body = main.body.with_ops(tuple(moved.get(op, op) for op in main.body.ops))
    others = (main.with_body(body) if f is main else f for f in module.funcs)
    return module.with_funcs((*others, *twins.values()))


def _may_overlap(func: Func) -> bool:
    return func.level is Level.THREAD and waits_for_launches(func)


def _kernel(func: Func, gpu: GpuHardware) -> _Kernel:
    decision = decision_of(func)
    cost = None if decision is None else decision.cost
    known = (decision and decision.measured_s) or (cost and cost.estimate_s) or 0.0
    return _Kernel(footprint_of(func), max(0.0, known - gpu.stream.boundary_s), weight_bytes(func))


def _with_late_constants(func: Func) -> Func:
    """The kernel with a prefetch of each constant that it asks for only after its wait.

    A line is brought by one thread of one block, where there are as many threads as lines. Where places are
    computed from data, not all of a constant may be read, so that it is left out.
    """
    block = func.get("block")
    assert isinstance(block, int)
    x, y, z = grid_of(func)
    ranges = launch_ranges(func)
    thread = ((Sym("bid.z") * y + Sym("bid.y")) * x + Sym("bid.x")) * block + Sym("tid")
    late = [func.params[i] for i in constant_params(func) if asked_only_late(func, func.params[i])]
    looked_up = {op.operands[0] for op in walk(func.body) if op.name == "thread.gather"}
    prefetches = []
    for v in late:
        t, per_line = v.tensor, max(1, LINE_BYTES // itemsize(v.tensor.dtype))
        lines = -(-t.size // per_line)
        if v in looked_up or t.steps or not 0 < lines <= x * y * z * block:
            continue
        at: list[Expr] = []
        rest: Expr = thread * per_line
        for extent in reversed(t.shape[1:]):
            at.insert(0, simplify(rest % extent, ranges))
            rest = rest // extent
        at = [simplify(rest, ranges), *at] if t.shape else []
        mask = ((simplify(thread, ranges), 0, lines),)
        prefetches.append(Op(PREFETCH, (v,), attrs=(("at", tuple(at)), ("mask", mask), ("early", True))))
    return func.with_body(func.body.with_ops((*prefetches, *func.body.ops))) if prefetches else func


def _rewritten(
    func: Func, releases: bool, started: bool, release: Release, held: tuple[int, int] | None
) -> Func:
    body = func.body if started else without_early_prefetches(func.body)
    if releases and not releases_dependents(func):
        ops = body.ops
        wait = next(i for i, op in enumerate(ops) if op.name == WAIT)
        at = 0 if release == "first" else wait + 1
        body = body.with_ops((*ops[:at], Op(RELEASE), *ops[at:]))
        func = func if held is None else func.with_attrs(**{HOLDERS: held})
    return func if body is func.body else func.with_body(body)


def without_early_prefetches(body: Block) -> Block:
    """The body of a kernel of which no launch starts early."""
    return body.with_ops(tuple(op for op in body.ops if not _only_prefetches_early(op)))


def _only_prefetches_early(op: Op) -> bool:
    """Whether the op does nothing but prefetch what only kernels that start early should."""
    inside = [op, *walk(op.body)] if op.body is not None else [op]
    prefetches = [o for o in inside if o.name == PREFETCH]
    return (
        bool(prefetches)
        and all(o["early"] for o in prefetches)
        and all(o.name in (PREFETCH, *_CONTROL) or o.level == "scalar" for o in inside)
    )
