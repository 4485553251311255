"""Pass join-gates: a product and the maps that combine its columns become one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Literal

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Func, Level, Module, Op, Ref, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import producers, readers
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.gates import (
    CLEARLY,
    chosen_gates,
    has_product,
    joined_gates,
    maps_behind,
)
from tilewright.passes.tensor.joins.interleave_columns import interleaved
from tilewright.passes.tensor.joins.merge import joinable_kernels, kernel_of


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_gates(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Make one kernel of a product and the maps that read its columns by unit, such as the gates of an LSTM.

    rewrite:  %g = call(%h, %w, callee = @product); %s, %c = call(%g, %x, callee = @maps)
        -->   %s, %c = call(%h, %w, %x, callee = @maps_gates)

    An epilogue has one column of a product at a time; maps that need several wait for all of its blocks, in
    a launch of their own. In kernels of the families `gated` (tensor cores) and `gated_lanes` (float32) a
    thread has all columns of its units. A product whose maps are an epilogue already is taken where such a
    kernel is faster, as in backward passes. when: `auto` where the estimate is below 0.9 of the sum of the
    kernels apart, and below that of a product whose columns are interleaved (`interleave-columns`), `always`
    where legal, `never`.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    kernels, read_by = joinable_kernels(module), readers(module.main.body)
    choice = _Choice(module, read_by, kernels, ctx, hardware, when == "always")
    names = {f.name for f in module.funcs}
    instead: dict[Op, Op | None] = {}
    for op in module.main.body.ops:
        if op in instead or not has_product(kernel_of(op, kernels)):
            continue
        maps = maps_behind(op, read_by, kernels, instead)
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
        module: Module,
        readers: Mapping[Value, Sequence[Op]],
        kernels: dict[str, Func],
        ctx: PassContext,
        hardware: Hardware,
        always: bool,
    ) -> None:
        self.readers, self.kernels, self.ctx = readers, kernels, ctx
        self.producers = producers(module.main.body)
        self.hardware, self.always = hardware, always
        self.chosen: dict[tuple[str, bool], Func | None] = {}

    @property
    def made(self) -> tuple[Func, ...]:
        """The kernels that are taken."""
        return tuple(f for f in self.chosen.values() if f is not None)

    def call_of(self, calls: Sequence[Op], names: set[str]) -> Op | None:
        """The one call that stands for all; None where they stay. A new kernel's name is added to `names`."""
        name = f"{callee_of(calls[-1])}_gates"
        made = joined_gates(calls, self.readers, self.kernels, name)
        if made is None:
            return None
        kernel, arguments, returned = made
        text = kernel_text(kernel), self._has_constant_weights(calls[0])
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
        chosen = chosen_gates(kernel, self.hardware)
        if chosen is None or self.always:
            return chosen
        apart_s = sum(alone_s(self.kernels[callee_of(c)], self.ctx, self.hardware) for c in calls)
        seconds = estimate_of(chosen)
        if seconds >= CLEARLY * apart_s or seconds >= self._interleaved_s(kernel, calls[0]):
            return None
        return chosen

    def _interleaved_s(self, kernel: Func, product: Op) -> float:
        """Estimated seconds of the kernel as a product of interleaved columns; inf where it is none."""
        found = interleaved(kernel) if self._has_constant_weights(product) else None
        if found is None:
            return inf
        positions = (found.kernel.params.index(found.factor),)
        return alone_s(found.kernel.with_attrs(**{WEIGHTS: positions}), self.ctx, self.hardware) or inf

    def _has_constant_weights(self, call: Op) -> bool:
        """Return whether the second factor of a call's product is a constant."""
        kernel = self.kernels[callee_of(call)]
        (product,) = (op for op in kernel.body.ops if op.name == "tensor.contract")
        weights = product.operands[1]
        if weights not in kernel.params:
            return False
        made = self.producers.get(call.operands[kernel.params.index(weights)])
        return made is not None and made.name == "tensor.constant"


def _with_calls(module: Module, instead: Mapping[Op, Op | None], made: Sequence[Func]) -> Module:
    """The module with other calls in the place of some, or none."""
    ops = tuple(new for op in module.main.body.ops if (new := instead.get(op, op)) is not None)
    main = module.main.with_body(module.main.body.with_ops(ops))
    called = {callee_of(op) for op in ops if op.name == "tensor.call"}
    kept = [main if f is module.main else f for f in module.funcs if f is module.main or f.name in called]
    return module.with_funcs((*kept, *(f for f in made if f.name in called)))
