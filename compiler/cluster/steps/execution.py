"""Runs a divided training step on the ranks of a world, compares its losses and times its components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.api import compile as compile_whole
from tilewright.cluster.execution import PlanOptions
from tilewright.cluster.measuring.run import Execution, timed_execution
from tilewright.cluster.measuring.trace import TimedCommunicator
from tilewright.cluster.steps.inputs import step_inputs
from tilewright.cluster.steps.ways import StepSize, StepWay, TrainingTask
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.devices.targets import resolve_target
from tilewright.distributed import compile as compile_rank
from tilewright.ir import Module
from tilewright.runtime.communication.communicator import AnyCommunicator

Array = np.ndarray


def execute_step(
    task: TrainingTask,
    way: StepWay,
    communicator: AnyCommunicator,
    cluster: Cluster,
    options: PlanOptions,
    updates: int,
) -> Execution:
    """Run the step as it is divided; all ranks call this with the same arguments.

    Its relative error is the largest one of the losses of `updates` updates, each of which depends on what
    the updates before it did, against those of the undivided step on the same samples.
    Raises as `tilewright.distributed.compile` does.
    """
    size = StepSize(task.batch) if way.mode == "batch" else way.size(task.batch)
    step = task.step(size)
    batches = [step_inputs(step, options.seed + i) for i in range(updates * size.runs)]
    expected = _losses(step, options, task.precision, batches, size.runs)
    groups = [batches[i : i + size.runs] for i in range(0, len(batches), size.runs)]
    inputs = [[np.concatenate(xs) for xs in zip(*group, strict=True)] for group in groups]
    timed = TimedCommunicator(communicator) if resolve_target(options.target).kind == "opencl" else None
    with compile_rank(
        step,
        mode=way.mode,
        target=options.target,
        communicator=timed or communicator,
        options=way.options(cluster, task.precision, options.least_weight_bytes),
        precision=task.precision,
    ) as exe:
        losses = [_mean(exe(*arrays)[0]) for arrays in inputs]
        error = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, expected, strict=True))
        return timed_execution(
            exe, timed, communicator, inputs[0], error, way.division, cluster.intra,
            repeats=options.repeats, pick=options.pick,
        )  # fmt: skip


def _losses(
    step: Module, options: PlanOptions, precision: str, batches: Sequence[Sequence[Array]], runs: int
) -> list[float]:
    """The loss of each update of the undivided step: the mean over its runs."""
    with compile_whole(step, options.target, precision=precision) as exe:  # type: ignore[arg-type]
        own = [_mean(exe(*batch)[0]) for batch in batches]
    return [float(np.mean(own[i : i + runs])) for i in range(0, len(own), runs)]


def _mean(loss: Array) -> float:
    return float(np.mean(np.float64(loss)))
