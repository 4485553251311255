"""The corrected cluster model: times and capacities of every configuration, and what rules one out."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import ClusterModel
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.modes.columns import StepColumns, case_of
from tilewright.costmodel.cluster.modes.configurations import Column, Evaluation, Flags
from tilewright.costmodel.cluster.modes.times import boundary_bytes, inside_bytes, times, total_s

#: what streams is double-buffered
_BUFFERS = 2
#: logits and their softmax are float32
_HEAD_BYTES = 4


def memory_bytes(case: StepColumns) -> Column:
    """Parameters, gradients, optimizer state and activations that are in device memory at the same time."""
    buffers = _BUFFERS * case.element * case.load["unit_parameters"] / case.tp
    whole = case.unit_bytes / case.shards(3) + np.where(case.configurations.sharding >= 3, buffers, 0.0)
    summed = case.backward * case.unit_bytes / case.shards(2)
    gradients_pass = case.parameter_resident | case.gradients_stored
    parameters = np.where(case.in_memory, whole + case.state_bytes, buffers)
    gradients = np.where(gradients_pass, case.backward * buffers, summed)
    return parameters + gradients + _streamed_or_kept(case) + _working(case)


def storage_bytes(case: StepColumns) -> Column:
    """Parameters and optimizer state; gradients where they go there; activations of all samples for PR."""
    parameters = case.unit_bytes / case.shards(3) + case.state_bytes
    gradients = case.backward * case.unit_bytes / case.shards(2)
    parameters = parameters + np.where(case.parameter_resident | case.gradients_stored, gradients, 0.0)
    activations = np.where(case.parameter_resident, boundary_bytes(case) + inside_bytes(case), 0.0)
    return np.where(case.in_memory, 0.0, parameters + activations)


def _streamed_or_kept(case: StepColumns) -> Column:
    """Layer inputs in memory: double buffers of input, output and gradient (PR), or all those in flight."""
    one = case.element * case.load["largest_boundary"] * case.micro_batch / case.tp
    streamed = _BUFFERS * (2.0 + case.backward) * one
    chunks = np.where(case.interleave > 1, 1.0 + (case.p - 1) / (case.p * case.interleave), 1.0)
    in_flight = np.minimum(case.micro_steps, case.p) * chunks
    resident = in_flight * (boundary_bytes(case) + inside_bytes(case)) / case.micro_steps
    if not case.backward:
        return np.where(case.parameter_resident, streamed, _BUFFERS * one)
    return np.where(case.parameter_resident, streamed, resident)


def _working(case: StepColumns) -> Column:
    """One layer at work on a micro-batch, or the model's head."""
    elements = case.load["unit_inside_sharded"] / case.tp + case.load["unit_inside_replicated"]
    layer = case.element * elements
    head = _HEAD_BYTES * case.load["head"] / case.tp
    return np.maximum(layer, head) * case.micro_batch


def evaluate_corrected(cluster: Cluster, model: ClusterModel, training: Training) -> Evaluation:
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


def _indivisible(case: StepColumns) -> dict[str, Flags]:
    """Return the configurations in which samples, layers, heads or interleaved chunks do not divide."""
    c, layers = case.configurations, case.model.layers
    strict = case.model.uniform and not case.training.uneven_stages
    per_stage = -(-layers // np.minimum(c.p, layers))
    splits = {int(tp): case.model.splits(int(tp)) for tp in np.unique(c.tp)}
    interleaved = c.interleave > 1
    return {
        "batch not divisible by dp x micro-batch": case.training.batch % (c.dp * c.micro_batch) != 0,
        "more stages than layers": c.p > layers,
        "layers not divisible by p": (layers % c.p != 0) & (c.p <= layers) & strict,
        "layer not divisible by wp": ~np.array([splits[int(tp)] for tp in c.tp], bool),
        "layers of a stage not divisible by interleave": interleaved & (per_stage % c.interleave != 0),
        "micro-batches not divisible by p for interleave": interleaved
        & (case.training.batch // (c.dp * c.micro_batch) % c.p != 0),
    }


def _repetitive(case: StepColumns) -> dict[str, Flags]:
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
