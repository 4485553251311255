"""The public functions: `compile` and what it is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from tilewright.choices import PARTITIONER, ConvAlgorithm, Partitioner, Precision, Tune, Workspace
from tilewright.costmodel.hardware.calibration import calibrated_constants
from tilewright.costmodel.hardware.provenance import borrowed_constants
from tilewright.driver import Lowered, build, lower
from tilewright.executable import Artifact, Executable, clear_errors
from tilewright.ir import Func, InputError, Level, Module, Pairs, show
from tilewright.ir.given import given
from tilewright.libraries.matching.convolution_facts import convolution_facts
from tilewright.libraries.matching.layout_facts import layout_facts
from tilewright.own_passes import GivenPasses, OwnPasses
from tilewright.passes import Instrument, PassContext, run_pipeline
from tilewright.passes.kernels.registry import is_generated
from tilewright.passes.pipelines import GRAPH, PRECISIONS
from tilewright.planning import constants_of
from tilewright.running.buckets import GivenShapes
from tilewright.running.devices import open_device
from tilewright.running.reference import ReferenceExecutable
from tilewright.running.shaped import compile_shapes
from tilewright.targets import Target, resolve_target
from tilewright.tuning.budget import budget_seconds
from tilewright.tuning.stream_choice import check_policy, choose_streams, kernel_costs, work_of

if TYPE_CHECKING:
    from tilewright.measured_choice import MeasuredChoice

#: options of `compile` that only kernels have, with the values that ask for nothing
_OF_KERNELS = {
    "tune": "model",
    "conv_algorithm": "auto",
    "workspace": "network",
    "partitioner": PARTITIONER,
    "streams": None,
}


def compile(
    module: Module,
    target: str = "auto",
    *,
    tune: Tune = "model",
    tuning_db: str | os.PathLike[str] | None = None,
    budget: float | str | None = None,
    precision: Precision = "fp32",
    libraries: bool = True,
    conv_algorithm: ConvAlgorithm = "auto",
    workspace: Workspace = "network",
    partitioner: Partitioner = PARTITIONER,
    streams: str | None = None,
    instances: int = 1,
    shapes: Sequence[GivenShapes] | None = None,
    progress: bool | None = None,
    passes: GivenPasses = (),
    instruments: Sequence[Instrument] = (),
    verify_each: bool = False,
) -> Executable:
    """Compile a module (graph level, or tensor level with or without chosen parameters) for a target.

    target: `auto` (CUDA where a GPU is present, else OpenCL), `cuda`, `cuda:sm_90a`, `opencl`, `emulator`,
        `reference` or `null`.
    tune: `model` chooses algorithms and implementation parameters by the cost model; `measure` times the
        algorithms of every convolution, then searches the parameters of every contraction kernel, on the
        device, which must be present.
    tuning_db: the file that keeps what `measure` measures; what it has is not measured again. By default
        `$TILEWRIGHT_TUNING_DB`, else a file in the cache folder.
    budget: how long `measure` may take, in seconds or as text (`60s`, `5min`): kernels that take more of the
        network's time get more of it. 0 uses what is known and measures nothing; None ends where the search
        sees no more gain.
    precision: `fp32`; `tf32` lets contractions round their factors to TF32 where tensor cores multiply them;
        `fp16` and `bf16` store tensors in 16 bits between ops and accumulate in float32. Inputs and outputs
        keep their types.
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
        helps; `none`.
    streams: which launches run side by side: `model` takes the policy whose replay the model finds shortest,
        `auto` the one whose replay is measured to be shortest on the device, which must be present; or a
        policy by name (`serial`, `exact`, `nimble`, `ios`, `limited(2)`, ...). By default as `tune` chooses.
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
    asked = dict(locals())
    given(module, Module, "a Module")
    if any(f.level is Level.PLAN for f in module.funcs):
        raise InputError("expected a network, got a plan: it is compiled already", where=f"@{module.name}")
    if shapes is not None:
        del asked["module"]
        return compile_shapes(partial(compile, **{**asked, "shapes": None}), module, shapes)
    check_options(asked)
    policy = streams or ("auto" if tune == "measure" else "model")
    check_policy(policy)
    own = OwnPasses.of(passes)
    resolved = resolve_target(target)
    if resolved.kind == "reference":
        context = PassContext(instruments=tuple(instruments), verify_each=verify_each)
        return cast("Executable", _interpreted(module, asked, own, context))
    missing = [n for n in _constant_names(module) if n not in module.constants]
    if missing:
        raise InputError(
            f"{len(missing)} constants have no data: {', '.join(missing[:5])}", where=f"@{module.name}"
        )
    with _measured_choice(resolved, asked) as measured:
        lowered = lower(
            module,
            resolved,
            instruments,
            precision=precision,
            conv_algorithm=conv_algorithm,
            workspace=workspace,
            partitioner=partitioner,
            own=own,
            verify_each=verify_each,
            choose=measured.choose if measured else None,
            choose_algorithms=measured.choose_algorithms if measured else None,
        )
        tuning = measured.facts() if measured else _untuned(resolved, libraries=libraries)
        entries = measured.texts() if measured else {}
    plan = build(lowered, resolved, progress=progress)
    constants = constants_of(plan, lowered.thread.constants)
    texts = {"graph": show(lowered.graph), "tensor": show(lowered.tensor), "thread": show(lowered.thread)}
    texts |= entries
    facts = {**facts_of(lowered, resolved), "precision": precision, "partitioner": partitioner, **tuning}
    work = work_of(plan, kernel_costs(facts["kernels"]), resolved.hardware)
    with clear_errors():
        device = partial(open_device, str(resolved))
        chosen = choose_streams(plan, policy, work, constants=constants, device=device)
    facts["streams"] = chosen.facts()
    if own.pipelines:
        facts["passes"] = own.facts()
    return Executable(Artifact(chosen.plan, constants, texts, facts), str(resolved), instances=instances)


