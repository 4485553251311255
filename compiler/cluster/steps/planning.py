"""From a training task and a few devices to a plan, and from the plan to updates that are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from tilewright.cluster.execution import PlanOptions, given_cluster, shared_cluster
from tilewright.cluster.measuring.link import LinkSample, fitted_link, measure_link
from tilewright.cluster.measuring.machine import NetworkTimes, WholeNetwork
from tilewright.cluster.phases import Phases
from tilewright.cluster.planning.op_seconds import OpSeconds, op_flops_of, op_seconds
from tilewright.cluster.planning.prediction import RankTimes
from tilewright.cluster.report import execution_facts, mean_components
from tilewright.cluster.steps.execution import (
    StepPart,
    compile_part,
    compiled_size,
    execute_step,
    losses_of,
)
from tilewright.cluster.steps.inputs import step_inputs, update_inputs
from tilewright.cluster.steps.programs import StepPrograms
from tilewright.cluster.steps.ways import (
    DivisionRates,
    PricedWay,
    StepSearch,
    StepSize,
    StepWay,
    TrainingTask,
    ways_of,
)
from tilewright.compilation.kernel_records import KernelRecord
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.devices.targets import resolve_target
from tilewright.ir import TilewrightError
from tilewright.running.executable import Executable
from tilewright.runtime.communication.communicator import AnyCommunicator


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
    phases = Phases(shown=communicator.rank == 0)
    with StepPrograms(task, communicator, target=options.target) as programs:
        run = _StepRun(task, options, ways, communicator, programs, phases)
        return run.facts()


@dataclass
class _StepRun:
    """One rank's measurements, plan and execution.

    What is compiled is compiled side by side where there are cores for it: the steps to be measured, and the
    rank's part where only one way is asked for. The link is measured meanwhile where messages do not pass
    the host's memory.
    """

    task: TrainingTask
    options: PlanOptions
    ways: Sequence[StepWay]
    communicator: AnyCommunicator
    programs: StepPrograms
    phases: Phases
    #: losses of the undivided step of a size, where they are known
    losses: dict[StepSize, list[float]] = field(default_factory=dict)

    @property
    def measures(self) -> bool:
        return self.options.record is None

    def facts(self) -> dict[str, Any]:
        task, options, communicator = self.task, self.options, self.communicator
        whole = StepSize(task.batch)
        beside = self.programs.beside and resolve_target(options.target).kind == "cuda"
        if beside:
            self.programs.begin(self.sizes())
        samples = list[LinkSample]()
        if self.measures:
            self.phases.begin("measuring the link")
            samples = measure_link(communicator, **options.timing)
        self.programs.begin(self.sizes())
        rates, part = self.early_part(samples)
        self.phases.begin("compiling steps to measure")
        exe = self.programs.take(whole)
        with self.undivided(exe, whole) as undivided:
            times = undivided.times()
            graph = task.graph(whole)
            if self.measures:
                self.phases.begin("measuring storage")
                name = f"a step of {task.name}"
                cluster = shared_cluster(graph, name, options, times, samples, communicator)
            else:
                cluster = given_cluster(options)
            self.phases.begin("pricing ways")
            if self.measures:
                known = {whole: op_seconds(graph.main, cluster, task.precision, *_launches(times))}
            else:
                known = self.estimated(cluster)
            search = StepSearch(
                task, cluster, self.ways, known, self.measures, options.least_weight_bytes, rates
            )
            best, found = search.best(
                partial(_shared, communicator, self.ways),
                range(communicator.rank, len(self.ways), communicator.size),
                partial(self.size_seconds, cluster) if self.measures else None,
                options.part_sizes,
            )
            facts = plan_facts(task, search, best, found, samples)
            if not options.run:
                return {**facts, "phases": self.phases.seconds()}
            expected = self.expected_losses(best.way)
            if part is None:
                self.phases.begin("compiling parts of ranks")
                used = rates or DivisionRates.of(cluster, task.precision)
                part = compile_part(task, best.way, communicator, used, options)
            self.phases.begin("executing")
            execution = execute_step(task, best.way, part, communicator, cluster.intra, options, expected)
            after_s = undivided.times().total_s
        runs = f"{options.pick} of {options.repeats} updates"
        compared = execution_facts(best, execution, times, after_s, runs)
        return {**facts, "execution": compared, "phases": self.phases.seconds()}

    def sizes(self) -> list[StepSize]:
        """The steps that are compiled without being asked for: those that the plan will need.

        Where one way is asked for, its size; of several, all that may be measured, if cores are left.
        """
        sizes = [StepSize(self.task.batch)]
        if len(self.ways) == 1 or (self.measures and self.programs.beside):
            sizes += [way.size(self.task.batch) for way in self.ways]
        return list(dict.fromkeys(sizes))[: 1 + self.options.part_sizes]

    def early_part(self, samples: Sequence[LinkSample]) -> tuple[DivisionRates | None, StepPart | None]:
        """This rank's part, before anything else of the step is there, where no other way may be the plan.

        It is divided by the rates that are known by now; None where it is not compiled yet, or cannot be.
        """
        if not self.programs.beside or len(self.ways) > 1 or not self.options.run:
            return None, None
        task, options = self.task, self.options
        if self.measures:
            hardware = resolve_target(options.target).hardware
            rates = DivisionRates.expected(hardware, task.precision, options.devices, fitted_link(samples))
        else:
            rates = DivisionRates.of(given_cluster(options), task.precision)
        self.phases.begin("compiling parts of ranks")
        try:
            return rates, compile_part(task, self.ways[0], self.communicator, rates, options)
        except TilewrightError:
            return rates, None  # pricing the way says why it cannot be executed

    def undivided(self, exe: Executable, size: StepSize) -> WholeNetwork:
        """The undivided step of a size on all ranks; its first runs are those whose losses are compared."""
        step = self.task.step(size)
        if self.options.run:
            batches = update_inputs(step, size, self.options.seed)
            self.losses[size] = losses_of(exe, batches, size.runs)
        inputs = step_inputs(step, self.options.seed)
        return WholeNetwork(exe, self.communicator, inputs, **self.options.repetition)

    def estimated(self, cluster: Cluster) -> dict[StepSize, OpSeconds]:
        """Seconds of the ops of steps by the model of their kernels, where a record stands for measurements.

        Of the whole step, and of the size of the only way where one is asked for; a size that the network
        cannot have is left out, and pricing the way says why. The record's rate is that of a whole step with
        all devices at work: all sizes take longer than their kernels by as much as it says that the whole
        step does.
        """
        task, whole = self.task, StepSize(self.task.batch)
        launches = {whole: estimated_launches(self.programs.take(whole))}
        for size in self.sizes()[1:] if len(self.ways) == 1 else ():
            try:
                launches[size] = estimated_launches(self.programs.take(size))
            except TilewrightError:
                continue
        funcs = {size: task.graph(size).main for size in launches}
        by_rate_s = op_flops_of(funcs[whole]) / cluster.device.flops_per_s(task.precision)
        slower = max(1.0, by_rate_s / sum(seconds for _, seconds in launches[whole]))
        return {
            size: op_seconds(funcs[size], cluster, task.precision, [(o, slower * s) for o, s in own])
            for size, own in launches.items()
        }

    def size_seconds(self, cluster: Cluster, size: StepSize) -> OpSeconds:
        """Measured seconds of the ops of the step of kernels of another size, on all ranks at once."""
        self.phases.begin(f"measuring steps of {size.samples} samples")
        exe = self.programs.take(size)
        with self.undivided(exe, size) as part:
            times = part.times()
        self.phases.begin("pricing ways")
        task = self.task
        return op_seconds(task.graph(size).main, cluster, task.precision, *_launches(times))

    def expected_losses(self, way: StepWay) -> list[float]:
        """The losses of the undivided step that a way is compared with."""
        size = compiled_size(self.task, way)
        if size not in self.losses:
            self.phases.begin("computing losses of the undivided step")
            with self.undivided(self.programs.take(size), size):
                pass
        return self.losses[size]


def estimated_launches(exe: Executable) -> list[tuple[tuple[str, ...], float]]:
    """The locations of the ops of each launch, and its seconds by the model of its kernel."""
    records = map(KernelRecord.read, exe.report()["kernels"])
    seconds = {record.name: record.seconds for record in records}
    return [(launch.origin, seconds[launch.kernel]) for launch in exe.plan.launches]


def _launches(times: NetworkTimes) -> tuple[Any, float]:
    return times.launches, times.overhead_share


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
