"""The plan of a training step whose state streams from storage through one device: its order, and updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.api import compile as compile_whole
from tilewright.cluster.measuring.trace import picked
from tilewright.cluster.report import compared
from tilewright.cluster.steps.inputs import step_inputs
from tilewright.cluster.steps.ways import StepSize, TrainingTask
from tilewright.compilation.option_values import Pick
from tilewright.ir import InputError
from tilewright.streaming.compiling import compile as compile_streamed
from tilewright.streaming.parts.schedule import SCHEDULES
from tilewright.streaming.training_executable import StreamedStep

#: what an update takes, beside the total; each alone, so that their sum is more where they overlap
STREAMED_COMPONENTS = ("compute", "copy", "read", "write", "wait", "commit")


@dataclass(frozen=True)
class StreamedOptions:
    """memory_cap: bytes of the device. runs: micro-batches of an update. folder: where the state lies; None
    for one of temporary files. repeats: timed updates, of which the `pick` one counts. run: whether there are
    any."""

    target: str
    memory_cap: int
    runs: int = 1
    folder: str | None = None
    repeats: int = 10
    pick: Pick = "median"
    seed: int = 0
    run: bool = False


def plan_streamed(task: TrainingTask, options: StreamedOptions) -> dict[str, Any]:
    """The faster order of a step under a memory cap, by rates that are measured here, as plain data (JSON).

    Both orders (`pr`: each layer's state comes once for all micro-batches; `ar`: again for each) are priced
    by the model of `StreamedStep.predict`. Raises as `tilewright.streaming.compile` does, and InputError for
    a batch that the micro-batches do not share.
    """
    if task.batch % options.runs:
        raise InputError(
            f"expected micro-batches that share a batch of {task.batch} evenly, got {options.runs}",
            where="--micro-batches",
        )
    size = StepSize(task.batch // options.runs, options.runs)
    step = task.step(size)
    with compile_streamed(
        step,
        options.target,
        memory_cap=options.memory_cap,
        folder=options.folder,
        precision=task.precision,
    ) as exe:
        assert isinstance(exe, StreamedStep)
        orders = [short for short, long in SCHEDULES.items() if long in exe.planned.visits]
        prices = {order: exe.predict(order) for order in orders}
        best = min(orders, key=lambda order: prices[order].total_s)
        report = exe.report()
        facts: dict[str, Any] = {
            "model": task.name,
            "training": {"loss": task.loss, "optimizer": task.optimizer.name},
            "devices": 1,
            "batch": task.batch,
            "precision": task.precision,
            "memory_cap_bytes": options.memory_cap,
            "op_seconds": "measured",
            "record": {
                "storage_read_bytes_per_s": report["storage_read_bytes_per_s"],
                "storage_write_bytes_per_s": report["storage_write_bytes_per_s"],
            },
            "plan": {
                "order": best,
                "micro_batches": options.runs,
                "layers": report["layers"],
                "device_bytes": report["device_bytes"],
                "state_bytes": report["state_bytes"],
                "predicted_s": prices[best].total_s,
                "components_s": {n: getattr(prices[best], f"{n}_s") for n in STREAMED_COMPONENTS},
            },
            "candidates": [
                {"order": o, "micro_batches": options.runs, "predicted_s": p.total_s}
                for o, p in prices.items()
            ],
        }
        return {**facts, "execution": _executed(task, exe, best, size, options)} if options.run else facts


def _executed(
    task: TrainingTask, exe: StreamedStep, order: str, size: StepSize, options: StreamedOptions
) -> dict[str, Any]:
    """Updates in this order, the first of them compared with the step that is not streamed."""
    step = task.step(size)
    batches = [step_inputs(step, options.seed + i) for i in range(size.runs)]
    exe.schedule = order
    losses, rows = list[float](), list[dict[str, Any]]()
    for _ in range(1 + options.repeats):  # the first one opens files
        losses.append(float(np.mean([np.float64(r[0]) for r in exe.run(batches, order)])))
        rows.append(exe.compare(order))
    expected = list[float]()
    with compile_whole(step, options.target, precision=task.precision) as whole:
        for _ in losses[:3]:
            expected.append(float(np.mean([np.float64(whole(*b)[0]) for b in batches])))
    error = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, expected, strict=False))
    timed = rows[1:]
    row = timed[picked([r["total"]["measured_s"] for r in timed], options.pick)]
    return {
        "target": exe.target,
        "runs": f"{options.pick} of {options.repeats} updates",
        "relative_error": error,
        "total": compared(**row["total"]),
        "components": [{"name": n, **compared(**row[n])} for n in STREAMED_COMPONENTS],
        "read_bytes": row["read_bytes"],
        "write_bytes": row["write_bytes"],
    }
