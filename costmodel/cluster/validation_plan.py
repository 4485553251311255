"""What the planner's mode `corrected` says of measured rows, with the shipped A100 record, nothing fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.evaluate import evaluate
from tilewright.costmodel.cluster.in_memory import Machine
from tilewright.costmodel.cluster.loaders import load_cluster
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.measured_rows import MeasuredRows
from tilewright.costmodel.cluster.model import Transformer
from tilewright.costmodel.cluster.training import Training

Array = NDArray[np.float64]


def planner_seconds(rows: MeasuredRows) -> Array:
    """Seconds of the mode `corrected` per row, all in device memory (schedule IM).

    Recomputing attention only is priced as recomputing nothing, the nearest choice that mode has.
    """
    runs = rows.runs
    task = np.stack(
        [runs.layers, runs.hidden, runs.heads, runs.sequence, runs.vocabulary, runs.devices, runs.batch]
    )
    tasks, which = np.unique(task.astype(np.int64), axis=1, return_inverse=True)
    whole = (runs.recompute == 1).astype(np.float64)
    choice = [runs.data, runs.tensor, runs.pipeline, runs.micro_batch, whole, runs.sharding, runs.interleave]
    choices = np.stack(choice, axis=1).astype(np.int64)
    seconds = np.empty(len(rows.step_s))
    for number, dimensions in enumerate(tasks.T.tolist()):
        mine = np.flatnonzero(which.ravel() == number)
        *shape, devices, batch = dimensions
        seconds[mine] = _task_seconds(rows.machine, Transformer("", *shape), devices, batch, choices[mine])
    return seconds


def _task_seconds(
    machine: Machine, model: Transformer, devices: int, batch: int, choices: NDArray[np.int64]
) -> list[float]:
    """Seconds of each choice (data, tensor, pipeline, micro-batch, recompute, sharding, interleave)."""
    micro_batches, recompute, sharding, interleave = (
        sorted(set(column)) for column in choices.T[3:].tolist()
    )
    training = Training(
        "",
        batch,
        tuple(micro_batches),
        ("IM",),
        tuple(bool(r) for r in recompute),
        tuple(sharding),
        tuple(interleave),
    )
    found = evaluate(_cluster(machine, devices), model, training, "corrected")
    c = found.configurations
    columns = (c.dp, c.wp, c.p, c.micro_batch, c.recompute, c.sharding, c.interleave)
    places = {key: i for i, key in enumerate(zip(*(column.tolist() for column in columns), strict=True))}
    return [float(found.total_s[places[tuple(choice)]]) for choice in choices.tolist()]


def _cluster(machine: Machine, devices: int) -> Cluster:
    """The shipped record of A100 nodes with as many devices, and with the network of the machine measured."""
    record = load_cluster("dgx-a100")
    per_node = min(devices, machine.devices_per_node)
    network = machine.node_network_bytes_per_s / machine.devices_per_node
    inter = replace(record.inter, bytes_per_s=network, per="device")
    return replace(record, nodes=devices // per_node, devices_per_node=per_node, inter=inter)
