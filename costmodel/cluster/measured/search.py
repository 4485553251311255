"""Search with knobs fitted to measured steps: schedule IM of a transformer, priced by the in-memory model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import ClusterModel, Transformer
from tilewright.costmodel.cluster.inputs.training import SCHEDULES, Training
from tilewright.costmodel.cluster.measured.in_memory import Knobs, Machine, TrainingRuns, step_time
from tilewright.costmodel.cluster.measured.rings import A100
from tilewright.costmodel.cluster.modes.configurations import Configurations, Evaluation
from tilewright.costmodel.cluster.modes.search import SearchResult, evaluate, ranked
from tilewright.ir.errors import UnsupportedError

#: NVLink of an A100 in one direction, where rings were measured (NVIDIA A100 datasheet: 600 GB/s for both)
_MEASURED_LINK = 300e9
_STREAMED = "schedule other than IM"


def search_in_memory(
    cluster: Cluster, model: ClusterModel, training: Training, knobs: Knobs, top: int = 10
) -> SearchResult:
    """The `top` fastest feasible configurations of `evaluate_in_memory`; errors as there."""
    return ranked(evaluate_in_memory(cluster, model, training, knobs), top)


def evaluate_in_memory(cluster: Cluster, model: ClusterModel, training: Training, knobs: Knobs) -> Evaluation:
    """The corrected mode's configurations and capacities with the seconds of the in-memory model.

    The components add up to the total: nothing of a step was measured to overlap. Raises UnsupportedError for
    models but transformers, for inference and where IM is not among the schedules.
    """
    if not isinstance(model, Transformer):
        raise UnsupportedError(f"fitted knobs price transformers by dimensions only, got {model.name}")
    if training.phase != "training" or "IM" not in training.schedules:
        raise UnsupportedError(f"fitted knobs price training with schedule IM, which {training.name} lacks")
    evaluation = evaluate(cluster, model, training, "corrected")
    runs = _runs(evaluation.configurations, model, training)
    seconds = step_time(runs, machine_of(cluster, training.precision), knobs)
    streamed = evaluation.configurations.schedule != SCHEDULES.index("IM")
    return replace(
        evaluation,
        total_s=seconds.total,
        components_s={
            "compute": seconds.compute,
            "bubble": seconds.bubble,
            "wp": seconds.tensor_parallel,
            "pp": seconds.transfer,
            "dp": seconds.data_parallel,
            "optimizer": seconds.optimizer,
            "host": seconds.overhead,
        },
        against={**evaluation.against, _STREAMED: streamed},
    )


def machine_of(cluster: Cluster, precision: str) -> Machine:
    """The cluster as the in-memory model sees it; rings in a node as on A100, scaled by the link's rate."""
    per_node = cluster.devices_per_node
    link = cluster.intra.bytes_per_s / (per_node if cluster.intra.per == "node" else 1)
    ports = 1 if cluster.inter.per == "node" else per_node
    rates = tuple(rate * link / _MEASURED_LINK for rate in A100.bus_bytes_per_s)
    device = cluster.device
    return Machine(
        name=cluster.name,
        peak_flops=device.flops_per_s(precision) / device.efficiency,  # efficiency is a knob here
        memory_bytes_per_s=device.memory_bytes_per_s,
        memory_bytes=device.memory_bytes,
        devices_per_node=per_node,
        node_network_bytes_per_s=cluster.inter.bytes_per_s * ports,
        ring=replace(A100, name=cluster.name, bus_bytes_per_s=rates),
    )


def _runs(c: Configurations, model: Transformer, training: Training) -> TrainingRuns:
    def filled(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.full(len(c), float(value))

    return TrainingRuns(
        layers=filled(model.layers),
        hidden=filled(model.hidden),
        heads=filled(model.heads),
        sequence=filled(model.sequence),
        vocabulary=filled(model.vocabulary),
        tensor=c.tp.astype(np.float64),
        pipeline=c.p.astype(np.float64),
        data=c.dp.astype(np.float64),
        batch=filled(training.batch),
        micro_batch=c.micro_batch.astype(np.float64),
        interleave=c.interleave.astype(np.float64),
        recompute=c.recompute.astype(np.float64),
        sequence_parallel=filled(0),
        sharding=c.sharding.astype(np.float64),
    )
