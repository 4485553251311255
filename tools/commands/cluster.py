"""`tilewright cluster plan|table|validate`: the cluster model's best plans, its table, its errors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilewright.cluster.execution import PlanOptions, plan_network
from tilewright.cluster.planning.op_seconds import with_batch
from tilewright.cluster.planning.search import RequestedShape
from tilewright.cluster.report import report_text
from tilewright.cluster.steps.planning import plan_step
from tilewright.cluster.steps.report import step_text, streamed_text
from tilewright.cluster.steps.streamed import StreamedOptions, plan_streamed
from tilewright.cluster.steps.ways import TrainingTask
from tilewright.cluster.text import plan_text, table_text, validation_text
from tilewright.compilation.option_values import TOLERANCE
from tilewright.costmodel.cluster.inputs.loading import load_cluster, load_model, load_training
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import ClusterModel
from tilewright.costmodel.cluster.inputs.network import network_model
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.measured.best import predict_best
from tilewright.costmodel.cluster.measured.rows import citation, source_names
from tilewright.costmodel.cluster.measured.search import search_in_memory
from tilewright.costmodel.cluster.measured.validation import refit, stack_named, stacks, validate
from tilewright.costmodel.cluster.modes.search import SearchResult, search, table_rows
from tilewright.distributed.launcher import launch_command
from tilewright.distributed.result_output import keep_output_for_results
from tilewright.ir import InputError, Module, WorkError
from tilewright.running.rank_executable import together, world
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.mpi_world import started_by_mpi
from tilewright.streaming.memory_size import memory_bytes
from tilewright.tools.arguments.scope import ZOO
from tilewright.tools.commands.network import BUNDLED, read_network
from tilewright.tools.plots.cluster import (
    require_plot,
    write_execution_plot,
    write_plan_plot,
    write_validation_plot,
)
from tilewright.training import optim


def run_plan(a: argparse.Namespace) -> None:
    """Search all configurations and print the fastest that fit."""
    if a.devices is not None:
        plan_here(a)
        return
    for option in ("cluster", "training"):
        if getattr(a, option) is None:
            raise InputError("expected this option, or --devices for one inference", where=f"--{option}")
    if a.plot:
        require_plot(a.plot)
    cluster, model, training = load_inputs(a)
    result = _searched(a, cluster, model, training)
    if not result.ranking:
        raise WorkError(_nothing_fits(result))
    names = {
        "cluster": cluster.name,
        "model": model.name,
        "training": training.name,
        "mode": a.mode,
        "stack": a.stack,
    }
    counts = {
        "devices": cluster.devices,
        "configurations": result.configurations,
        "feasible": result.feasible,
    }
    facts = {**names, **counts, "infeasible": dict(result.infeasible), "best": result.rows()}
    if a.plot:
        write_plan_plot(facts, a.plot)
    print(json.dumps(facts, indent=1) if a.json else plan_text(facts))
    _tell_plot(a)


def run_table(a: argparse.Namespace) -> None:
    """Print the 144 cells."""
    rows = table_rows()
    print(json.dumps(rows, indent=1) if a.json else table_text(rows))


def run_validate(a: argparse.Namespace) -> None:
    """Compare with all measured rows and print the errors per source."""
    if a.plot:
        require_plot(a.plot)
    used = [refit(stack) for stack in stacks()] if a.refit else list(stacks())
    scores = validate(used)
    best = [b for source in source_names("best") for b in predict_best(source, used[0])]
    facts: dict[str, Any] = {
        "sources": [{**s.as_json(), "citation": citation(s.source)} for s in scores],
        "stacks": [s.as_json() for s in used],
        "best_rates": [b.as_json() for b in best],
    }
    if a.plot:
        write_validation_plot(used, a.plot)
    print(json.dumps(facts, indent=1) if a.json else validation_text(facts))
    _tell_plot(a)


def _searched(
    a: argparse.Namespace, cluster: Cluster, model: ClusterModel, training: Training
) -> SearchResult:
    if not a.stack:
        return search(cluster, model, training, mode=a.mode, top=a.top)
    if a.mode != "corrected":
        raise InputError(f"knobs of a stack go with mode corrected, got {a.mode}", where="--stack")
    return search_in_memory(cluster, model, training, stack_named(a.stack).knobs, top=a.top)


def _nothing_fits(result: SearchResult) -> str:
    """One sentence with the reason that speaks against most configurations."""
    reasons = sorted(result.infeasible.items(), key=lambda item: -item[1])
    text = ", ".join(f"{reason} ({count})" for reason, count in reasons if count)
    return f"none of {result.configurations} configurations is feasible: {text}"


def _tell_plot(a: argparse.Namespace) -> None:
    if a.plot and not a.json:
        print(f"wrote {Path(a.plot)}")


_EXECUTED_NETWORKS = (".relay", ".json", ".ir", *BUNDLED)


def plan_here(a: argparse.Namespace) -> None:
    """Plan and, where asked, measure and execute; the first rank prints.

    Raises InputError, UnsupportedError and WorkError, the last also where the result is wrong.
    """
    if a.memory_cap is not None:
        _plan_streamed(a)
        return
    options = _options(a)
    if not a.execute and not a.measure_here:
        tell(a, _planned(a, options, None))
    elif a.as_rank or started_by_mpi():
        _run_rank(a, options)
    else:
        launch_command(a.devices, a.argv)


def _planned(
    a: argparse.Namespace, options: PlanOptions, communicator: AnyCommunicator | None
) -> dict[str, Any]:
    """The plan of an inference or, with --train, of a training step."""
    if a.train is None:
        return plan_network(_executed_network(a), _name(a), options, communicator)
    return plan_step(_task(a), options, communicator, zero=a.zero)


def _task(a: argparse.Namespace) -> TrainingTask:
    """The network, as it is trained, for the batch that was asked for."""
    if a.train not in optim.NAMED:
        known = ", ".join(optim.NAMED)
        raise InputError(f"expected an optimizer among {known}, got '{a.train}'", where="--train")
    rate = {"lr": 0.1, "momentum": 0.9} if a.train == "sgd" else {}
    network = read_network(
        a.model, params="random", seed=a.seed, shapes=a.shape, constants=a.constant, training=True
    )
    network = network if a.batch is None else with_batch(network, a.batch)
    return TrainingTask(network, _name(a), a.loss, optim.NAMED[a.train](**rate), a.precision)


def _plan_streamed(a: argparse.Namespace) -> None:
    """Plan and, where asked, execute a step whose state streams through one device."""
    if a.devices != 1:
        raise InputError(
            f"expected --devices 1: state streams through one device, got {a.devices}", where="--memory-cap"
        )
    _require_network(a)
    for option in ("cluster", "dp", "tp", "p", "plot"):
        if getattr(a, option):
            raise InputError("expected this option without --memory-cap", where=f"--{option}")
    options = StreamedOptions(
        a.target,
        memory_bytes(a.memory_cap, where="--memory-cap"),
        runs=a.micro_batches or 1,
        folder=a.storage,
        repeats=a.repeats,
        pick=a.pick,
        seed=a.seed,
        run=a.execute,
    )
    facts = plan_streamed(_task(a), options)
    print(json.dumps(facts, indent=1) if a.json else streamed_text(facts))
    _require_right(a, facts)


def _require_network(a: argparse.Namespace) -> None:
    """Raise InputError unless --model is a network that can be read."""
    if a.model.startswith(ZOO):
        return
    if Path(a.model).suffix not in _EXECUTED_NETWORKS:
        raise InputError("expected a network: a plan with --devices comes from its graph", where="--model")
    if not Path(a.model).exists():
        raise InputError("no such file", where=a.model)


def _options(a: argparse.Namespace) -> PlanOptions:
    """Check what can be checked before processes start."""
    if a.devices == 1:
        raise InputError("expected 2 devices or more, or --train with --memory-cap, got 1", where="--devices")
    if a.mode != "corrected":
        raise InputError(f"a plan with --devices is priced by mode corrected, got {a.mode}", where="--mode")
    if bool(a.cluster) == bool(a.measure_here):
        raise InputError("expected a record (--cluster) or --measure-here, one of them", where="--cluster")
    _require_network(a)
    if a.plot:
        require_plot(a.plot)
        if not a.execute:
            raise InputError(
                "expected --execute: the picture compares predicted and measured times", where="--plot"
            )
    return PlanOptions(
        devices=a.devices,
        wanted=RequestedShape(a.dp, a.tp, a.p, a.micro_batches),
        record=a.cluster,
        save=a.record,
        target=a.target,
        precision=a.precision,
        memory=memory_bytes(a.memory, where="--memory") if a.memory else None,
        storage=a.storage,
        least_weight_bytes=memory_bytes(a.min_weight, where="--min-weight"),
        repeats=a.repeats,
        part_sizes=a.part_sizes,
        pick=a.pick,
        seed=a.seed,
        run=a.execute,
    )


def _executed_network(a: argparse.Namespace) -> Module:
    """The network with random weights, for the batch that was asked for."""
    module = read_network(a.model, params="random", seed=a.seed, shapes=a.shape, constants=a.constant)
    return module if a.batch is None else with_batch(module, a.batch)


def _name(a: argparse.Namespace) -> str:
    return Path(a.model.removeprefix(ZOO).partition("{")[0]).stem


def _run_rank(a: argparse.Namespace, options: PlanOptions) -> None:
    keep_output_for_results()
    communicator = world(a.timeout)
    with together(communicator):
        if communicator.size != a.devices:
            raise InputError(
                f"expected {communicator.size}, as mpirun started, got {a.devices}", where="--devices"
            )
        facts = _planned(a, options, communicator)
    if communicator.rank == 0:
        tell(a, facts)


def tell(a: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print and draw what was found; raises WorkError where the plan gave a wrong result."""
    if a.plot:
        write_execution_plot(facts, a.plot)
    text = report_text if a.train is None else step_text
    print(json.dumps(facts, indent=1) if a.json else text(facts))
    for path in (a.record, a.plot):
        if path and not a.json:
            print(f"wrote {Path(path)}")
    _require_right(a, facts)


