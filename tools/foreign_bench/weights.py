"""Weights drawn by NumPy from a seed and their names: the same on every machine and with every PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def fill(network: Any, seed: int = 0) -> None:
    """Draw every parameter and every statistic of a batch norm anew, so that all parts matter.

    Matrices and filters have a variance of one over the fan-in, as have embeddings over their width.
    """
    import torch

    scales = _scales(network)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not tensor.is_floating_point():
                continue
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            shape = tuple(tensor.shape)
            drawn: np.ndarray
            if name.endswith("running_var") or name in scales:
                drawn = rng.uniform(0.7, 1.3, shape)
            elif tensor.dim() > 1:
                drawn = rng.standard_normal(shape, np.float32) / np.sqrt(_fan_in(network, name, shape))
            else:
                drawn = 0.1 * rng.standard_normal(shape, np.float32)
            tensor.copy_(torch.from_numpy(np.asarray(drawn, np.float32)))


def _scales(network: Any) -> set[str]:
    """Names of vectors that multiply: those that PyTorch starts at one."""
    return {
        name
        for name, tensor in network.state_dict().items()
        if tensor.is_floating_point() and tensor.dim() == 1 and tensor.numel() and bool((tensor == 1).all())
    }


def _fan_in(network: Any, name: str, shape: tuple[int, ...]) -> int:
    import torch

    owner = network.get_submodule(name.rpartition(".")[0])
    transposed = isinstance(owner, torch.nn.modules.conv._ConvTransposeNd)
    count = int(np.prod(shape)) // shape[0]
    return shape[0] if transposed else max(1, count)


def state_arrays(network: Any) -> Mapping[str, np.ndarray]:
    """All that the network holds by name, parameters and buffers that are not saved included."""
    held = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: tensor.detach().cpu().numpy() for name, tensor in held.items()}
