"""Gradients of a whole network beside PyTorch's in float64: our error and PyTorch's own, per parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import Precision
from tilewright.ir import Module
from tilewright.tools.torch_peer.module import constant_names
from tilewright.tools.training_bench.curves import without_dropout
from tilewright.tools.training_bench.ours import compiled
from tilewright.tools.training_bench.rows import TrainingRow
from tilewright.tools.training_bench.torch_steps import TorchLoss, training_flags

#: a share of the norm of all gradients; smaller gradients are compared with it
_NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class GradientErrors:
    """By parameter, norm of the difference to the gradient in float64 over its norm: of ours, of PyTorch's.

    whole: the same over all parameters together.
    """

    ours: Mapping[str, float]
    torch: Mapping[str, float]
    whole: tuple[float, float]

    def worst(self) -> tuple[str, float]:
        """The parameter for which ours is worst beside PyTorch's, and the ratio of both errors."""
        ratios = {n: e / max(self.torch[n], 1e-12) for n, e in self.ours.items()}
        name = max(ratios, key=lambda n: ratios[n])
        return name, ratios[name]


def gradient_errors(
    row: TrainingRow, module: Module, precision: Precision, *, target: str, torch: Any, seed: int = 0
) -> GradientErrors:
    """Gradients of the row's loss for one batch, by every parameter that both frameworks know by name.

    Ours are the momentum of the first step of SGD, which is the gradient. torch: the package; it runs on the
    GPU where the target is CUDA, else on the CPU.
    """
    module = without_dropout(module)
    device = "cuda" if target.startswith("cuda") else "cpu"
    exact = _of_torch(row, module, None, torch, device, seed)
    theirs = _of_torch(row, module, precision, torch, device, seed)
    ours = _of_ours(row, module, precision, target, seed)
    names = [n for n in exact if n in ours]
    least = _NEGLIGIBLE * _norm(list(exact.values()))
    return GradientErrors(
        {n: _error([ours[n]], [exact[n]], least) for n in names},
        {n: _error([theirs[n]], [exact[n]], least) for n in names},
        (
            _error([ours[n] for n in names], [exact[n] for n in names]),
            _error([theirs[n] for n in names], [exact[n] for n in names]),
        ),
    )


def _error(arrays: list[np.ndarray], exact: list[np.ndarray], least: float = 0.0) -> float:
    """The norm of the difference over that of the exact arrays, or over `least` where that is larger.

    Some gradients are zero but for rounding, such as those of a bias that a normalisation takes off again.
    """
    pairs = list(zip(arrays, exact, strict=True))
    difference = sum(float(np.square(a.astype(np.float64) - e).sum()) for a, e in pairs)
    norm = max(_norm(exact), least)
    return float(np.sqrt(difference)) / norm if norm else float(difference > 0)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.square(a).sum()) for a in arrays)))


def _of_ours(
    row: TrainingRow, module: Module, precision: Precision, target: str, seed: int
) -> dict[str, np.ndarray]:
    optimizer = tw.optim.sgd(lr=0.0, momentum=0.9)
    step = tw.train_step(module, row.loss, optimizer, unused="keep", loss_scale=None)
    inputs, labels = row.data(module, seed)
    with compiled(step, target, precision=precision) as exe:
        exe(*inputs, labels)
        names = [n.removesuffix(".momentum") for n in exe.state if n.endswith(".momentum")]
        return {n: np.asarray(exe.state[f"{n}.momentum"]) for n in names}


def _of_torch(
    row: TrainingRow, module: Module, precision: Precision | None, torch: Any, device: str, seed: int
) -> dict[str, np.ndarray]:
    """In float64 where no precision is named."""
    with training_flags(torch, precision or "fp32"):
        loss_function = TorchLoss(torch, row, module, precision, device)
        loss_function(*loss_function.on_device(*row.data(module, seed))).backward()
        net = loss_function.net
        names = constant_names(net)
        return {
            names[n]: p.grad.cpu().numpy()
            for n, p in net.named_parameters()
            if p.grad is not None and n in names
        }
