"""The cluster model as the BigCuts thesis prints it, and the reading of it that reproduces its Table 5.6."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import Transformer
from tilewright.costmodel.cluster.inputs.training import SCHEDULES, Training
from tilewright.costmodel.cluster.modes.configurations import (
    Column,
    Evaluation,
    IntColumn,
    printed_configurations,
)

#: the printed formulas count two bytes per parameter and activation, whatever the precision
_BYTES = 2
_PR = SCHEDULES.index("PR")


def evaluate_printed(cluster: Cluster, model: Transformer, training: Training, mode: str) -> Evaluation:
    """Seconds of every (dp, wp, p) and schedule; no capacity check, as the thesis makes none visible.

    printed: TIME_TOT = max(TIME_COMPUTE, (FWDBWD + OPT) / BW_S + (WP + DP + P) / BW_P2P).
    table: the columns' labels exchanged, the two bandwidths swapped in the column labelled PR, no compute
    time; this reading was inferred from Table 5.6 itself.
    """
    c = printed_configurations(cluster, training)
    pr = c.schedule == _PR
    traffic = _traffic(model, training, c.dp, c.tp, c.p)
    storage = cluster.storage.device_read_bytes_per_s
    link = cluster.printed_bytes_per_s
    table = mode == "table"
    by_activations = ~pr if table else pr
    fetch = np.where(by_activations, traffic["activations"], traffic["parameters"])
    fetch_rate = np.where(pr, link, storage) if table else np.full(len(c), storage)
    link_rate = np.where(pr, storage, link) if table else np.full(len(c), link)
    components = {
        "compute": np.zeros(len(c)) if table else _compute(cluster, model, training, c.dp * c.tp * c.p),
        "storage": fetch / fetch_rate,
        "optimizer": traffic["optimizer"] / fetch_rate,
        **{name: traffic[name] / link_rate for name in ("wp", "dp", "pp")},
    }
    moved = sum(components[name] for name in ("storage", "optimizer", "wp", "dp", "pp"))
    unknown = np.zeros(len(c))
    return Evaluation(
        mode=mode,
        configurations=c,
        total_s=np.maximum(components["compute"], moved),
        components_s=components,
        memory_bytes=unknown,
        storage_bytes=unknown,
        memory_capacity_bytes=cluster.device.memory_bytes,
        storage_capacity_bytes=cluster.storage.device_capacity_bytes,
        against={},
    )


def _traffic(
    model: Transformer, training: Training, dp: IntColumn, tp: IntColumn, p: IntColumn
) -> Mapping[str, Column]:
    """Bytes per device and step by the printed terms, with BATCH_MICRO = 1 and COMM_DP per operator."""
    ops, parameters, activations = model.op_count, model.op_parameters, model.op_activations
    batch, coefficient = training.batch, training.optimizer_coefficient
    return {
        "activations": 2 * _BYTES * activations * ops * batch / (dp * p),
        "parameters": _BYTES * parameters * ops * batch / (tp * p),
        "optimizer": 4 * _BYTES * coefficient * parameters * ops / (tp * p),
        "wp": _BYTES * (ops / p) * (activations / dp) * np.log2(tp) * batch,
        "dp": _BYTES * (parameters / tp) * np.log2(dp),
        "pp": _BYTES * (activations / dp) * batch,
    }


def _compute(cluster: Cluster, model: Transformer, training: Training, devices: IntColumn) -> Column:
    """TIME_COMPUTE = NUM_COMPUTE OP B / (EFF PEAK DP WP P)."""
    rate = cluster.device.flops_per_s(training.precision)
    flops = training.printed_flops_per_op * model.op_count * training.batch
    return np.asarray(flops / (rate * devices), np.float64)
