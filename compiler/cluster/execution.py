"""From a network and a few devices to a plan, and from the plan to a run: measure, search, run, compare."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_whole
from tilewright.cluster.measuring.link import LinkSample, fitted_link, link_error, measure_link
from tilewright.cluster.measuring.machine import (
    NetworkTimes,
    WholeNetwork,
    measured_cluster,
    record_text,
)
from tilewright.cluster.measuring.run import execute
from tilewright.cluster.planning.op_seconds import OpSeconds, op_seconds, with_batch
from tilewright.cluster.planning.search import PlanCandidate, PlanningProblem, RequestedShape, best_division
from tilewright.cluster.report import execution_facts, plan_facts
from tilewright.compilation.option_values import LEAST_WEIGHT_BYTES, Pick, Precision
from tilewright.costmodel.cluster.inputs.loading import load_cluster
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.ir import InputError, Module
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import GRAPH
from tilewright.running.checking import random_inputs
from tilewright.runtime.atomic_file import write_atomically
from tilewright.runtime.communication.communicator import AnyCommunicator


@dataclass(frozen=True)
class PlanOptions:
    """The options of a plan beside the network.

    record: a cluster file or shipped record to plan with; None measures this machine. save: where the
    measured record is written. memory: bytes per device, None for what the device has. storage: folder whose
    storage is measured. repeats: timed runs, of which the `pick` one counts.
    part_sizes: how many smaller batches may be measured, those of plans that may be fastest; 0 compares plans
    by their shares of the whole batch.
    """

    devices: int
    wanted: RequestedShape = field(default_factory=RequestedShape)
    record: str | None = None
    save: str | None = None
    target: str = "auto"
    precision: Precision = "fp32"
    memory: int | None = None
    storage: str | None = None
    least_weight_bytes: int = LEAST_WEIGHT_BYTES
    repeats: int = 10
    part_sizes: int = 4
    pick: Pick = "median"
    seed: int = 0
    run: bool = False

    @property
    def timing(self) -> dict[str, Any]:
        """On what and how often things are timed."""
        return {"target": self.target, **self.repetition}

    @property
    def repetition(self) -> dict[str, Any]:
        """How often things are timed, and which time counts."""
        return {"repeats": self.repeats, "pick": self.pick}


def plan_network(
    module: Module, name: str, options: PlanOptions, communicator: AnyCommunicator | None = None
) -> dict[str, Any]:
    """The plan of one inference of a graph-level network over `options.devices`, as plain data (JSON).

    communicator: this rank's end of a world of so many ranks, each of which calls this with the same
    arguments; None plans from a record and runs nothing. Keys: see docs/cluster.md. Raises InputError,
    UnsupportedError and WorkError, among them WorkError where no division is feasible.
    """
    graph = run_pipeline(module, GRAPH, PassContext())
    if communicator is None:
        return _planned(graph, name, options, given_cluster(options), None, [], None)[1]
    inputs = random_inputs(module.input_names, module.input_types, options.seed)
    choices = {**options.timing, "precision": options.precision}
    exe = compile_whole(module, options.target, precision=options.precision)
    with WholeNetwork(exe, communicator, inputs, **options.repetition) as whole:
        expected, times, samples = whole.outputs(), whole.times(), list[LinkSample]()
        if options.record is None:
            samples = measure_link(communicator, **options.timing)
            cluster = shared_cluster(graph, name, options, times, samples, communicator)
        else:
            cluster = given_cluster(options)
        best, facts = _planned(graph, name, options, cluster, times, samples, communicator)
        if not options.run:
            return facts
        execution = execute(graph, best.division, communicator, inputs, expected, cluster.intra, **choices)
        after_s = whole.times().total_s
    return {
        **facts,
        "execution": execution_facts(
            best, execution, times, after_s, f"{options.pick} of {options.repeats} runs"
        ),
    }


def _planned(
    graph: Module,
    name: str,
    options: PlanOptions,
    cluster: Cluster,
    times: NetworkTimes | None,
    samples: Sequence[LinkSample],
    communicator: AnyCommunicator | None,
) -> tuple[PlanCandidate, dict[str, Any]]:
    """The best division and the facts of the plan; times count where no record is given."""
    used = times if options.record is None else None
    measured = (used.launches, used.overhead_share) if used is not None else ()
    seconds = op_seconds(graph.main, cluster, options.precision, *measured)
    problem = PlanningProblem(graph, name, cluster, seconds, options.precision, options.least_weight_bytes)
    if used is None or communicator is None:
        choice = best_division(problem, options.wanted, communicator)
    else:
        measure = partial(_part_seconds, problem, options, communicator)
        choice = best_division(problem, options.wanted, communicator, measure, options.part_sizes)
    return choice.best, plan_facts(problem, choice, samples)


def _part_seconds(
    problem: PlanningProblem, options: PlanOptions, communicator: AnyCommunicator, samples: int
) -> OpSeconds:
    """Measured seconds of the ops of the network for fewer samples, whose kernels are other kernels."""
    module = with_batch(problem.module, samples)
    inputs = random_inputs(module.input_names, module.input_types, options.seed)
    exe = compile_whole(module, options.target, precision=options.precision)
    with WholeNetwork(exe, communicator, inputs, **options.repetition) as part:
        part.outputs()
        times = part.times()
    measured = (times.launches, times.overhead_share)
    return op_seconds(module.main, problem.cluster, options.precision, *measured)


def given_cluster(options: PlanOptions) -> Cluster:
    """The record that was named; raises InputError for one of another number of devices."""
    if options.record is None:
        raise InputError("expected a cluster record, or ranks that measure")
    cluster = load_cluster(options.record)
    if cluster.devices != options.devices:
        raise InputError(
            f"expected {cluster.devices}, the devices of {cluster.name}, got {options.devices}",
            where="--devices",
        )
    return cluster


def shared_cluster(
    graph: Module,
    name: str,
    options: PlanOptions,
    times: NetworkTimes,
    samples: Sequence[LinkSample],
    communicator: AnyCommunicator,
) -> Cluster:
    """The record that rank 0 measures, as all ranks read it from its text."""
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
            write_atomically(options.save, text, "the record")
    text = communicator.gather_texts(text, doing="sharing the record")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.toml"
        path.write_text(text, encoding="utf-8")
        return load_cluster(path)
