"""Times of a streamed run as plain data, and against the predicted ones."""

from __future__ import annotations

from typing import Any

from tilewright.streaming.prediction import Prediction
from tilewright.streaming.run import RunRecord


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
