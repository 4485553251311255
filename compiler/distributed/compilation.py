"""Every rank compiles what it runs itself: from the same network, by the same passes, with its own rank."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.api import compile as compile_whole
from tilewright.compilation.garbage_collection import collections_paused
from tilewright.compilation.lowering import training_step
from tilewright.compilation.option_values import Transport
from tilewright.costmodel.hardware.description import GpuHardware, Hardware
from tilewright.costmodel.op_work import wave_elements
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Level, Module, UnsupportedError, show
from tilewright.ir.interpreter.step import check_initial_state
from tilewright.ir.modules.divisions import divisions_of, with_divisions
from tilewright.ir.nodes import INFERENCE
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.graph.distribute.sharding.steps import MESSAGE_SECONDS
from tilewright.passes.graph.distribute.state import refuse_state
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.passes.graph.precision.fix_loss_scale import AUTO
from tilewright.passes.pipelines import GRAPH, PRECISIONS
from tilewright.passes.rewriting.run_forms import RunForms, run_forms
from tilewright.running.executable import Executable
from tilewright.running.rank_executable import DistributedExecutable, world
from tilewright.running.rank_step import DIVISIONS, INPUTS, STATE, DistributedStep, rank_executable
from tilewright.running.step_forms import StepForms
from tilewright.runtime.communication.communicator import AnyCommunicator

#: the entry of the facts with seconds by the model, and its keys: of messages that may wait for others, and
#: of those among them beside which nothing is computed
MODELLED: Final = "modelled"
_MODELLED = ("messages_s", "exposed_s")
#: what each rank computes, by mode, and the pass that gives every rank its own module
MODES: Final[Mapping[str, str]] = {
    "space": "split-space",
    "batch": "split-batch",
    "weights": "split-weights",
    "pipeline": "split-pipeline",
}
#: the mode in which an update has messages that a run without one spares: sums of gradients
_SUMS_GRADIENTS: Final = "batch"


def mode_pipeline(
    mode: str,
    devices: int,
    rank: int,
    options: str = "",
    precision: str = "fp32",
    run: int | None = None,
) -> Pipeline:
    """The passes from a whole network to what one rank of `devices` runs.

    options: further ones of the mode's pass, as pipelines write them (`axis=w, gather=late`).
    precision: where it is decided on the graph, it is before the network is divided: so all ranks agree on
    every dtype, also one without rows, and messages are as narrow as tensors. run: of a step that updates
    in every few runs, see `decide-run`. Raises InputError for an unknown mode, precision or option.
    """
    if mode not in MODES:
        raise InputError(f"expected a mode among {', '.join(MODES)}, got {mode!r:.60}")
    if precision not in PRECISIONS:
        raise InputError(f"expected a precision among {', '.join(PRECISIONS)}, got {precision!r:.60}")
    further = f", {options}" if options.strip() else ""
    divided = f"{MODES[mode]}{{devices={devices}, rank={rank}{further}}}"
    narrowed = PRECISIONS[precision].get("graph", Pipeline())
    if run is not None:
        divided = f"decide-run{{run={run}}}, {divided}"
    return PRECISIONS[precision].get("first", Pipeline()) + GRAPH + narrowed + Pipeline.parse(divided)


def rank_module(
    module: Module,
    mode: str,
    devices: int,
    rank: int,
    options: str = "",
    precision: str = "fp32",
    run: int | None = None,
) -> Module:
    """Return the part of rank `rank` of a graph-level module; see `mode_pipeline`.

    precision: one of 16 bits is carried out first, so that what ranks tell each other is narrow too.
    Inputs and outputs are those of `module` on every rank. Raises InputError and PassError.
    """
    if module.main.level is not Level.GRAPH:
        raise InputError(
            f"expected a module of graph ops to divide, got one at level {module.main.level.value}"
        )
    context = PassContext()
    step = training_step(module, precision, context)
    if step.get(AUTO[0]) == AUTO[1]:  # decided by now: a later precision says nothing of the scale
        step = step.without_attr(AUTO[0])
    with collections_paused():
        return run_pipeline(step, mode_pipeline(mode, devices, rank, options, precision, run), context)


def compile(
    module: Module,
    *,
    mode: str = "space",
    target: str = "auto",
    communicator: AnyCommunicator | None = None,
    options: str = "",
    transport: Transport = "device",
    forms: bool = True,
    **choices: Any,
) -> DistributedExecutable:
    """Compile this rank's part of a network; every rank calls it with the same arguments.

    mode: `space` (one inference split in space), `batch` (data parallel), `weights` (matrix products and
        channels split), `pipeline` (stages, micro-batches).
    communicator: this rank's end of the world; None means the processes that mpirun started.
    options: of the mode's pass, such as `axis=w` (see `irdump --list-passes`).
    transport: how messages travel between GPUs, see `DistributedExecutable`.
    forms: where samples are divided, compile the runs of a step that accumulates gradients one by one: those
        without an update leave out its messages and its kernels. Each form has an arena of its own;
        without, one plan does all runs.
    choices: keyword arguments of `tilewright.compile`. Pipelines get as many instances as there are ranks
        unless told otherwise, so that `map` can keep every stage at work.

    Ranks compare what they compiled when it is loaded: see `DistributedExecutable`. Raises InputError,
    UnsupportedError where something asked for works on one device only, WorkError where the work fails.
    """
    if choices.get("tune", "model") != "model":
        raise UnsupportedError("expected tune='model': one rank alone cannot measure the program of several")
    if choices.get("shapes") is not None:
        raise UnsupportedError("expected one set of input shapes: a divided network has one plan per rank")
    own = communicator or world()
    found = _forms(module, mode, own.size, options) if forms else None
    if found is None:
        return _compiled_rank(module, own, mode, target, options, transport, choices)
    return _with_forms(found, partial(_compiled_rank, module, own, mode, target, options, transport, choices))


def _forms(module: Module, mode: str, devices: int, options: str) -> RunForms | None:
    """The forms of the runs of a step whose samples are divided run by run; None for anything else."""
    if mode != _SUMS_GRADIENTS or devices == 1 or not module.state_names:
        return None
    (divide,) = Pipeline.parse(f"{MODES[mode]}{{{options}}}" if options.strip() else MODES[mode])
    if dict(divide.options).get("micro_batches", 1) != 1:
        return None  # one run of the divided step does all runs up to an update
    return run_forms(module)


def _with_forms(forms: RunForms, compiled: Callable[..., DistributedExecutable]) -> DistributedExecutable:
    """The executable of the last form, which runs the others where they are next.

    All forms hold state alike: where their divisions differ, one plan does all runs.
    """
    last = forms.forms[-1]
    made = {n: compiled(run=n) for n in dict.fromkeys(forms.forms)}
    own = made.pop(last)
    held = [e.distribution[DIVISIONS] for e in (own, *made.values())]
    if any(h != held[0] for h in held):
        for exe in (own, *made.values()):
            exe.close()
        return compiled()
    others = {n: e for n, e in made.items() if isinstance(e, DistributedStep)}
    if isinstance(own, DistributedStep):
        own.take_forms(StepForms(forms, last, others, compiled))
    return own


def _compiled_rank(
    module: Module,
    own: AnyCommunicator,
    mode: str,
    target: str,
    options: str,
    transport: Transport,
    choices: Mapping[str, Any],
    run: int | None = None,
) -> DistributedExecutable:
    given, choices = choices, dict(choices)
    precision = str(choices.get("precision", "fp32"))
    if mode == "space":
        options = with_common_wave(options, resolve_target(target).hardware, own)
    part = rank_module(module, mode, own.size, own.rank, options, precision, run)
    if "graph" in PRECISIONS[precision]:
        choices["precision"] = "fp32"  # what is left to decide: the graph is narrow already
    if mode == "pipeline" and not module.state_names:
        choices.setdefault("instances", own.size)
    passes = str(mode_pipeline(mode, own.size, 0, options, precision, run)).replace("rank=0", "rank=r")
    agreed = {"network": network_digest(module), "passes": passes, "precision": precision}
    if not module.state_names:
        return compile_part(
            part, own, target=target, mode=mode, agreed=agreed, transport=transport, **choices
        )
    check_initial_state(module)
    facts = whole_facts(module, part)
    exe = compile_part(
        part, own, target=target, mode=mode, agreed=agreed, transport=transport, whole=facts, **choices
    )
    if isinstance(exe, DistributedStep) and any(f.name == INFERENCE for f in module.funcs):
        network = _network_over_state(module, part)
        exe.network = partial(_compiled_rank, network, own, mode, target, options, transport, given)
    return exe


def whole_facts(module: Module, part: Module) -> dict[str, Any]:
    """What an executable of a part says of the whole step: its inputs and state, and how they are divided."""
    state = set(module.state_names)
    divided = divisions_of(part)
    modelled: Any = part.get(MESSAGE_SECONDS)
    own = {
        p.hint: p for p in part.main.params if p.hint not in divided
    }  # pipelines take several runs at once
    params = [own.get(p.hint, p) for p in module.main.params]
    shapes = {p.hint: divided[p.hint].shape if p.hint in divided else p.tensor.shape for p in params}
    rows = [[p.hint, storage_dtype(p.tensor.dtype).name, list(shapes[p.hint])] for p in params]
    return {
        STATE: [row for row in rows if row[0] in state],
        INPUTS: [row for row in rows if row[0] not in state],
        DIVISIONS: [list(d.row) for d in divided.values()],
        **({} if modelled is None else {MODELLED: dict(zip(_MODELLED, modelled, strict=True))}),
    }


def _network_over_state(module: Module, part: Module) -> Module:
    """The network that a step trains, with its weights as state that is divided as that of the step is."""
    network = module.inference()
    names = [n for n in network.constants if n in module.state_names]
    held = [d for n, d in divisions_of(part).items() if n in names]
    return with_divisions(promoted(network, names), held)


def with_common_wave(options: str, hardware: Hardware, communicator: AnyCommunicator) -> str:
    """Options of `split-space` that name the wave of the largest GPU of all ranks: they have to decide alike.

    Options that name one stay, as do those of ranks on CPUs.
    """
    if not isinstance(hardware, GpuHardware) or re.search(r"\bwave\s*=", options):
        return options
    counts = communicator.gather_texts(str(hardware.sm_count), doing="comparing GPUs")
    wave = f"wave={wave_elements(max(map(int, counts)))}"
    return f"{options}, {wave}" if options.strip() else wave


def compile_part(
    part: Module,
    communicator: AnyCommunicator,
    *,
    target: str = "auto",
    mode: str = "own",
    agreed: Mapping[str, str] | None = None,
    transport: Transport = "device",
    whole: Mapping[str, Any] | None = None,
    **choices: Any,
) -> DistributedExecutable:
    """Compile what one rank runs, divided already: its graph holds the communication ops.

    mode: for reports. agreed: what must be the same on all ranks, by name, beside precision and options; a
        precision named there is that of the part as it is given, for reports. whole: of a part with state,
        what `whole_facts` says.
    choices: keyword arguments of `tilewright.compile`. Raises as `compile` does.
    """
    if whole is None:
        refuse_state(part, "a rank")
    exe = compile_whole(part, target, **choices)
    if not isinstance(exe, Executable):
        raise UnsupportedError("the reference target computes alone: expected a target with a device")
    compared = {
        k: v for k, v in choices.items() if k not in ("precision", "progress", "instruments", "instances")
    }
    facts: dict[str, Any] = {
        "rank": communicator.rank,
        "size": communicator.size,
        "mode": mode,
        "agreed": {
            "precision": str(choices.get("precision", "fp32")),
            **(agreed or {}),
            "transport": transport,
            "options": ", ".join(f"{k}={v!r}" for k, v in sorted(compared.items())),
        },
        **(whole or {}),
    }
    a = exe.artifact
    reported = {"precision": facts["agreed"]["precision"], "distributed": facts}
    artifact = replace(a, facts={**a.facts, **reported})
    return rank_executable(
        artifact, exe.target, instances=exe.instances, communicator=communicator, transport=transport
    )


def network_digest(module: Module) -> str:
    """A short text that two networks share only if their ops and weights are equal."""
    digest = hashlib.blake2b(show(module).encode(), digest_size=8)
    for name in sorted(module.constants):
        array = np.ascontiguousarray(module.constants[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
