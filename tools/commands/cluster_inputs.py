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
from tilewright.tools.commands.network import BUNDLED, read_network

_RELAY = (".relay", ".json")
_NETWORKS = (*_RELAY, *BUNDLED, ".ir")


def load_inputs(a: argparse.Namespace) -> tuple[Cluster, Model, Training]:
    """Load all three from files or by names of shipped records; raises InputError naming file and field.

    Of the arguments of `cluster plan` it takes cluster, model and training, and of a network inputs (names,
    separated by commas, of parameters that carry samples), shapes and constants.
    """
    return load_cluster(a.cluster), _model(a), load_training(a.training)


def _model(a: argparse.Namespace) -> Model:
    if a.model.startswith(ZOO) or Path(a.model).suffix in _NETWORKS:
        return _network(a)
    for option, given in (("inputs", a.inputs), ("shape", a.shape), ("constant", a.constant)):
        if given:
            raise InputError("only networks have inputs, a model by dimensions has none", where=f"--{option}")
    return load_model(a.model)


def _network(a: argparse.Namespace) -> Model:
    """Units from the graph; the weights' values play no part, so none are made up."""
    name, inputs = a.model, tuple(a.inputs.split(",")) if a.inputs else None
    module = read_network(name, shapes=a.shape, constants=a.constant)
    if inputs is None and Path(name).suffix in _RELAY:
        inputs = _sample_inputs(module)
    return network_model(module.main, Path(name.removeprefix(ZOO)).stem, inputs)


def _sample_inputs(module: Module) -> tuple[str, ...]:
    """The first parameter and those of integers, as where weights are random."""
    names, types = module.input_names, module.input_types
    return tuple(n for i, (n, t) in enumerate(zip(names, types, strict=True)) if i == 0 or "int" in t.dtype)
