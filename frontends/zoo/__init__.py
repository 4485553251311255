"""Networks built from their papers, with random weights, for tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.frontends.zoo.nasnet import nasnet_mobile
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module

__all__ = ["NETWORKS", "build", "nasnet_mobile"]

NETWORKS: Mapping[str, Callable[..., Module]] = {"nasnet_mobile": nasnet_mobile}


def build(name: str, seed: int = 0) -> Module:
    """Network `name` at its published size; raises InputError naming the known ones."""
    if name not in NETWORKS:
        raise InputError(f"expected a network of the zoo ({', '.join(NETWORKS)}), got '{name}'")
    return NETWORKS[name](seed=seed)