def _require_right(a: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Raise WorkError where what was executed gave a wrong result."""
    error, limit = facts.get("execution", {}).get("relative_error", 0.0), TOLERANCE[a.precision]
    if not error <= limit:
        raise WorkError(f"the result is wrong: relative error {error:.3g} is above {limit:g}")


_RELAY = (".relay", ".json")
_NETWORKS = (*_RELAY, *BUNDLED, ".ir")


def load_inputs(a: argparse.Namespace) -> tuple[Cluster, ClusterModel, Training]:
    """Load all three from files or by names of shipped records; raises InputError naming file and field.

    Of the arguments of `cluster plan` it takes cluster, model and training, and of a network inputs (names,
    separated by commas, of parameters that carry samples), shapes and constants.
    """
    return load_cluster(a.cluster), _model(a), load_training(a.training)


def _model(a: argparse.Namespace) -> ClusterModel:
    if a.model.startswith(ZOO) or Path(a.model).suffix in _NETWORKS:
        return _network(a)
    for option, value in (("inputs", a.inputs), ("shape", a.shape), ("constant", a.constant)):
        if value:
            raise InputError("only networks have inputs, a model by dimensions has none", where=f"--{option}")
    return load_model(a.model)


def _network(a: argparse.Namespace) -> ClusterModel:
    """Units from the graph; the weights' values play no part, so none are made up."""
    name, inputs = a.model, tuple(a.inputs.split(",")) if a.inputs else None
    module = read_network(name, shapes=a.shape, constants=a.constant, training=True)
    if inputs is None and Path(name).suffix in _RELAY:
        inputs = _sample_inputs(module)
    return network_model(module.main, Path(name.removeprefix(ZOO)).stem, inputs)


def _sample_inputs(module: Module) -> tuple[str, ...]:
    """The first parameter and those of integers, as where weights are random."""
    names, types = module.input_names, module.input_types
    return tuple(n for i, (n, t) in enumerate(zip(names, types, strict=True)) if i == 0 or "int" in t.dtype)
