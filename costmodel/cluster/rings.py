"""Communication between devices: ring collectives and stage-to-stage transfers over the right link.

Devices are numbered with weight partition innermost, then data parallelism, then pipeline stages.
"""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.cluster.evaluation import Column, Flags
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.stage_columns import Case
from tilewright.costmodel.links import Link

#: gradients of small layers are reduced together: the default bucket of PyTorch's DistributedDataParallel
BUCKET_BYTES = 25 * 2**20


def weight_ring_s(case: Case, volume: Column, calls: Column) -> Column:
    """Seconds of all-reduces of `volume` bytes in all, in `calls` calls, in the weight-partition group.

    Between nodes every device has its own share of the node's ports (these calls cannot wait for each other).
    """
    rate = _between_rate(case.cluster, np.full_like(case.wp, case.cluster.devices_per_node))
    inside = case.wp <= case.cluster.devices_per_node
    moved = 2.0 * (case.wp - 1) / case.wp * volume
    seconds = _seconds(case.cluster, inside, moved, rate, calls, 2.0 * calls * (case.wp - 1))
    return np.where(case.wp > 1, seconds, 0.0)


def data_ring_s(case: Case, sweeps: Column, all_reduces: Flags) -> Column:
    """Seconds of ring collectives over all parameters of a stage in the data-parallel group.

    sweeps: how often they pass once around the ring: all-gather and reduce-scatter 1, all-reduce 2, in one
    call. Layers go together into calls of at least BUCKET_BYTES.
    A ring enters and leaves each node once, so a node's ports are shared by its rings: one for every index of
    the weight partition in the node.
    """
    cluster = case.cluster
    members = np.maximum(cluster.devices_per_node // case.wp, 1)
    rate = _between_rate(cluster, cluster.devices_per_node / members)
    rate = np.where(members > 1, np.minimum(rate, _inside_rate(cluster)), rate)
    inside = case.dp * case.wp <= cluster.devices_per_node
    moved = sweeps * (case.dp - 1) / case.dp * case.unit_bytes
    buckets = np.minimum(np.ceil(case.unit_bytes / BUCKET_BYTES), case.load["units"])
    calls = buckets * np.where(all_reduces, 1.0, sweeps)
    seconds = _seconds(cluster, inside, moved, rate, calls, sweeps * buckets * (case.dp - 1))
    return np.where(case.dp > 1, seconds, 0.0)


def pipeline_s(case: Case, volume: Column, calls: Column) -> Column:
    """Seconds in which every device of a stage sends `volume` bytes in `calls` messages to the next stage."""
    cluster, width = case.cluster, case.wp * case.dp
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
