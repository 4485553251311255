"""Runs a divided training step on the ranks of a world, compares its losses and times its components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cluster.execution import PlanOptions
from tilewright.cluster.measuring.run import Execution, timed_execution
from tilewright.cluster.measuring.trace import TimedCommunicator
from tilewright.cluster.steps.inputs import update_inputs
from tilewright.cluster.steps.ways import DivisionRates, StepSize, StepWay, TrainingTask
from tilewright.costmodel.links import Link
from tilewright.devices.targets import resolve_target
from tilewright.distributed import compile as compile_rank
from tilewright.running.executable import Executable
from tilewright.running.rank_executable import DistributedExecutable
from tilewright.runtime.communication.communicator import AnyCommunicator

Array = np.ndarray


@dataclass(frozen=True)
class StepPart:
    """A rank's part of a step, and its communicator where the host sees communications."""

    exe: DistributedExecutable
    timed: TimedCommunicator | None


def compiled_size(task: TrainingTask, way: StepWay) -> StepSize:
    """The size of the undivided step that is divided: replicas share the samples of the whole one."""
    return StepSize(task.batch) if way.mode == "batch" else way.size(task.batch)


def compile_part(
    task: TrainingTask,
    way: StepWay,
    communicator: AnyCommunicator,
    rates: DivisionRates,
    options: PlanOptions,
) -> StepPart:
    """This rank's part; all ranks call this with the same arguments. Raises as `distributed.compile` does."""
    timed = TimedCommunicator(communicator) if resolve_target(options.target).kind == "opencl" else None
    exe = compile_rank(
        task.step(compiled_size(task, way)),
        mode=way.mode,
        target=options.target,
        communicator=timed or communicator,
        options=way.options(rates, options.least_weight_bytes),
        precision=task.precision,
    )
    return StepPart(exe, timed)


def execute_step(
    task: TrainingTask,
    way: StepWay,
    part: StepPart,
    communicator: AnyCommunicator,
    link: Link,
    options: PlanOptions,
    expected: Sequence[float],
) -> Execution:
    """Run the step as it is divided; all ranks call this with the same arguments, and `part` is closed.

    expected: the losses of the undivided step (`losses_of`). The relative error of what is returned is the
    largest one of the losses of several updates, each of which depends on what the updates before it did.
    """
    size = compiled_size(task, way)
    batches = update_inputs(task.step(size), size, options.seed)
    groups = [batches[i : i + size.runs] for i in range(0, len(batches), size.runs)]
    inputs = [[np.concatenate(xs) for xs in zip(*group, strict=True)] for group in groups]
    with part.exe as exe:
        losses = [_mean(exe(*arrays)[0]) for arrays in inputs]
        error = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, expected, strict=True))
        return timed_execution(
            exe, part.timed, communicator, inputs[0], error, way.division, link,
            repeats=options.repeats, pick=options.pick,
        )  # fmt: skip


def losses_of(exe: Executable, batches: Sequence[Sequence[Array]], runs: int) -> list[float]:
    """The loss of each update of an undivided step that has not run yet: the mean over its runs."""
    own = [_mean(exe(*batch)[0]) for batch in batches]
    return [float(np.mean(own[i : i + runs])) for i in range(0, len(own), runs)]


def _mean(loss: Array) -> float:
    return float(np.mean(np.float64(loss)))
