"""Reads what a plan is made of: a cluster, a model (by dimensions or from a network) and a training."""

from __future__ import annotations

from pathlib import Path

from tilewright.costmodel.cluster.loaders import load_cluster, load_model, load_training
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.model import Model
from tilewright.costmodel.cluster.training import Training


def load_inputs(cluster: str, model: str, training: str) -> tuple[Cluster, Model, Training]:
    """Load all three from files or by names of shipped records; raises InputError naming file and field."""
    return load_cluster(cluster), _model(model), load_training(training)


def _model(model: str) -> Model:
    return load_model(Path(model)) if Path(model).suffix == ".toml" else load_model(model)
