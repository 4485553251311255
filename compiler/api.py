"""The public functions: `compile` and what it is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tilewright.compilation.garbage_collection import collections_paused
from tilewright.compilation.lowering import Lowered, lower, training_step
from tilewright.compilation.memory_budget import exceeds_memory_budget
from tilewright.compilation.option_values import (
    PARTITIONER,
    ConvAlgorithm,
    Layouts,
    Partitioner,
    Precision,
    Relays,
    Tune,
    Workspace,
)
from tilewright.compilation.own_passes import OwnPasses, PassesOption
from tilewright.compilation.planning import constants_of
from tilewright.compilation.report_facts import compilation_facts, parameter_facts
from tilewright.compilation.settled_relays import relay_facts, settled_relays
from tilewright.devices.opening import open_device
from tilewright.devices.targets import Target, resolve_target
from tilewright.ir import Constants, InputError, Level, Module
from tilewright.ir.errors import expect
from tilewright.ir.interpreter.step import check_initial_state
from tilewright.ir.nodes import INFERENCE
from tilewright.measuring.stream_choice import (
    check_policy,
    choose_streams,
    kernel_costs,
    relays_saving_s,
    work_of,
)
from tilewright.passes import Instrument, PassContext, run_pipeline
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.passes.pipelines import GRAPH, PRECISIONS
from tilewright.refused_kernels import Choose, built
from tilewright.request import CompileRequest
from tilewright.running.buckets import Buckets, ShapesOption
from tilewright.running.executable import LEVELS, Artifact, Executable
from tilewright.running.reference import ReferenceExecutable, reference_executable
from tilewright.running.shaped import shaped_executable
from tilewright.running.state import HoldsState
from tilewright.running.stateful import executable_of
from tilewright.running.step_rules import training_facts

if TYPE_CHECKING:
    from tilewright.measured_choice import MeasuredChoice


def compile(
    module: Module,
    target: str | Target = "auto",
    *,
    tune: Tune = "model",
    tuning_db: str | os.PathLike[str] | None = None,
    budget: float | str | None = None,
    precision: Precision = "fp32",
    libraries: bool = True,
    conv_algorithm: ConvAlgorithm = "auto",
    workspace: Workspace = "network",
    partitioner: Partitioner = PARTITIONER,
    layouts: Layouts = "cut",
    streams: str | None = None,
    relays: Relays = "auto",
    instances: int = 1,
    shapes: Sequence[ShapesOption] | None = None,
    progress: bool | None = None,
    passes: PassesOption = (),
    instruments: Sequence[Instrument] = (),
    verify_each: bool = False,
) -> Executable:
    """Compile a module (graph level, or tensor level with or without chosen parameters) for a target.

    target: `auto` (CUDA where a GPU is present, else OpenCL), `cuda`, `cuda:sm_90a`, `opencl`, `emulator`,
        `reference` or `null`; or a target that was resolved before.
    tune: `model` chooses algorithms and implementation parameters by the cost model; `measure` times the
        algorithms of every convolution, then searches the parameters of every contraction kernel, on the
        device, which must be present.
    tuning_db: the file that keeps what `measure` measures; what it has is not measured again. By default
        `$TILEWRIGHT_TUNING_DB`, else a file in the cache folder.
    budget: how long `measure` may take, in seconds or as text (`60s`, `5min`): kernels that take more of the
        network's time get more of it. 0 uses what is known and measures nothing; None ends where the search
        sees no more gain.
    precision: `fp32`, whose long sums of products tensor cores may compute from pieces of the factors with no
        larger errors; `fp32-strict` keeps them to chains of float32 additions; `tf32` lets contractions round
        their factors to TF32 where tensor cores multiply them; `fp16` and `bf16` store tensors in 16 bits
        between ops and accumulate in float32. Inputs and outputs keep their types.
    libraries: whether kernels of cuBLASLt and cuDNN may compete with generated ones: with
        `tune="measure"` they are taken where they are measured to be faster. `tune="model"` measures nothing
        and so takes none, which the facts of the executable say (`exe.report()["libraries"]`).
    conv_algorithm: how convolutions are computed: `auto` takes an alternative (Winograd, FFT) where the cost
        model sees a clear gain or, with `tune="measure"`, where it is faster; a named one is used wherever it
        is legal.
    workspace: how much memory an algorithm may take that `auto` chooses: `network`, no more than the peak the
        network has without it; `any`, whatever is fastest.
    partitioner: which ops share a kernel: `rules`, each op joins the latest producer it fits; `exact`, the
        partition whose kernels take the least time by the cost model; `algorithm1`, pairs merged while that
        helps; `maximal`, products alone and all else in as few kernels as may be, with nothing computed again
        and no kernel for attention, as published for training ("Data Movement Is All You Need"); `none`.
    layouts: what chooses the order of dimensions in which intermediate values are stored: `cut`, channels
        first or last; `exact`, of all orders that some op can use, those of least time by the cost model,
        which takes longer to compile; `sssp`, shortest paths over the same costs, the baseline of `exact`.
    streams: which launches run side by side: `model` takes the policy whose replay the model finds shortest,
        `auto` the one whose replay is measured to be shortest on the device, which must be present; or a
        policy by name (`serial`, `exact`, `nimble`, `ios`, `limited(2)`, ...). By default as `tune` chooses.
    relays: whether a launch may start while the one before it runs, where a GPU has places for both: `auto`
        where the cost model sees a gain, `always` wherever both fit, `never`. Results are the same bits.
    instances: how many calls may run side by side, each with buffers of its own; weights are shared.
    shapes: compile for each of these input shapes: mappings of input names to shapes (the others keep
        theirs), or shapes where there is one input. Gives a `tilewright.running.shaped.ShapedExecutable`,
        which runs the plan for the shapes it is called with.
    passes: passes of your own, or the text of pipelines, by level or each at the one level it runs on:
        `[merge_relus(), "thread: my-pass"]`, `{"graph": "merge-relus, cse"}`. Those of the graph level run
        after the clean-up of the graph, those of the tensor level right after lowering, those of the thread
        level before barriers are placed; the module is verified after each. Kernels that are measured to
        choose parameters are made without those of the thread level.
    instruments: watch every pass. verify_each: verify the module after every pass.
    progress: draw a bar on stderr while kernels compile; by default where stderr is a terminal.

    Raises InputError for bad modules and arguments, WorkError where the work fails.
    """
    return _compiled(
        CompileRequest(
            target=target,
            tune=tune,
            tuning_db=tuning_db,
            budget=budget,
            precision=precision,
            libraries=libraries,
            conv_algorithm=conv_algorithm,
            workspace=workspace,
            partitioner=partitioner,
            layouts=layouts,
            streams=streams,
            relays=relays,
            instances=instances,
            shapes=shapes,
            progress=progress,
            passes=passes,
            instruments=instruments,
            verify_each=verify_each,
        ),
        module,
    )


def _compiled(request: CompileRequest, module: Module) -> Executable:
    # Whoever measures loads plans, whose memory cycles of objects could hold.
    measures = request.tune == "measure" or request.streams == "auto"
    with nullcontext() if measures else collections_paused():
        return _compiled_of(request, module)


def _compiled_of(request: CompileRequest, module: Module) -> Executable:
    expect(module, Module, "a Module")
    if any(f.level is Level.PLAN for f in module.funcs):
        raise InputError("expected a network, got a plan: it is compiled already", where=f"@{module.name}")
    if module.state_names:
        check_initial_state(module)
        if request.instances != 1:
            raise InputError(
                "expected one instance of a network with state, whose runs follow one another, "
                f"got {request.instances}"
            )
        if request.shapes is not None:
            raise InputError("expected one set of input shapes: a network with state has one plan")
    if request.shapes is not None:
        buckets, one = Buckets.of(module, request.shapes), replace(request, shapes=None)
        compiled = [_compiled(one, with_input_shapes(module, shapes)) for shapes in buckets.as_mappings()]
        return shaped_executable(buckets, compiled)
    request.check()
    policy = request.streams or ("auto" if request.tune == "measure" else "model")
    check_policy(policy)
    own = OwnPasses.of(request.passes)
    target = resolve_target(request.target)
    if target.kind == "reference":
        return _with_network(cast("Executable", _interpreted(request, module, own)), request, module)
    missing = [n for n in _constant_names(module) if n not in module.constants]
    if missing:
        raise InputError(
            f"{len(missing)} constants have no data: {', '.join(missing[:5])}", where=f"@{module.name}"
        )
    with _measured_choice(target, request) as measured:
        lowered, plan, refused = built(
            _lowering(request, module, target, own, measured),
            target.hardware,
            measured.choose if measured else None,
            progress=request.progress,
        )
        tuning = measured.facts() if measured else _untuned(target, libraries=request.libraries)
        entries = measured.texts() if measured else {}
    constants = constants_of(plan, lowered.thread.constants)
    work = work_of(plan, kernel_costs(lowered.records), target.hardware)
    device = partial(open_device, str(target))
    relays_s = relays_saving_s(plan, target.hardware)
    chosen = choose_streams(plan, policy, work, constants=constants, device=device, relays_s=relays_s)
    if exceeds_memory_budget(module, chosen.plan):  # what runs side by side shares no memory
        chosen = choose_streams(plan, "serial", work, constants=constants, device=device)
    timed = chosen.chosen_by == "measurement"
    lowered, settled = settled_relays(lowered, chosen.plan, timed=timed, progress=request.progress)
    chosen = replace(chosen, plan=settled)
    facts = compilation_facts(lowered)
    facts |= {"precision": request.precision, "partitioner": request.partitioner, **tuning}
    facts["relays"] = relay_facts(settled, request.relays)
    facts |= {"streams": chosen.facts(), "parameters": parameter_facts(module), **training_facts(module)}
    if own.pipelines:
        facts["passes"] = own.facts()
    if refused.facts:
        facts["refused"] = refused.facts
    levels = {name: replace(getattr(lowered, name), constants=Constants()) for name in LEVELS}
    artifact = Artifact(chosen.plan, constants, facts, levels, entries)
    return _with_network(executable_of(artifact, str(target), instances=request.instances), request, module)


def _lowering(
    request: CompileRequest, module: Module, target: Target, own: OwnPasses, measured: MeasuredChoice | None
) -> Callable[[Choose | None], Lowered]:
    """How a module is lowered with a choice of parameters."""
    return lambda choose: lower(
        module,
        target,
        request.instruments,
        precision=request.precision,
        conv_algorithm=request.conv_algorithm,
        workspace=request.workspace,
        partitioner=request.partitioner,
        layouts=request.layouts,
        relays=request.relays,
        own=own,
        verify_each=request.verify_each,
        choose=choose,
        choose_algorithms=measured.choose_algorithms if measured else None,
    )


def _with_network(executable: Executable, request: CompileRequest, module: Module) -> Executable:
    """The executable of a step with the way to compile the network that it trains."""
    if isinstance(executable, HoldsState) and any(f.name == INFERENCE for f in module.funcs):
        network = module.inference()
        names = [n for n in network.constants if n in module.state_names]
        executable.network = partial(_compiled, request, promoted(network, names))
    return executable


def _interpreted(request: CompileRequest, module: Module, own: OwnPasses) -> ReferenceExecutable:
    """The module as the interpreter runs it: after own passes of the graph level and those of a precision.

    Raises InputError for options that mean nothing without kernels.
    """
    request.check_interpreted()
    context = PassContext(instruments=tuple(request.instruments), verify_each=request.verify_each)
    precision = PRECISIONS[request.precision]
    levels = ("graph",) if module.main.level is Level.GRAPH else ()
    own.check(levels, "the reference target, which interprets the module")
    module = training_step(module, request.precision, context)
    module, _ = own.run(module, Level.GRAPH, GRAPH, context)
    if levels and "graph" in precision:
        module = run_pipeline(module, GRAPH.only("infer-shapes") + precision["graph"], context)
    return reference_executable(module)


def _measured_choice(
    target: Target, request: CompileRequest
) -> AbstractContextManager[MeasuredChoice | None]:
    """The choice that measures kernels on the device; it gives None where the model chooses."""
    if request.tune != "measure":
        return nullcontext()
    from tilewright.measured_choice import measured_choice  # slow to load, and only this needs it

    return measured_choice(target, request)


def _untuned(target: Target, *, libraries: bool) -> dict[str, Any]:
    """The entry on libraries of a report for which nothing was measured; empty where none could compete."""
    if not libraries or target.kind != "cuda":
        return {}
    from tilewright.libraries.report import facts_without_measurement  # as slow to load

    return {"libraries": facts_without_measurement()}


def _constant_names(module: Module) -> list[str]:
    named = [str(op["name"]) for f in module.funcs for op in f.body.ops if op.name.endswith(".constant")]
    return [*named, *module.state_names]
