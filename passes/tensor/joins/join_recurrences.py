"""Pass join-recurrences: all steps of a recurrence become one kernel whose blocks keep the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Attr, Block, Func, InputError, Level, Module, Op, Pairs, Ref, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.resident.choice import choose_resident
from tilewright.passes.kernels.resident_tiles.choice import choose_resident_tiles
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import readers
from tilewright.passes.tensor.joins.gates import steps_s
from tilewright.passes.tensor.joins.merge import (
    joinable_kernels,
    merged,
    reshapes_filled,
)
from tilewright.passes.tensor.joins.recurrences import Recurrence, parts_of, recurrences

#: the kernel is taken where its estimate is below this share of those of its steps
CLEARLY = 0.9
WHEN = ("auto", "always", "never")
#: products of a batch, at most, whose steps one kernel's text has
MOST_PRODUCTS = 16
#: the attribute of @main with the recurrences that were found
RECURRENCES = "recurrences"


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_recurrences(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Make one kernel of the steps of a recurrence: weights stay in registers, blocks exchange the state.

    rewrite:  %g = call(%h, %w, callee = @product); %s = call(%g, %c, callee = @gates);
              %n = call(%s, %w, callee = @product); ...
        -->   %s, %t, ... = call(%h, %w, %c, ..., callee = @gates_steps)

    What a step is follows from data flow and index sets (`passes/tensor/joins/recurrences.py`,
    `passes/kernels/resident/view.py`): nothing names a network. when: `auto` where the estimate is below 0.9
    of the sum of the steps' kernels, gates at the ends of their products, `always` where legal, `never`. What
    became of each recurrence, or why it stays apart, is said in an attribute of @main that `explain` prints.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    seen: set[Op] = set()
    facts: list[Pairs] = []
    while True:
        kernels = joinable_kernels(module)
        found = next((r for r in recurrences(module.main, kernels) if r.products[0] not in seen), None)
        if found is None:
            return _with_facts(module, facts)
        seen.add(found.products[0])
        reason = "its values are read in other shapes"
        read_by = readers(module.main.body)
        for calls in dict.fromkeys((found.calls, found.inner)):
            if reshapes_filled(calls, kernels):
                continue
            chosen = _chosen(found, calls, module, kernels, hardware)
            if isinstance(chosen, str):
                reason = chosen
                continue
            seconds = sum(estimate_of(p.kernel) for p in chosen)
            separate = steps_s(calls, read_by, kernels, ctx, hardware)
            if when == "always" or seconds < CLEARLY * separate:
                for part in chosen:
                    name = numbered(part.kernel.name, {f.name for f in module.funcs})
                    module = _replaced(module, replace(part, kernel=replace(part.kernel, name=name)))
                    said = {"estimate_s": estimate_of(part.kernel), "separate_s": separate}
                    facts.append(Pairs.of({**_head(found, part.calls), "kernel": name, **said}))
                break
            reason = f"{1e6 * seconds:.1f} us are estimated, and {1e6 * separate:.1f} apart"
        else:
            facts.append(Pairs.of({**_head(found, found.calls), "reason": reason}))


@dataclass(frozen=True, eq=False)
class _Part:
    """Calls that become one kernel, with its arguments and results in @main."""

    calls: Sequence[Op]
    kernel: Func
    arguments: Sequence[Value]
    returned: Sequence[Value]


def _chosen(
    found: Recurrence, calls: Sequence[Op], module: Module, kernels: dict[str, Func], hardware: Hardware
) -> list[_Part] | str:
    """The kernels that calls of a recurrence become, or why they become none.

    One for all where registers keep each unit's weights, or several, in turn, for rows of a batch on tensor
    cores.
    """
    kernel, arguments, returned = joined(calls, kernels, module.main)
    whole = choose_resident(kernel, hardware)
    if not isinstance(whole, str):
        return [_Part(calls, whole, arguments, returned)]
    chosen = []
    for part in parts_of(found, calls, module.main, MOST_PRODUCTS):
        kernel, arguments, returned = joined(part, kernels, module.main)
        tiles = choose_resident_tiles(kernel, hardware)
        if isinstance(tiles, str):
            return f"{whole}; on tensor cores: {tiles}"
        chosen.append(_Part(part, tiles, arguments, returned))
    return chosen


def _head(found: Recurrence, calls: Sequence[Op]) -> dict[str, Attr]:
    """What is said of a recurrence, or of a part: its products, its calls, and where it begins."""
    products = [p for p in found.products if p in set(calls)]
    return {"products": len(products), "calls": len(calls), "first": str(found.products[0].loc or "")}


def _with_facts(module: Module, facts: Sequence[Pairs]) -> Module:
    """The module whose @main says which recurrences were found, and what became of each (`RECURRENCES`)."""
    known = module.main.get(RECURRENCES)
    before = known if isinstance(known, tuple) else ()
    new = [f for f in facts if f not in before]
    if not new:
        return module
    main = module.main.with_attrs(**{RECURRENCES: (*before, *new)})
    return module.with_funcs(tuple(main if f is module.main else f for f in module.funcs))


def joined(
    calls: Sequence[Op], kernels: dict[str, Func], main: Func
) -> tuple[Func, tuple[Value, ...], tuple[Value, ...]]:
    """Calls of a recurrence as one kernel, with its arguments and results in @main."""
    inside = set(calls)
    read = {v for op in main.body.ops if op not in inside for v in op.operands}
    outputs = {r for c in calls for r in c.results if r in read}
    name = f"{callee_of(calls[-1])}_steps"
    kernel, arguments, returned = merged(calls, kernels, outputs, name)
    return kernel, tuple(arguments), tuple(returned)


def _replaced(module: Module, part: _Part) -> Module:
    """The module with one call in place of all; what reads its results comes after it."""
    calls, kernel = part.calls, part.kernel
    inside, attrs = set(calls), (("callee", Ref(kernel.name)),)
    call = Op("tensor.call", tuple(part.arguments), attrs, tuple(part.returned), None, calls[-1].loc)
    waiting = {r for c in calls for r in c.results}
    first: list[Op] = []
    later: list[Op] = []
    for op in module.main.body.ops:
        if op in inside:
            continue
        if any(v in waiting for v in op.operands) or op.name == "tensor.return":
            waiting.update(op.results)
            later.append(op)
        else:
            first.append(op)
    ops = (*first, call, *later)
    main = module.main.with_body(Block(module.main.params, ops))
    called = {callee_of(op) for op in ops if op.name == "tensor.call"}
    rest = [main if f is module.main else f for f in module.funcs if f.name in called or f is module.main]
    return module.with_funcs((kernel, *rest))
