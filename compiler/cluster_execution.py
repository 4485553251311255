"""From a network and a few devices to a plan, and from the plan to a run: measure, search, run, compare."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.cluster_execution_division import LEAST_WEIGHT_BYTES
from tilewright.cluster_execution_report import execution_facts, plan_facts
from tilewright.cluster_execution_run import execute
from tilewright.cluster_execution_search import Problem, Wanted, best_division
from tilewright.cluster_execution_work import Launches, op_seconds
from tilewright.commands.network import random_inputs
from tilewright.costmodel.cluster.loaders import load_cluster
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.executable import clear_errors
from tilewright.ir import InputError, Module
from tilewright.measured_machine import (
    LinkSample,
    NetworkTimes,
    fitted_link,
    link_error,
    measure_link,
    measure_network,
    measured_cluster,
)
from tilewright.measured_record import record_text, write_record
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.pipelines import GRAPH
from tilewright.runtime.communication.communicator import AnyCommunicator


@dataclass(frozen=True)
class Options:
    """What is asked for beside the network.

    record: a cluster file or shipped record to plan with; None measures this machine. save: where the
    measured record is written. memory: bytes per device, None for what the device has. storage: folder whose
    storage is measured. repeats: timed runs.
    """

    devices: int
    wanted: Wanted = field(default_factory=Wanted)
    record: str | None = None
    save: str | None = None
    target: str = "auto"
    precision: str = "fp32"
    memory: int | None = None
    storage: str | None = None
    least_weight_bytes: int = LEAST_WEIGHT_BYTES
    repeats: int = 10
    seed: int = 0
    run: bool = False


def plan_network(
    module: Module, name: str, options: Options, communicator: AnyCommunicator | None = None
) -> dict[str, Any]:
    """The plan of one inference of a graph-level network over `options.devices`, as plain data (JSON).

    communicator: this rank's end of a world of so many ranks, each of which calls this with the same
    arguments; None plans from a record and runs nothing. Keys: see docs/cluster.md. Raises InputError,
    UnsupportedError and WorkError, among them WorkError where no division is feasible.
    """
    graph = run_pipeline(module, Pipeline.parse(" ".join(GRAPH.split())), PassContext())
    inputs = random_inputs(module.input_names, module.input_types, options.seed)
    times, samples, wanted = None, list[LinkSample](), None
    if communicator is not None:
        timing = {"target": options.target, "repeats": options.repeats}
        times, wanted = measure_network(
            module,
            communicator,
            inputs,
            precision=options.precision,
            **timing,  # type: ignore[arg-type]
        )
        if options.record is None:
            samples = measure_link(communicator, **timing)  # type: ignore[arg-type]
    cluster = _cluster(graph, name, options, times, samples, communicator)
    launches: Launches = times.launches if times is not None and options.record is None else ()
    seconds = op_seconds(graph.main, cluster, options.precision, launches)
    problem = Problem(graph, name, cluster, seconds, options.precision, options.least_weight_bytes)
    best, found = best_division(problem, options.wanted, communicator)
    facts = plan_facts(problem, best, found, measured=bool(launches), samples=samples)
    if not options.run or communicator is None or wanted is None or times is None:
        return facts
    execution = execute(
        graph,
        best.division,
        communicator,
        inputs,
        wanted,
        target=options.target,
        precision=options.precision,
        repeats=options.repeats,
    )
    return {**facts, "execution": execution_facts(best, execution, times, options.repeats)}


def _cluster(
    graph: Module,
    name: str,
    options: Options,
    times: NetworkTimes | None,
    samples: list[LinkSample],
    communicator: AnyCommunicator | None,
) -> Cluster:
    """The record that was given, or the one that rank 0 measures, the same on all ranks."""
    if options.record is not None:
        cluster = load_cluster(options.record)
        if cluster.devices != options.devices:
            raise InputError(
                f"expected {cluster.devices}, the devices of {cluster.name}, got {options.devices}",
                where="--devices",
            )
        return cluster
    if communicator is None or times is None:
        raise InputError("expected ranks to measure, or a cluster record")
    text = ""
    if communicator.rank == 0:
        link = fitted_link(samples)
        cluster = measured_cluster(
            graph,
            times,
            link,
            devices=options.devices,
            precision=options.precision,
            memory=options.memory,
            folder=options.storage,
        )
        notes = [
            f"Measured by `tilewright cluster plan --measure-here` on {options.devices} x {times.device}, "
            f"target {times.target}.",
            f"The rate is that of {name} in {options.precision}, all devices at work; peak and memory "
            "bandwidth are the hardware record's.",
            f"Link: {len(samples)} samples of {samples[0].nbytes} to {samples[-1].nbytes} bytes, "
            f"largest error of the fit {100 * link_error(samples, link):.0f} %.",
        ]
        text = record_text(cluster, notes)
        if options.save:
            write_record(options.save, text)
    with clear_errors():
        text = communicator.gather_texts(text, doing="sharing the record")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.toml"
        path.write_text(text, encoding="utf-8")
        return load_cluster(path)
