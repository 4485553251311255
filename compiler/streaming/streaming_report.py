"""What a streamed executable reports: steps, memory against the cap, times against predicted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.streaming.calibration import Calibration
from tilewright.streaming.prediction import Prediction
from tilewright.streaming.run import RunRecord

if TYPE_CHECKING:
    from tilewright.streaming.executable import StreamedExecutable


def report_of(exe: StreamedExecutable, calibration: Calibration | None) -> dict[str, Any]:
    """See `StreamedExecutable.report`; times only where there was a run, and a calibration."""
    memory, planned = exe.memory, exe.planned
    stored = [planned.plan(k).stored.nbytes for k in range(len(planned.steps))]
    out: dict[str, Any] = {
        "target": exe.target,
        "memory_cap_bytes": exe.options.cap_bytes,
        "device_bytes": memory.device_bytes,
        "device_bytes_peak": exe.peak_bytes,
        "slots": memory.slots,
        "slot_bytes": memory.slot_bytes,
        "arena_bytes": memory.arena_bytes,
        "window_bytes": memory.window_bytes,
        "weight_bytes": sum(stored),
        "steps": len(planned.steps),
        "plans": len(planned.plans),
        "launches_per_step": [len(planned.plan(k).plan.launches) for k in range(len(planned.steps))],
        "step_bytes": stored,
    }
    if calibration is not None:
        out["storage_bytes_per_s"] = calibration.read_bytes_per_s
        out["copy_bytes_per_s"] = calibration.copy_bytes_per_s
        out["compute_s_per_plan"] = list(calibration.compute_s)
    if exe.record is not None:
        out["last_run"] = measured(exe.record)
    return out


def measured(record: RunRecord) -> dict[str, Any]:
    """Seconds of a run and of its parts."""
    storage = record.storage
    return {
        "total_s": record.total_s,
        "storage_s": storage.busy_s if storage else 0.0,
        "storage_wait_s": storage.waited_s if storage else 0.0,
        "copy_s": sum(record.copy_s),
        "compute_s": sum(record.compute_s),
        "read_bytes": record.read_bytes,
    }


def compared(record: RunRecord, prediction: Prediction) -> dict[str, Any]:
    """A run against the model, per part.

    overlap: the share of the rate of the slowest part (alone, as the calibration measured it) that the run
    reached. relative_error: of the predicted total.
    """
    found = measured(record)
    parts = {
        name: {"predicted_s": getattr(prediction, name), "measured_s": found[name]}
        for name in ("total_s", "storage_s", "copy_s", "compute_s")
    }
    total = record.total_s
    return {
        "schedule": prediction.schedule,
        "micro_batches": prediction.batches,
        **{name.removesuffix("_s"): part for name, part in parts.items()},
        "relative_error": prediction.total_s / total - 1 if total else 0.0,
        "overlap": prediction.slower_s / total if total else 0.0,
        "read_bytes": found["read_bytes"],
    }
