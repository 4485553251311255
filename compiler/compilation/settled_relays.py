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
from tilewright.ir.thread.launch_ops import RELEASE
from tilewright.passes.kernels.decision import is_measured
from tilewright.passes.thread.relay_launches import without_early_prefetches
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch, starts_early


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
        return lowered, plan
    thread = _without_relays(lowered.thread, plan, names)
    measured = [f.name for f in thread.funcs if is_measured(f)]
    changed = thread.with_funcs(
        tuple(f for f, g in zip(thread.funcs, lowered.thread.funcs, strict=True) if f is not g)
    )
    codes = build_codes(
        emit_kernels(changed, lowered.target), lowered.target, progress=progress, timed=measured
    )
    kernels = tuple(codes.get(kernel.name, kernel) for kernel in plan.kernels)
    return replace(lowered, thread=thread), validate(plan.replace(kernels=kernels))


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
    if silenced:
        body = body.with_ops(tuple(op for op in body.ops if op.name != RELEASE))
    return func if body is func.body else func.with_body(body)
