"""Pass join-gates: a product and the maps that combine its columns become one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Func, Level, Module, Op, Ref, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.gated.choice import choose_gated
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.chains.estimates import alone_s
from tilewright.passes.tensor.chains.merge import callee_of, joinable_kernels, merged, reshapes_filled

#: the kernel is taken where its estimate is below this share of those of its parts
CLEARLY = 0.9


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_gates(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Make one kernel of a product and the maps that read its columns by unit, such as the gates of an LSTM.

    rewrite:  %g = call(%h, %w, callee = @product); %s, %c = call(%g, %x, callee = @maps)
        -->   %s, %c = call(%h, %w, %x, callee = @maps_gates)

    An epilogue has one column of a product at a time; maps that need several wait for all of its blocks, in
    a launch of their own. In a kernel of the family `gated` a thread has all columns of its units. A product
    whose maps are an epilogue already is taken where that family is faster, as in backward passes. when:
    `auto` where the estimate is below 0.9 of the sum of the kernels apart, `always` where legal, `never`.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    kernels = joinable_kernels(module)
    readers: dict[Value, list[Op]] = {}
    for op in module.main.body.ops:
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(op)
    choice = _Choice(readers, kernels, ctx, hardware, when == "always")
    names = {f.name for f in module.funcs}
    instead: dict[Op, Op | None] = {}
    for op in module.main.body.ops:
        if op in instead or not _has_product(_kernel_of(op, kernels)):
            continue
        maps = _maps_behind(op, readers, kernels, instead)
        for calls in ([(op, maps)] if maps is not None else []) + [(op,)]:
            call = choice.call_of(calls, names)
            if call is not None:
                instead |= dict.fromkeys(calls)
                instead[calls[-1]] = call
                break
    return _with_calls(module, instead, choice.made) if instead else module


class _Choice:
    """Decides about calls; calls with the same text of kernels share one."""

    def __init__(
        self,
        readers: Mapping[Value, Sequence[Op]],
        kernels: dict[str, Func],
        ctx: PassContext,
        hardware: Hardware,
        always: bool,
    ) -> None:
        self.readers, self.kernels, self.ctx = readers, kernels, ctx
        self.hardware, self.always = hardware, always
        self.chosen: dict[str, Func | None] = {}

    @property
    def made(self) -> tuple[Func, ...]:
        """The kernels that are taken."""
        return tuple(f for f in self.chosen.values() if f is not None)

    def call_of(self, calls: Sequence[Op], names: set[str]) -> Op | None:
        """The one call that stands for all; None where they stay. A new kernel's name is added to `names`."""
        if reshapes_filled(calls, self.kernels):
            return None
        outputs = {r for c in calls for r in c.results if {*self.readers.get(r, ())} - {*calls}}
        name = f"{callee_of(calls[-1])}_gates"
        kernel, arguments, returned = merged(calls, self.kernels, outputs, name)
        text = kernel_text(kernel)
        if text not in self.chosen:
            chosen = self._kernel(kernel, calls)
            if chosen is not None:
                chosen = replace(chosen, name=numbered(name, names))
                names.add(chosen.name)
            self.chosen[text] = chosen
        chosen = self.chosen[text]
        if chosen is None:
            return None
        attrs = (("callee", Ref(chosen.name)),)
        return Op("tensor.call", tuple(arguments), attrs, tuple(returned), None, calls[-1].loc)

    def _kernel(self, kernel: Func, calls: Sequence[Op]) -> Func | None:
        """The kernel of the family; None where there is none, or the calls are as fast."""
        chosen = choose_gated(kernel, self.hardware)
        if isinstance(chosen, str):
            return None
        apart_s = sum(alone_s(self.kernels[callee_of(c)], self.ctx, self.hardware) for c in calls)
        if not self.always and estimate_of(chosen) >= CLEARLY * apart_s:
            return None
        return chosen


def _kernel_of(op: Op, kernels: Mapping[str, Func]) -> Func | None:
    """The kernel that a call runs, where it may be joined."""
    plain = op.name == "tensor.call" and [name for name, _ in op.attrs] == ["callee"]
    return kernels.get(callee_of(op)) if plain else None


def _has_product(kernel: Func | None) -> bool:
    """Return whether a kernel has one product, and nothing beside it but maps."""
    names = [] if kernel is None else [op.name for op in kernel.body.ops[:-1]]
    return names.count("tensor.contract") == 1 and {*names} <= {"tensor.contract", "tensor.map"}


def _maps_behind(
    product: Op,
    readers: Mapping[Value, Sequence[Op]],
    kernels: Mapping[str, Func],
    taken: Mapping[Op, Op | None],
) -> Op | None:
    """The call that reads what a product gives first, where it is one of maps alone; None where it is not.

    Others read it later in the program, where the call of both has been made.
    """
    firsts = [readers[v][0] for v in product.results if v in readers]
    if not firsts or any(op is not firsts[0] for op in firsts):
        return None
    kernel = _kernel_of(firsts[0], kernels)
    if kernel is None or firsts[0] in taken or {op.name for op in kernel.body.ops[:-1]} != {"tensor.map"}:
        return None
    return firsts[0]


def _with_calls(module: Module, instead: Mapping[Op, Op | None], made: Sequence[Func]) -> Module:
    """The module with other calls in the place of some, or none."""
    ops = tuple(new for op in module.main.body.ops if (new := instead.get(op, op)) is not None)
    main = module.main.with_body(module.main.body.with_ops(ops))
    called = {callee_of(op) for op in ops if op.name == "tensor.call"}
    kept = [main if f is module.main else f for f in module.funcs if f is module.main or f.name in called]
    return module.with_funcs((*kept, *(f for f in made if f.name in called)))