def _interpreted(
    module: Module, asked: Mapping[str, Any], own: OwnPasses, context: PassContext
) -> ReferenceExecutable:
    """What the interpreter runs: the module after own passes of the graph level and those of a precision.

    Raises InputError for options that mean nothing without kernels.
    """
    for name, default in _OF_KERNELS.items():
        if asked[name] != default:
            raise InputError(
                f"expected a target with kernels with {name}={asked[name]!r}, got reference, which interprets"
            )
    precision = PRECISIONS[asked["precision"]]
    levels = ("graph",) if module.main.level is Level.GRAPH else ()
    own.check(levels, "the reference target, which interprets the module")
    module, _ = own.run(module, Level.GRAPH, GRAPH, context)
    if levels and "graph" in precision:
        module = run_pipeline(module, GRAPH.only("infer-shapes") + precision["graph"], context)
    return ReferenceExecutable(module)


def _measured_choice(
    target: Target, asked: Mapping[str, Any]
) -> AbstractContextManager[MeasuredChoice | None]:
    """What measures kernels on the device; None where the model chooses."""
    if asked["tune"] != "measure":
        return nullcontext()
    from tilewright.measured_choice import measured_choice  # slow to load, and only this needs it

    return measured_choice(target, asked)


def _untuned(target: Target, *, libraries: bool) -> dict[str, Any]:
    """What a report says of libraries where nothing is measured."""
    if not libraries or target.kind != "cuda":
        return {}
    from tilewright.libraries.choice import facts_without_measurement  # as slow to load

    return {"libraries": facts_without_measurement()}


def check_options(asked: Mapping[str, Any]) -> None:
    """Raise InputError naming the first option of `compile` that has no such value."""
    choices = {
        "tune": get_args(Tune),
        "precision": tuple(PRECISIONS),
        "conv_algorithm": get_args(ConvAlgorithm),
        "workspace": get_args(Workspace),
        "partitioner": get_args(Partitioner),
    }
    for name, known in choices.items():
        if asked[name] not in known:
            raise InputError(f"expected {name} among {', '.join(known)}, got {asked[name]!r}")
    if asked["tuning_db"] is not None and asked["tune"] != "measure":
        raise InputError('expected tune="measure" with tuning_db: the model measures nothing')
    if budget_seconds(asked["budget"]) is not None and asked["tune"] != "measure":
        raise InputError('expected tune="measure" with budget: the model measures nothing')
    if type(asked["instances"]) is not int or asked["instances"] < 1:
        raise InputError(f"expected a positive number of instances, got {asked['instances']!r}")
    if not isinstance(asked["libraries"], bool):
        raise InputError(f"expected libraries to be true or false, got {asked['libraries']!r}")
    for instrument in given(asked["instruments"], Sequence, "instruments as a list"):
        given(instrument, Instrument, "instruments that are objects of tilewright.passes.Instrument")


def _constant_names(module: Module) -> list[str]:
    return [str(op["name"]) for f in module.funcs for op in f.body.ops if op.name.endswith(".constant")]


def facts_of(lowered: Lowered, target: Target) -> dict[str, Any]:
    """What a report says of a compilation.

    The hardware record, whether it was calibrated, the constants that were measured, those of another device,
    and the device without a record that it is used for. Of each kernel the
    skeleton, parameters, bound, estimate and limit; of each convolution the algorithms;
    how many values changed their layout.
    """
    return {
        "hardware": target.hardware.name,
        "hardware_origin": target.hardware.origin,
        "hardware_constants": calibrated_constants(target.hardware),
        "hardware_borrowed": borrowed_constants(target.hardware),
        "hardware_stands_for": target.hardware.stands_for,
        "chosen_by": "measurement" if any(f.get("measured_s") for f in lowered.tensor.funcs) else "model",
        "convolutions": convolution_facts(lowered.graph.main, target.hardware),
        "layouts": layout_facts(lowered.thread.main),
        "kernels": [
            _kernel_facts(f) for f in lowered.thread.funcs if f.level is Level.THREAD or not is_generated(f)
        ],
    }


def _kernel_facts(f: Func) -> dict[str, Any]:
    cost = f.get("cost")
    return {
        "name": f.name,
        "origins": list(dict.fromkeys(op.loc for op in f.body.ops if op.loc)),
        "skeleton": f.get("skeleton"),
        "grid": list(cast("tuple[int, ...]", f.get("grid", (1, 1, 1)))),  # a library makes its own grid
        "block": f.get("block", 1),
        "params": _plain(f.get("params")),
        "cost": _plain(cost),
        "measured_s": f.get("measured_s"),
    }


def _plain(a: object) -> Any:
    if isinstance(a, Pairs):
        return {k: _plain(v) for k, v in a.items}
    return list(map(_plain, a)) if isinstance(a, tuple) else a
