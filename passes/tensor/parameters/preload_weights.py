"""Pass preload-weights: products have their weights in shared memory before they wait for other kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import prod
from operator import or_

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.costmodel.kernels.relays import Footprint, starts_early
from tilewright.ir import Func, InputError, Level, Module, Op, Ref, Value
from tilewright.ir.thread.shared_layout import shared_layout
from tilewright.ir.thread.tensor_maps import cluster_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import constant_positions
from tilewright.passes.kernels.decision import estimate_of, is_measured
from tilewright.passes.kernels.registry import template_of

WHEN = ("auto", "never")


@register_pass(Level.TENSOR, requires={"kernels-outlined", "parameters-chosen"})
def preload_weights(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Let products load all that a block needs of constant weights before they wait for other kernels.

    rewrite:  @dense(%x, %w, decision = kernel<parameters: (stages: 3)>)
        -->   @dense(%x, %w, decision = kernel<parameters: (stages: 5, preloaded: true)>)

    On GPUs that start kernels early the weights arrive while the kernel before runs, and the loop of the
    product asks for the other factor alone, for more of it at a time. It costs shared memory, so kernels take
    part of at most one block per multiprocessor, which then has at most half of it, and beside which the
    launches before and behind still fit. All other launches must come before or after it in any order: one
    that need not may run on another stream, and needs the room itself.

    when: `auto` where the model sees a gain, `never`.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or not isinstance(hardware, GpuHardware) or not starts_early(ctx.target):
        return module
    positions = constant_positions(module)
    products = {f.name for f in module.funcs if _reads_weights(f, positions.get(f.name, ()))}
    return _Launches(module, hardware).preloading(products) if products else module


def _reads_weights(kernel: Func, constant: tuple[int, ...]) -> bool:
    """Return whether a kernel could have its weights first, all of which are constant."""
    template = template_of(kernel)
    engine = None if template is None else template.contraction
    if engine is None or engine.preloaded is None or is_measured(kernel):
        return False
    product = next(op for op in kernel.body.ops if op.name == "tensor.contract")
    return any(kernel.params[i] is product.operands[1] for i in constant)


@dataclass(frozen=True)
class _Change:
    """A kernel in the place of one of that name, with what a replay takes less by the model."""

    name: str
    kernel: Func
    footprint: Footprint
    gain_s: float


class _Launches:
    """The launches of a module one after the other, and what each takes of a multiprocessor."""

    def __init__(self, module: Module, gpu: GpuHardware) -> None:
        self.module, self.gpu = module, gpu
        calls = [op for op in module.main.body.ops if op.name == "tensor.call"]
        self.launches = Counter(map(_callee, calls))
        found = {name: _footprint(module[name]) for name in self.launches}
        self.places = {name: place for name, place in found.items() if place is not None}
        #: kernels that have to wait for places, or beside which others could run
        self.apart = {_callee(op) for op in (*calls[:1], *_independent(module, calls))}
        #: kernels whose launches run beside one another
        self.beside: set[tuple[str, str]] = set()
        for u, v in pairwise(map(_callee, calls)):
            if u in self.places and v in self.places and self._fits(self.places, u, v):
                self.beside.add((u, v))
            else:
                self.apart.add(v)

    def preloading(self, products: Collection[str]) -> Module:
        """The module in which some of these kernels have their weights first, those that gain most."""
        funcs: dict[str, Func] = {}
        changes = (c for name in sorted(products) if name in self.places for c in self._changes(name))
        for change in sorted(changes, key=lambda c: c.gain_s, reverse=True):
            places = {**self.places, change.name: change.footprint}
            around = [pair for pair in self.beside if change.name in pair]
            if change.name not in funcs and all(self._fits(places, u, v) for u, v in around):
                funcs[change.name], self.places = change.kernel, places
        return self.module.with_funcs(tuple(funcs.get(f.name, f) for f in self.module.funcs))

    def _changes(self, name: str) -> Iterator[_Change]:
        """What a kernel could be of which a multiprocessor has one block, in half of its shared memory.

        Nothing for those apart.
        """
        func, template = self.module[name], template_of(self.module[name])
        engine = None if template is None else template.contraction
        make = None if engine is None else engine.preloaded
        for kernel in make(func, self.gpu) if make is not None and name not in self.apart else ():
            footprint = _footprint(kernel)
            assert footprint is not None
            half = 2 * footprint.shared_bytes_per_sm(self.gpu) <= self.gpu.smem_per_sm_bytes
            if half and footprint.blocks_per_sm(self.gpu) == 1:
                gain_s = self.launches[name] * (estimate_of(func) - estimate_of(kernel))
                yield _Change(name, kernel, footprint, gain_s)

    def _fits(self, places: Mapping[str, Footprint], u: str, v: str) -> bool:
        return places[u].fits_beside(places[v], self.gpu)


def _independent(module: Module, calls: Sequence[Op]) -> list[Op]:
    """The launches of a module beside which another one could run: it neither needs them nor is needed."""
    number = {op: i for i, op in enumerate(calls)}
    behind: dict[Value, int] = {}  # the launches, as a mask, that a value needs
    needed: list[int] = []
    for op in module.main.body.ops:
        mask = reduce(or_, (behind.get(v, 0) for v in op.operands), 0)
        if op in number:
            needed.append(mask)
            mask |= 1 << number[op]
        behind |= dict.fromkeys(op.results, mask)
    found: list[Op] = []
    by_all_later = -1
    for i, op in reversed(list(enumerate(calls))):
        if needed[i] != (1 << i) - 1 or not by_all_later >> i & 1:
            found.append(op)
        by_all_later &= needed[i]
    return found


def _callee(call: Op) -> str:
    ref = call["callee"]
    assert isinstance(ref, Ref)
    return ref.name


def _footprint(kernel: Func) -> Footprint | None:
    """What a launch of a kernel takes, without registers; None for kernels of libraries."""
    template = template_of(kernel)
    if template is None or template.lower is None:
        return None
    func = template.lower(kernel)
    grid, block = func.get("grid"), func.get("block")
    assert isinstance(grid, tuple)
    assert isinstance(block, int)
    blocks = prod(n for n in grid if isinstance(n, int))
    return Footprint(blocks, block, shared_layout(func).nbytes, 0, prod(cluster_of(func)))
