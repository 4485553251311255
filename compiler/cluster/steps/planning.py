"""From a training task and a few devices to a plan, and from the plan to updates that are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from tilewright.cluster.execution import PlanOptions, given_cluster, shared_cluster
from tilewright.cluster.measuring.link import LinkSample, measure_link
from tilewright.cluster.measuring.machine import NetworkTimes, WholeNetwork
from tilewright.cluster.planning.op_seconds import OpSeconds, op_seconds
from tilewright.cluster.planning.prediction import RankTimes
from tilewright.cluster.report import execution_facts, mean_components
from tilewright.cluster.steps.execution import execute_step
from tilewright.cluster.steps.inputs import step_inputs
from tilewright.cluster.steps.ways import PricedWay, StepSearch, StepSize, StepWay, TrainingTask, ways_of
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.runtime.communication.communicator import AnyCommunicator

#: updates whose losses are compared with those of the undivided step
UPDATES = 3


def plan_step(
    task: TrainingTask,
    options: PlanOptions,
    communicator: AnyCommunicator | None = None,
    *,
    zero: int | None = None,
) -> dict[str, Any]:
    """The plan of a training step over `options.devices`, as plain data (JSON); keys: see docs/cluster.md.

    communicator: this rank's end of a world of so many ranks, each of which calls this with the same
    arguments; None plans from a record and runs nothing. Raises InputError, UnsupportedError and WorkError,
    among them WorkError where no way to divide the step can be executed.
    """
    ways = ways_of(options.devices, task.batch, options.wanted, zero)
    whole = StepSize(task.batch)
    if communicator is None:
        cluster = given_cluster(options)
        seconds = op_seconds(task.graph(whole).main, cluster, task.precision)
        search = StepSearch(task, cluster, ways, {whole: seconds}, False, options.least_weight_bytes)
        best, found = search.best(lambda own: [*own.values()], range(len(ways)), None, 0)
        return plan_facts(task, search, best, found, [])
    choices = {**options.timing, "precision": task.precision}
    step = task.step(whole)
    inputs = step_inputs(step, options.seed)
    with WholeNetwork(step, communicator, inputs, **choices) as undivided:
        undivided.outputs()
        times, samples = undivided.times(), list[LinkSample]()
        graph = task.graph(whole)
        if options.record is None:
            samples = measure_link(communicator, **options.timing)
            cluster = shared_cluster(graph, f"a step of {task.name}", options, times, samples, communicator)
        else:
            cluster = given_cluster(options)
        measures = options.record is None
        seconds = op_seconds(graph.main, cluster, task.precision, *(_launches(times) if measures else ()))
        search = StepSearch(task, cluster, ways, {whole: seconds}, measures, options.least_weight_bytes)
        best, found = search.best(
            partial(_shared, communicator, ways),
            range(communicator.rank, len(ways), communicator.size),
            partial(_size_seconds, task, options, cluster, communicator) if measures else None,
            options.part_sizes,
        )
        facts = plan_facts(task, search, best, found, samples)
        if not options.run:
            return facts
        execution = execute_step(task, best.way, communicator, cluster, options, UPDATES)
        after_s = undivided.times().total_s
    runs = f"{options.pick} of {options.repeats} updates"
    return {**facts, "execution": execution_facts(best, execution, times, after_s, runs)}


def _launches(times: NetworkTimes) -> tuple[Any, float]:
    return times.launches, times.overhead_share


def _size_seconds(
    task: TrainingTask, options: PlanOptions, cluster: Cluster, communicator: AnyCommunicator, size: StepSize
) -> OpSeconds:
    """Measured seconds of the ops of the step of kernels of another size, on all ranks at the same time."""
    step = task.step(size)
    inputs = step_inputs(step, options.seed)
    with WholeNetwork(step, communicator, inputs, **options.timing, precision=task.precision) as part:
        part.outputs()
        times = part.times()
    return op_seconds(task.graph(size).main, cluster, task.precision, *_launches(times))


def _shared(
    communicator: AnyCommunicator, ways: Sequence[StepWay], own: Mapping[int, PricedWay]
) -> list[PricedWay]:
    """Return what all ranks priced, by way."""
    rows = {
        i: {
            "ranks": [r.components_s for r in p.ranks],
            "bytes": p.state_bytes,
            "known": p.measured,
            "why": p.why,
        }
        for i, p in own.items()
    }
    texts = communicator.gather_texts(json.dumps(rows), doing="comparing divisions")
    told = {int(i): row for text in texts for i, row in json.loads(text).items()}
    return [
        PricedWay(way, tuple(map(RankTimes, row["ranks"])), row["bytes"], row["known"], row["why"])
        for way, row in ((way, told[i]) for i, way in enumerate(ways))
    ]


def plan_facts(
    task: TrainingTask,
    search: StepSearch,
    best: PricedWay,
    found: Sequence[PricedWay],
    samples: Sequence[LinkSample],
) -> dict[str, Any]:
    """The plan, the other ways, and the record it comes from; samples: of the link."""
    cluster = search.cluster
    return {
        "model": task.name,
        "training": {"loss": task.loss, "optimizer": task.optimizer.name},
        "cluster": cluster.name,
        "devices": cluster.devices,
        "batch": task.batch,
        "precision": task.precision,
        "op_seconds": "measured" if search.measures else "record",
        "measured_sizes": [asdict(size) for size in search.known] if search.measures else [],
        "record": asdict(cluster),
        "link_samples": [asdict(s) for s in samples],
        "plan": {
            **_row(best, task.batch),
            "components_s": mean_components(best.ranks),
            "memory_capacity_bytes": cluster.device.memory_bytes,
        },
        "candidates": [{**_row(p, task.batch), "not_executable": p.why or None} for p in found],
    }


def _row(priced: PricedWay, batch: int) -> dict[str, Any]:
    return {
        **priced.way.row,
        "kernel_samples": priced.way.size(batch).samples,
        "predicted_s": priced.predicted_s if priced.ranks else None,
        "measured_size": priced.measured,
        "state_bytes": priced.state_bytes,
    }
