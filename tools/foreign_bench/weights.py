"""Weights drawn by NumPy from a seed and their names: the same on every machine and with every PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

#: what PyTorch draws weights with, by name in torch.nn.init
_DRAWING = ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "uniform_", "normal_")


@contextmanager
def undrawn() -> Iterator[None]:
    """Let layers that are made meanwhile begin with zeros: drawing large weights twice takes seconds."""
    init = import_module("torch").nn.init
    before = {name: getattr(init, name) for name in _DRAWING}
    try:
        for name in _DRAWING:
            setattr(init, name, _zeros)
        yield
    finally:
        for name, function in before.items():
            setattr(init, name, function)


def _zeros(tensor: Any, *_args: Any, **_options: Any) -> Any:
    tensor.data.zero_()
    return tensor


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
