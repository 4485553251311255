"""Evaluates every configuration of a model on a cluster by one of the modes: printed, table, corrected."""

from __future__ import annotations

from tilewright.costmodel.cluster.corrected_mode import evaluate_corrected
from tilewright.costmodel.cluster.evaluation import Evaluation
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.model import Model, Transformer
from tilewright.costmodel.cluster.printed_mode import evaluate_printed
from tilewright.costmodel.cluster.training import Training
from tilewright.ir.errors import InputError, UnsupportedError

MODES = ("printed", "table", "corrected")


def evaluate(cluster: Cluster, model: Model, training: Training, mode: str = "corrected") -> Evaluation:
    """Seconds by component, bytes and feasibility of every configuration, in a fixed order.

    Raises InputError for an unknown mode, and UnsupportedError for what the printed modes do not know: any
    model but a Transformer, and inference.
    """
    if mode not in MODES:
        raise InputError(f"expected a mode of {', '.join(MODES)}, got {mode!r}")
    if mode == "corrected":
        return evaluate_corrected(cluster, model, training)
    if not isinstance(model, Transformer):
        raise UnsupportedError(f"mode {mode} knows transformers by dimensions only, got {model.name}")
    if training.phase != "training":
        raise UnsupportedError(f"mode {mode} knows training only, got phase {training.phase}")
    return evaluate_printed(cluster, model, training, mode)
