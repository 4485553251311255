"""Relays once kernels are compiled and streams are known: a kernel that may not release others stops it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.compilation.kernel_builds import build_codes, emit_kernels
from tilewright.compilation.lowering import Lowered
from tilewright.costmodel import GpuHardware
from tilewright.costmodel.kernels.relays import Footprint, may_relay
from tilewright.ir import Func, Level, Module
from tilewright.ir.hardware_facts import SHARED_UNIT
from tilewright.ir.thread.launch_ops import without_release
from tilewright.passes.kernels.decision import is_measured
from tilewright.passes.thread.relay_launches import without_early_prefetches
from tilewright.runtime.cuda.carve_out import wants_one_carve_out
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelCode, Launch, starts_early


def settled_relays(
    lowered: Lowered, plan: ExecutionPlan, *, timed: bool = False, progress: bool | None = None
) -> tuple[Lowered, ExecutionPlan]:
    """The network and its plan, in which no kernel releases launches whose blocks might crowd.

    plan: with the streams that it will run on. Relays were chosen for launches one after the other, without
    the registers of kernels: in a plan of several streams there are none, for what runs beside a launch takes
    places too, unless these streams were timed with them. Kernels that change are emitted and compiled again.
    """
    names = unfit_relays(plan, lowered.target.hardware, timed=timed)
    if not names:
        return lowered, with_room_for_two(plan, lowered.target.hardware)
    thread = _without_relays(lowered.thread, plan, names)
    measured = [f.name for f in thread.funcs if is_measured(f)]
    changed = thread.with_funcs(
        tuple(f for f, g in zip(thread.funcs, lowered.thread.funcs, strict=True) if f is not g)
    )
    sources = emit_kernels(changed, lowered.target)
    codes = build_codes(sources, lowered.target, progress=progress, timed=measured)
    kernels = tuple(codes.get(kernel.name, kernel) for kernel in plan.kernels)
    launches = tuple(
        replace(x, grid=sources[x.kernel].grid) if x.kernel in sources else x for x in plan.launches
    )
    settled = plan.replace(kernels=kernels, launches=launches)
    return replace(lowered, thread=thread), validate(with_room_for_two(settled, lowered.target.hardware))


def relay_facts(plan: ExecutionPlan, choice: str) -> dict[str, Any]:
    """For reports: what was asked for, and how many launches start before those before them have ended."""
    return {"choice": choice, "early": sum(starts_early(plan, launch) for launch in plan.launches)}


def unfit_relays(plan: ExecutionPlan, hardware: object, *, timed: bool = False) -> frozenset[str]:
    """The kernels of a plan that release launches whose blocks might crowd.

    timed: the plan was timed with its relays, so that several streams are no reason against them.
    """
    releasing = frozenset(k.name for k in plan.kernels if k.releases)
    several = len({launch.stream for launch in plan.launches}) > 1
    if not isinstance(hardware, GpuHardware) or (several and not timed):
        return releasing
    return frozenset(
        before.kernel
        for launch in plan.launches
        if plan.kernel_by_name[launch.kernel].overlaps
        for before in (plan.launches[dep] for dep in launch.deps)
        if before.kernel in releasing
        and not may_relay(footprint(plan, before), footprint(plan, launch), hardware)
    )


def with_room_for_two(plan: ExecutionPlan, hardware: object) -> ExecutionPlan:
    """The plan in which launches behind those of many blocks have room for two on a multiprocessor.

    Blocks go to the multiprocessor that has places for most of them. Of a launch of several blocks per
    multiprocessor some have one more than others, so that two blocks of the next launch may find more places
    on one of the others than there are beside the first ones. Kernels of at most one block per multiprocessor
    that follow such a launch ask for a third of its shared memory, if their launches still fit side by side:
    there are as many places everywhere then.
    """
    several = len({launch.stream for launch in plan.launches}) > 1
    if several or not isinstance(hardware, GpuHardware) or not wants_one_carve_out(plan):
        return plan  # kernels of other plans have the cache instead
    early = (v for v in plan.launches if starts_early(plan, v))
    pairs = [(plan.launches[u], v) for v in early for u in v.deps]
    least = -(-(hardware.smem_per_sm_bytes // 3 + 1) // SHARED_UNIT) * SHARED_UNIT
    least -= hardware.smem_reserved_per_block_bytes
    places = {x.kernel: footprint(plan, x) for pair in pairs for x in pair}
    behind_many = {v.kernel for u, v in pairs if places[u.kernel].blocks > hardware.sm_count}
    alone = {n for n in behind_many if places[n].blocks_per_sm(hardware) == 1}
    small = {n for n in alone if places[n].shared_bytes < least}

    def beside(u: str, v: str) -> bool:
        first, second = (replace(places[n], shared_bytes=least) if n in small else places[n] for n in (u, v))
        return first.fits_beside(second, hardware)

    while crowded := {
        n
        for u, v in ((u.kernel, v.kernel) for u, v in pairs)
        if not beside(u, v) and places[u].fits_beside(places[v], hardware)
        for n in small.intersection((u, v))
    }:
        small -= crowded
    if not small:
        return plan
    more = {n: least - places[n].shared_bytes for n in small}
    return plan.replace(
        kernels=tuple(_asking_for(k, more[k.name]) if k.name in more else k for k in plan.kernels),
        launches=tuple(
            replace(x, shared_bytes=x.shared_bytes + more[x.kernel]) if x.kernel in more else x
            for x in plan.launches
        ),
    )


def _asking_for(kernel: KernelCode, more: int) -> KernelCode:
    """The kernel whose launches take so many bytes of shared memory more than its text needs."""
    if kernel.contract is None:
        return kernel
    asked = kernel.contract.shared_bytes + more
    return replace(kernel, contract=replace(kernel.contract, shared_bytes=asked))


def footprint(plan: ExecutionPlan, launch: Launch) -> Footprint:
    """Return what a launch of a compiled kernel takes of a GPU."""
    resources = plan.kernel_by_name[launch.kernel].resources
    shared_bytes = launch.shared_bytes + (resources.shared_bytes if resources else 0)
    registers = resources.registers if resources else 0
    return Footprint(prod(launch.grid), launch.block, shared_bytes, registers, prod(launch.cluster))


def _without_relays(module: Module, plan: ExecutionPlan, names: Collection[str]) -> Module:
    """The module whose kernels of these names release nothing; what then starts late prefetches as such."""
    silent = plan.replace(
        kernels=tuple(replace(k, releases=k.releases and k.name not in names) for k in plan.kernels)
    )
    started = {launch.kernel for launch in plan.launches if starts_early(silent, launch)}
    return module.with_funcs(
        tuple(
            _changed(f, silenced=f.name in names, started=f.name in started) if f.level is Level.THREAD else f
            for f in module.funcs
        )
    )


def _changed(func: Func, *, silenced: bool, started: bool) -> Func:
    body = func.body if started else without_early_prefetches(func.body)
    new = func if body is func.body else func.with_body(body)
    return without_release(new) if silenced else new
