"""Reads what a plan is made of: a cluster, a model (by dimensions or from a network) and a training."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.costmodel.cluster.loaders import load_cluster, load_model, load_training
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.model import Model
from tilewright.costmodel.cluster.network_model import network_model
from tilewright.costmodel.cluster.training import Training
from tilewright.ir import InputError, Module
from tilewright.tools.arguments.scope import ZOO
from tilewright.tools.commands.network import BUNDLED, load_network

_RELAY = (".relay", ".json")
_NETWORKS = (*_RELAY, *BUNDLED, ".ir")


def load_inputs(
    cluster: str, model: str, training: str, inputs: str | None
) -> tuple[Cluster, Model, Training]:
    """Load all three from files or by names of shipped records; raises InputError naming file and field.

    inputs: names, separated by commas, of a network's parameters that carry samples.
    """
    return load_cluster(cluster), _model(model, inputs), load_training(training)


def _model(model: str, inputs: str | None) -> Model:
    if model.startswith(ZOO) or Path(model).suffix in _NETWORKS:
        return _network(model, tuple(inputs.split(",")) if inputs else None)
    if inputs:
        raise InputError("only networks have inputs, a model by dimensions has none", where="--inputs")
    return load_model(model)


def _network(name: str, inputs: tuple[str, ...] | None) -> Model:
    """Units from the graph; the weights' values play no part, so none are made up."""
    arguments = argparse.Namespace(network=name, params=None, inputs=None, shape=[], constant=[], seed=0)
    module = load_network(arguments)
    if inputs is None and Path(name).suffix in _RELAY:
        inputs = _sample_inputs(module)
    return network_model(module.main, Path(name.removeprefix(ZOO)).stem, inputs)


def _sample_inputs(module: Module) -> tuple[str, ...]:
    """The first parameter and those of integers, as where weights are random."""
    names, types = module.input_names, module.input_types
    return tuple(n for i, (n, t) in enumerate(zip(names, types, strict=True)) if i == 0 or "int" in t.dtype)
