"""Rates of best configurations that their source does not name, against the best the model itself finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.measured.in_memory import (
    Machine,
    TrainingRuns,
    activation_bytes,
    stage_parameters,
    step_time,
)
from tilewright.costmodel.cluster.measured.rows import BestRate, best_rates
from tilewright.costmodel.cluster.measured.validation import Stack
from tilewright.ir.errors import InputError

Array = NDArray[np.float64]

#: bytes per parameter of mixed-precision Adam: fp16 weight and gradient, fp32 gradient, master, two moments
_STATE_BYTES = 18.0
#: fp16 logits and their fp32 softmax, per token and word
_LOGIT_BYTES = 6.0
#: share of the memory a framework leaves to the model
_USABLE = 0.95
_POWERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class BestPrediction:
    """One measured best rate, the rate of the model's best configuration, and that configuration."""

    source: str
    model: str
    devices: int
    measured_tflops: float
    predicted_tflops: float
    tensor: int
    pipeline: int
    data: int
    micro_batch: int

    @property
    def error(self) -> float:
        """Error of the step time: predicted / measured - 1."""
        return self.measured_tflops / self.predicted_tflops - 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"error": self.error}


def predict_best(source: str, stack: Stack) -> list[BestPrediction]:
    """The rows of `source`, each with the best configuration the model finds for its devices."""
    return [_best(row, stack) for row in best_rates(source)]


def memory_needed(runs: TrainingRuns) -> Array:
    """Bytes per device: optimizer state, layer inputs of the micro-batches in flight, a layer, logits."""
    per_stage = np.ceil(runs.layers / runs.pipeline)
    tokens = runs.micro_batch * runs.sequence
    in_flight = np.minimum(runs.pipeline, runs.micro_batches)
    layer_inputs = 2.0 * tokens * runs.hidden * per_stage * in_flight
    logits = _LOGIT_BYTES * tokens * runs.vocabulary / runs.tensor
    return _STATE_BYTES * stage_parameters(runs) + layer_inputs + activation_bytes(runs) + logits


def _best(row: BestRate, stack: Stack) -> BestPrediction:
    runs = _configurations(row)
    fits = memory_needed(runs) <= _USABLE * row.machine.memory_bytes
    if not fits.any():
        raise InputError(f"expected a configuration of {row.model} that fits {row.machine.name}, found none")
    seconds = np.where(fits, step_time(runs, row.machine, stack.knobs).total, np.inf)
    best = int(np.argmin(seconds))
    return BestPrediction(
        source=row.source,
        model=row.model,
        devices=row.devices,
        measured_tflops=row.tflops_per_device,
        predicted_tflops=float(runs.step_flops[best] / row.devices / seconds[best] / 1e12),
        tensor=int(runs.tensor[best]),
        pipeline=int(runs.pipeline[best]),
        data=int(runs.data[best]),
        micro_batch=int(runs.micro_batch[best]),
    )


def _configurations(row: BestRate) -> TrainingRuns:
    """Whole layers recomputed, tensor groups within a node, stages of equal length."""
    columns = [
        (tensor, pipeline, row.devices // (tensor * pipeline), micro_batch)
        for tensor, pipeline, micro_batch in product(_POWERS, _POWERS, _POWERS)
        if _divides(row, row.machine, tensor, pipeline, micro_batch)
    ]
    tensor, pipeline, data, micro_batch = np.array(columns, np.float64).T
    same = np.ones_like(tensor)
    return TrainingRuns(
        layers=same * row.layers,
        hidden=same * row.hidden,
        heads=same * row.heads,
        sequence=same * row.sequence,
        vocabulary=same * row.vocabulary,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        batch=same * row.batch,
        micro_batch=micro_batch,
        interleave=same,
        recompute=same,
        sequence_parallel=0 * same,
        sharding=0 * same,
    )


def _divides(row: BestRate, machine: Machine, tensor: int, pipeline: int, micro_batch: int) -> bool:
    if tensor > machine.devices_per_node or row.devices % (tensor * pipeline):
        return False
    data = row.devices // (tensor * pipeline)
    return not (row.layers % pipeline or row.heads % tensor or row.batch % (data * micro_batch))
