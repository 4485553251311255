"""Seconds per step of compute, storage, communication and optimizer in the corrected model.

Communication is by ring collectives and stage-to-stage transfers over the right link. Devices are numbered
with weight partition innermost, then data parallelism, then pipeline stages.
"""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.modes.columns import StepColumns
from tilewright.costmodel.cluster.modes.configurations import Column, Flags
from tilewright.costmodel.links import Link

#: gradients of small layers are reduced together: the default bucket of PyTorch's DistributedDataParallel
BUCKET_BYTES = 25 * 2**20


def tensor_ring_s(case: StepColumns, volume: Column, calls: Column) -> Column:
    """Seconds of all-reduces of `volume` bytes in all, in `calls` calls, in the weight-partition group.

    Between nodes every device has its own share of the node's ports (these calls cannot wait for each other).
    """
    rate = _between_rate(case.cluster, np.full_like(case.tp, case.cluster.devices_per_node))
    inside = case.tp <= case.cluster.devices_per_node
    moved = 2.0 * (case.tp - 1) / case.tp * volume
    seconds = _seconds(case.cluster, inside, moved, rate, calls, 2.0 * calls * (case.tp - 1))
    return np.where(case.tp > 1, seconds, 0.0)


def data_ring_s(case: StepColumns, sweeps: Column, all_reduces: Flags) -> Column:
    """Seconds of ring collectives over all parameters of a stage in the data-parallel group.

    sweeps: how often they pass once around the ring: all-gather and reduce-scatter 1, all-reduce 2, in one
    call. Layers go together into calls of at least BUCKET_BYTES.
    A ring enters and leaves each node once, so a node's ports are shared by its rings: one for every index of
    the weight partition in the node.
    """
    cluster = case.cluster
    members = np.maximum(cluster.devices_per_node // case.tp, 1)
    rate = _between_rate(cluster, cluster.devices_per_node / members)
    rate = np.where(members > 1, np.minimum(rate, _inside_rate(cluster)), rate)
    inside = case.dp * case.tp <= cluster.devices_per_node
    moved = sweeps * (case.dp - 1) / case.dp * case.unit_bytes
    buckets = np.minimum(np.ceil(case.unit_bytes / BUCKET_BYTES), case.load["units"])
    calls = buckets * np.where(all_reduces, 1.0, sweeps)
    seconds = _seconds(cluster, inside, moved, rate, calls, sweeps * buckets * (case.dp - 1))
    return np.where(case.dp > 1, seconds, 0.0)


def pipeline_s(case: StepColumns, volume: Column, calls: Column) -> Column:
    """Seconds in which every device of a stage sends `volume` bytes in `calls` messages to the next stage."""
    cluster, width = case.cluster, case.tp * case.dp
    inside = width * case.p <= cluster.devices_per_node
    senders = np.minimum(width, cluster.devices_per_node)
    if cluster.inter.per == "device":
        senders = np.full_like(width, cluster.devices_per_node)
    rate = _between_rate(cluster, senders)
    return np.where(case.p > 1, _seconds(cluster, inside, volume, rate, calls, calls), 0.0)


def _seconds(
    cluster: Cluster, inside: Flags, moved: Column, between_rate: Column, calls: Column, hops: Column
) -> Column:
    """Bytes at the rate of the link inside or between nodes, and its latency per call and per hop."""
    within = moved / _inside_rate(cluster) + _latency_s(cluster.intra, calls, hops)
    return np.where(inside, within, moved / between_rate + _latency_s(cluster.inter, calls, hops))


def _inside_rate(cluster: Cluster) -> float:
    """Bytes/s of one device inside its node, while all devices of the node send."""
    shared = cluster.devices_per_node if cluster.intra.per == "node" else 1
    return cluster.intra.bytes_per_s / shared


def _between_rate(cluster: Cluster, senders: Column) -> Column:
    """Bytes/s of each of `senders` equal senders of a node."""
    ports = 1 if cluster.inter.per == "node" else cluster.devices_per_node
    return cluster.inter.bytes_per_s * ports / senders


def _latency_s(link: Link, calls: Column, hops: Column) -> Column:
    return calls * link.call_s + hops * link.latency_s


def times(case: StepColumns) -> dict[str, Column]:
    """Components in seconds; `total_s` says which of them overlap."""
    compute, traffic = _compute_s(case), _device_memory_s(case)
    read, write = _storage_bytes(case)
    return {
        "compute": compute,
        "device_memory": traffic,
        "bubble": np.maximum(compute, traffic) * (case.p - 1) / (case.interleave * case.micro_steps),
        "storage_read": read / case.cluster.storage.device_read_bytes_per_s,
        "storage_write": write / case.cluster.storage.device_write_bytes_per_s,
        "wp": _tensor_parallel_s(case),
        "pp": _pipeline_s(case),
        "gather": _gather_s(case),
        "dp": _data_parallel_s(case),
        "optimizer": _optimizer_s(case),
    }


def total_s(case: StepColumns, part: dict[str, Column]) -> Column:
    """T = max(T_work, T_storage, T_wp + T_pp + T_gather) + T_dp + T_optimizer.

    T_work is the larger one of compute and device memory, and the bubble.
    """
    work = np.maximum(part["compute"], part["device_memory"]) + part["bubble"]
    storage = _both(case, part["storage_read"], part["storage_write"])
    lanes = (work, storage, part["wp"] + part["pp"] + part["gather"])
    return np.maximum.reduce(lanes) + part["dp"] + part["optimizer"]


def _compute_s(case: StepColumns) -> Column:
    """(1 forward + 2 backward + 1 recomputation) x forward FLOP of the stage; the head is not recomputed."""
    rate = case.cluster.device.flops_per_s(case.training.precision)
    passes, head_passes = case.forwards + 2.0 * case.backward, 1.0 + 2.0 * case.backward
    flops = passes * case.load["flops"] + head_passes * case.load["head_flops"]
    return flops * case.samples / (case.tp * rate)


def _device_memory_s(case: StepColumns) -> Column:
    """The least traffic of device memory: per pass, parameters per micro-batch, and layer inputs and results.

    Passes as for compute. What a layer keeps to itself counts nothing, as if each were one kernel.
    """
    passes = case.forwards + 2.0 * case.backward
    boundaries = 2.0 * case.element * case.load["boundary"] * case.samples
    moved = passes * (case.unit_bytes * case.micro_steps + boundaries)
    return np.asarray(moved / case.cluster.device.memory_bytes_per_s, np.float64)


def boundary_bytes(case: StepColumns) -> Column:
    """Layer inputs of one replica's samples on one device: (L/P) (B/DP) A / WP."""
    return case.element * case.load["boundary"] * case.samples / case.tp


def inside_bytes(case: StepColumns) -> Column:
    """Bytes that the backward pass needs besides layer inputs; 0 where recomputed or never needed."""
    elements = case.load["inside_sharded"] / case.tp + case.load["inside_replicated"]
    return np.where(case.recompute, 0.0, case.backward * case.element * elements * case.samples)


def _storage_bytes(case: StepColumns) -> tuple[Column, Column]:
    """Bytes that one device reads and writes per step, without the optimizer's.

    PR reads every parameter once per direction, a layer's input forwards, and that input and the gradient
    backwards; it writes outputs, gradients of activations, and gradients of parameters once.
    AR reads the parameters again for every micro-batch, and adds gradients up on storage or in memory.
    """
    directions = 1.0 + case.backward
    parameters = directions * case.unit_bytes / case.shards(3)
    gradients = case.backward * case.unit_bytes / case.shards(2)
    activations, inside, m = boundary_bytes(case), inside_bytes(case), case.micro_steps
    stored = case.gradients_stored
    read_pr = parameters + (1 + 2 * case.backward) * activations + inside
    write_pr = gradients + directions * activations + inside
    read_ar = parameters * m + np.where(stored, gradients * np.maximum(m - 1, 0.0), 0.0)
    write_ar = gradients * np.where(stored, m, 1.0)
    chosen = [case.parameter_resident, case.activation_resident]
    return np.select(chosen, [read_pr, read_ar], 0.0), np.select(chosen, [write_pr, write_ar], 0.0)


def _tensor_parallel_s(case: StepColumns) -> Column:
    """All-reduce of every partitioned layer's result in each forward, recomputed and backward pass."""
    passes = case.forwards + case.backward
    volume = passes * case.element * case.load["reduced"] * case.samples
    return tensor_ring_s(case, volume, passes * case.load["reductions"] * case.micro_steps)


def _pipeline_s(case: StepColumns) -> Column:
    """Activations to the next stage and, in training, gradients back; once per interleaved chunk."""
    times_sent = (1.0 + case.backward) * case.interleave
    volume = times_sent * case.element * case.load["edge"] * case.samples
    return pipeline_s(case, volume, times_sent * case.micro_steps)


def _gather_s(case: StepColumns) -> Column:
    """All-gather of sharded parameters (3) before every use: per step (PR) or per micro-batch (AR, IM)."""
    uses = (1.0 + case.backward) * np.where(case.parameter_resident, 1.0, case.micro_steps)
    sharded = case.configurations.sharding >= 3
    return np.where(sharded, data_ring_s(case, uses, ~sharded), 0.0)


def _data_parallel_s(case: StepColumns) -> Column:
    """Gradients: reduce-scatter, and all-gather (of gradients, or from sharding 1 on of new parameters).

    Sharded gradients (2, 3) are scattered once per step in PR, where a layer sees all micro-batches in a row,
    and per micro-batch in AR and IM. Sharded parameters (3) need no all-gather here.
    """
    if not case.backward:
        return np.zeros_like(case.dp)
    sharding = case.configurations.sharding
    scatters = np.where((sharding >= 2) & ~case.parameter_resident, case.micro_steps, 1.0)
    sweeps = scatters + np.where(sharding >= 3, 0.0, 1.0)
    return data_ring_s(case, sweeps, sharding == 0)


def _optimizer_s(case: StepColumns) -> Column:
    """State and gradient in, state and parameter out (14 + 14 bytes per parameter: fp16 and Adam).

    From and to storage; in device memory for schedule IM.
    """
    moved = case.state_bytes + case.backward * case.unit_bytes / case.shards(1)
    storage = case.cluster.storage
    streamed = _both(case, moved / storage.device_read_bytes_per_s, moved / storage.device_write_bytes_per_s)
    return np.where(case.in_memory, 2.0 * moved / case.cluster.device.memory_bytes_per_s, streamed)


def _both(case: StepColumns, read_s: Column, write_s: Column) -> Column:
    """Reading and writing: one after the other on half-duplex storage, at once on full-duplex storage."""
    return read_s + write_s if case.cluster.storage.duplex == "half" else np.maximum(read_s, write_s)
