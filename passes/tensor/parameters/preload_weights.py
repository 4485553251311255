"""Pass preload-weights: products have their weights in shared memory before they wait for other kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import or_

from tilewright.costmodel import GpuHardware, Hardware, load_hardware
from tilewright.costmodel.kernels.relays import Footprint, starts_early
from tilewright.ir import Func, InputError, Level, Module, Op, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import constant_positions
from tilewright.passes.analysis.work.footprints import footprint_of
from tilewright.passes.kernels.decision import estimate_of, is_measured
from tilewright.passes.kernels.registry import template_of

WHEN = ("auto", "never")
_Maker = Callable[[Func, Hardware], list[Func]]


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
    found = {f.name: _maker(f, positions.get(f.name, ())) for f in module.funcs}
    makers = {name: maker for name, maker in found.items() if maker is not None}
    return _Launches(module, hardware).preloading(makers) if makers else module


def _maker(kernel: Func, constant: tuple[int, ...]) -> _Maker | None:
    """What gives a kernel its weights first; None where they are not constant, or it was measured."""
    template = template_of(kernel)
    engine = None if template is None else template.contraction
    if engine is None or is_measured(kernel):
        return None
    product = next(op for op in kernel.body.ops if op.name == "tensor.contract")
    constants = [kernel.params[i] for i in constant]
    return engine.preloaded if any(v is product.operands[1] for v in constants) else None


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
        names = list(map(callee_of, calls))
        self.launches, self.pairs = Counter(names), set(pairwise(names))
        #: kernels that have nobody to wait for, or beside which others could run
        self.apart = {*names[:1], *map(callee_of, _independent(module, calls))}
        #: of kernels that were asked about
        self.places: dict[str, Footprint | None] = {}

    def preloading(self, makers: Mapping[str, _Maker]) -> Module:
        """The module in which some of these kernels have their weights first, those that gain most."""
        known = sorted(makers.keys() & self.launches.keys() - self.apart)
        beside = {name: found for name in known if (found := self._beside(name)) is not None}
        changes = [c for name in beside for c in self._changes(name, makers[name])]
        funcs: dict[str, Func] = {}
        for change in sorted(changes, key=lambda c: c.gain_s, reverse=True):
            before, self.places = self.places, {**self.places, change.name: change.footprint}
            if change.name not in funcs and all(self._fits(u, v) for u, v in beside[change.name]):
                funcs[change.name] = change.kernel
            else:
                self.places = before
        return self.module.with_funcs(tuple(funcs.get(f.name, f) for f in self.module.funcs))

    def _beside(self, name: str) -> list[tuple[str, str]] | None:
        """The pairs of launches with this kernel that run side by side; None where it waits for places."""
        pairs = {pair for pair in self.pairs if name in pair}
        side_by_side = [pair for pair in pairs if self._fits(*pair)]
        waits = any(v == name for _, v in pairs.difference(side_by_side))
        return None if waits else side_by_side

    def _changes(self, name: str, make: _Maker) -> Iterator[_Change]:
        """What a kernel could be of which a multiprocessor has one block, in half of its shared memory."""
        func = self.module[name]
        for kernel in make(func, self.gpu):
            footprint = _footprint(kernel)
            assert footprint is not None
            half = 2 * footprint.shared_bytes_per_sm(self.gpu) <= self.gpu.smem_per_sm_bytes
            if half and footprint.blocks_per_sm(self.gpu) == 1:
                gain_s = self.launches[name] * (estimate_of(func) - estimate_of(kernel))
                yield _Change(name, kernel, footprint, gain_s)

    def _fits(self, u: str, v: str) -> bool:
        first, second = self._place(u), self._place(v)
        return first is not None and second is not None and first.fits_beside(second, self.gpu)

    def _place(self, name: str) -> Footprint | None:
        if name not in self.places:
            self.places[name] = _footprint(self.module[name])
        return self.places[name]


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


def _footprint(kernel: Func) -> Footprint | None:
    """What a launch of a kernel takes; None for kernels of libraries."""
    template = template_of(kernel)
    return None if template is None or template.lower is None else footprint_of(template.lower(kernel))
