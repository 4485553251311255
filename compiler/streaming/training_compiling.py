"""Compile a training step whose state does not fit into device memory: layers, plans, a store of state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compilation.lowering import pass_context, training_step
from tilewright.devices.targets import Target, resolve_target
from tilewright.ir import InputError, Module
from tilewright.ir.interpreter.step import initial_state
from tilewright.ir.nodes import INFERENCE
from tilewright.passes import run_pipeline
from tilewright.passes.graph.distribute.pipeline.step_places import StepFlow
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.passes.pipelines import GRAPH, SAVED
from tilewright.runtime.storage.generations import (
    RECORD_NAME,
    GenerationStore,
    create_store,
    open_store,
    read_record,
)
from tilewright.runtime.storage.source import IoOptions
from tilewright.streaming.executable import StreamOptions
from tilewright.streaming.memory_size import memory_bytes
from tilewright.streaming.opening import check_streaming
from tilewright.streaming.parts.schedule import SCHEDULES
from tilewright.streaming.parts.training_forms import Form, HostState
from tilewright.streaming.parts.training_parts import resets
from tilewright.streaming.step_plans import StepCompiler
from tilewright.streaming.store_file import PlannedSteps, StoreFolder, write_store
from tilewright.streaming.training_executable import StreamedStep
from tilewright.streaming.training_planning import PlannedTraining, plan_training

#: runs of a step within which sums of gradients have to be used up
MOST_RUNS = 4096


def compile_step(
    module: Module,
    target: str,
    *,
    memory_cap: int | str,
    folder: str | Path | None,
    host_memory: int | str | None,
    io: IoOptions | None,
    schedule: str,
    resume: bool,
    options: Mapping[str, Any],
) -> StreamedStep:
    """Compile a module with state; see `tilewright.streaming.compile`."""
    cap = memory_bytes(memory_cap)
    host_bytes = None if host_memory is None else memory_bytes(host_memory, where="host_memory")
    if schedule not in (*SCHEDULES, "auto"):
        raise InputError(f"expected a schedule among {', '.join(SCHEDULES)}, auto, got {schedule!r}")
    if resume and folder is None:
        raise InputError("expected folder= with resume=True: a temporary folder holds nothing to resume from")
    resolved = resolve_target(target)
    check_streaming(resolved.kind)
    values = initial_state(module)
    place = StoreFolder(folder)
    try:
        record = place.path / RECORD_NAME
        if record.exists() and not resume:
            raise InputError(
                f"it holds the state of a training run after {read_record(place.path).number - 1} steps: "
                "pass resume=True to go on with it, or name another folder",
                where=str(place.path),
            )
        if resume and not record.exists():
            raise InputError("no training run to resume in this folder", where=str(place.path))
        planned = _planned(module, resolved, cap, place, values, options)
        start = {n: np.asarray(values[n]) for n in planned.cut.host.names}
        io = io or IoOptions()
        store = _store(place.path, planned, values, start, io, resume)
        try:
            run = StreamOptions(cap, host_bytes, io)
            exe = StreamedStep(planned, str(resolved), place, store, run, schedule)
        except BaseException:
            store.close()
            raise
        if any(f.name == INFERENCE for f in module.funcs):
            exe.network = partial(_network, module, resolved, cap, store, options)
        return exe
    except BaseException:
        place.close()
        raise


def _planned(
    module: Module,
    target: Target,
    cap: int,
    place: StoreFolder,
    values: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
    only: frozenset[str] | None = None,
) -> PlannedTraining:
    """Cut, compile, and write the constants. values: of the state at first; only: see `HostState`."""
    step = _prepared(module, target, str(options.get("precision", "fp32")))
    host = HostState(step, only)
    forms = group_forms(step, host, {n: np.asarray(values[n]) for n in host.names})
    compiler = StepCompiler(target, options)
    planned = plan_training(step, host, forms, cap, compiler)
    shown: Any = [part for form in planned.cut.parts for part in form.parts]
    steps = PlannedSteps(shown, list(planned.plans), [planned.plan_of[k] for k in planned.plan_of])
    write_store(place.store, steps, compiler)
    return planned.with_plans(steps.plans, steps.plan_of)


def _network(
    module: Module, target: Target, cap: int, store: GenerationStore, options: Mapping[str, Any]
) -> tuple[PlannedTraining, StoreFolder]:
    """The network of a step, whose weights are state of the step."""
    network = module.inference()
    step = promoted(network, [n for n in network.constants if n in module.state_names])
    place = StoreFolder(None)
    try:
        return _planned(step, target, cap, place, store.host, options, frozenset(store.host)), place
    except BaseException:
        place.close()
        raise


def _prepared(module: Module, target: Target, precision: str) -> Module:
    """Graph-level algebra and the choice of what is saved before cutting, as for steps compiled whole."""
    context = pass_context(target)
    step = training_step(module, precision, context)
    return run_pipeline(step, GRAPH + SAVED, context)


def group_forms(step: Module, host: HostState, state: Mapping[str, np.ndarray]) -> list[Form]:
    """The forms of the runs up to an update: the first run, or the first that uses up sums of gradients.

    Raises InputError for a step that adds up more runs than `MOST_RUNS`.
    """
    forms: list[Form] = []
    known: dict[Form, bool] = {}
    while len(forms) < MOST_RUNS:
        state, form = host.after(state)
        forms.append(form)
        if form not in known:
            known[form] = form_resets(step, host, form)
        if known[form] or (len(forms) == 1 and not summing(step, host, form)):
            return forms
    raise InputError(
        f"expected a step that updates its parameters within {MOST_RUNS} runs", where=f"@{step.name}"
    )


def summing(step: Module, host: HostState, form: Form) -> bool:
    """Whether another form than `form` sets state to zero that this one changes."""
    return any(
        form_resets(step, host, tuple(not c if i == k else c for i, c in enumerate(form)))
        for k in range(len(form))
    )


def form_resets(step: Module, host: HostState, form: Form) -> bool:
    """Return whether a form sets some state to zero."""
    return bool(resets(step, StepFlow(host.decided(form), host.names)))


def _store(
    folder: Path,
    planned: PlannedTraining,
    values: Mapping[str, np.ndarray],
    host: Mapping[str, np.ndarray],
    io: IoOptions,
    resume: bool,
) -> GenerationStore:
    tensors = planned.cut.tensors
    if not resume:
        for t in tensors:
            if t.scratch and t.spec.name in values and np.any(values[t.spec.name]):
                raise InputError(f"expected '{t.spec.name}', a sum of gradients, to start as zeros")
        return create_store(folder, tensors, lambda name: values[name], host, io)
    store = open_store(folder, tensors, io)
    if {n: a.dtype for n, a in store.host.items()} != {n: a.dtype for n, a in host.items()}:
        store.close()
        raise InputError("expected the counters of this step, got those of another", where=str(folder))
    return store
