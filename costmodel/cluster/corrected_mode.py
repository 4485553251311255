"""The corrected cluster model: times and capacities of every configuration, and what rules one out."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.cluster.corrected_capacity import memory_bytes, storage_bytes
from tilewright.costmodel.cluster.corrected_times import times, total_s
from tilewright.costmodel.cluster.evaluation import Evaluation, Flags
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.model import Model
from tilewright.costmodel.cluster.stage_columns import Case, case_of
from tilewright.costmodel.cluster.training import Training


def evaluate_corrected(cluster: Cluster, model: Model, training: Training) -> Evaluation:
    """Every configuration with ring collectives, bubble, storage and optimizer traffic, and capacities."""
    case = case_of(cluster, model, training)
    components = times(case)
    memory, storage = memory_bytes(case), storage_bytes(case)
    against = {
        **_indivisible(case),
        **_repetitive(case),
        "device memory": memory > cluster.device.memory_bytes,
        "storage capacity": storage > cluster.storage.device_capacity_bytes,
    }
    return Evaluation(
        mode="corrected",
        configurations=case.configurations,
        total_s=total_s(case, components),
        components_s=components,
        memory_bytes=memory,
        storage_bytes=storage,
        memory_capacity_bytes=cluster.device.memory_bytes,
        storage_capacity_bytes=cluster.storage.device_capacity_bytes,
        against=against,
    )


def _indivisible(case: Case) -> dict[str, Flags]:
    """What must divide: samples, layers, heads, interleaved chunks."""
    c, layers = case.configurations, case.model.layers
    strict = case.model.uniform and not case.training.uneven_stages
    per_stage = -(-layers // np.minimum(c.p, layers))
    splits = {int(wp): case.model.splits(int(wp)) for wp in np.unique(c.wp)}
    interleaved = c.interleave > 1
    return {
        "batch not divisible by dp x micro-batch": case.training.batch % (c.dp * c.micro_batch) != 0,
        "more stages than layers": c.p > layers,
        "layers not divisible by p": (layers % c.p != 0) & (c.p <= layers) & strict,
        "layer not divisible by wp": ~np.array([splits[int(wp)] for wp in c.wp], bool),
        "layers of a stage not divisible by interleave": interleaved & (per_stage % c.interleave != 0),
        "micro-batches not divisible by p for interleave": interleaved
        & (case.training.batch // (c.dp * c.micro_batch) % c.p != 0),
    }


def _repetitive(case: Case) -> dict[str, Flags]:
    """Choices without effect: the same configuration without them is counted already."""
    c = case.configurations
    sharded = (c.sharding > 0) & (c.dp == 1) & (c.sharding != min(case.training.sharding))
    chunks = (c.interleave > 1) & (c.p == 1)
    placed = (c.gradients != c.gradients[0]) & ~case.activation_resident
    return {
        "sharding without data parallelism": sharded,
        "interleave without pipeline": chunks,
        "gradients on storage outside of AR": placed,
    }
