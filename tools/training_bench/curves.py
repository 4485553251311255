"""Loss curves of Tilewright and PyTorch over the same batches, from the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.ir import Module
from tilewright.tools.training_bench.ours import compiled, training_step
from tilewright.tools.training_bench.rows import TrainingRow
from tilewright.tools.training_bench.torch_steps import TorchLoss, optimizer_of, training_flags

#: different batches of a run
BATCHES = 4


@dataclass(frozen=True)
class Curves:
    """Losses per step, of ours, of PyTorch in the same precision, and of PyTorch in a wider one.

    Training amplifies differences of roundings, by how much depends on the network; how far PyTorch's own
    losses are from those in the wider precision says what there is to expect.
    """

    ours: np.ndarray
    torch: np.ndarray
    wide: np.ndarray

    def largest_difference(self, smooth: int = 1) -> float:
        """The largest difference of our losses to PyTorch's, each a mean over `smooth` steps."""
        return difference(self.ours, self.torch, smooth)

    def of_rounding(self, smooth: int = 1) -> tuple[float, float]:
        """The largest differences to the wider precision: of our losses, and of PyTorch's."""
        return difference(self.ours, self.wide, smooth), difference(self.torch, self.wide, smooth)


def difference(losses: np.ndarray, others: np.ndarray, smooth: int = 1) -> float:
    """The largest difference of losses to others, each a mean over `smooth` steps, as a share of the first.

    What has been learnt by heart has a loss near zero, so that shares of the loss itself would say nothing.
    """
    a, b = (np.convolve(x, np.ones(smooth) / smooth, "valid") for x in (losses, others))
    return float(np.abs(a - b).max() / abs(others[0]))


def wider(precision: Precision) -> Precision | None:
    """The precision whose roundings do not count beside those of another; None is float64."""
    return None if precision in ("fp32", "fp32-strict") else "fp32"


def without_dropout(module: Module) -> Module:
    """The module with dropout of rate 0, since two frameworks draw different masks."""
    main = module.main
    ops = tuple(op.with_attrs(rate=0.0) if op.name == "graph.dropout" else op for op in main.body.ops)
    func = main.with_body(main.body.with_ops(ops))
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


def batches(
    row: TrainingRow, module: Module, count: int, seed: int
) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """A few batches of random data with labels; walked through again and again, they can be learnt."""
    return [row.data(module, seed + number) for number in range(count)]


def curves(
    row: TrainingRow,
    module: Module,
    steps: int,
    options: Mapping[str, Any],
    *,
    torch: Any,
    device: str,
    seed: int = 0,
) -> Curves:
    """Train on the same few batches with both; float32 parameters, autocast where 16 bits are asked for.

    options: arguments of `tilewright.compile`, the precision among them. device: PyTorch's, cuda or cpu.
    """
    module = without_dropout(module)
    data = batches(row, module, BATCHES, seed)
    ours = np.array(list(_ours(row, module, data, options, steps)))
    precision = options["precision"]
    theirs, wide = (
        np.array(list(_theirs(row, module, data, p, steps, torch, device)))
        for p in (precision, wider(precision))
    )
    return Curves(ours, theirs, wide)


_Batches = Sequence[tuple[list[np.ndarray], np.ndarray]]


def _ours(
    row: TrainingRow, module: Module, data: _Batches, options: Mapping[str, Any], steps: int
) -> Iterator[float]:
    with compiled(training_step(row, module), **options) as exe:
        for number in range(steps):
            inputs, labels = data[number % len(data)]
            yield float(np.asarray(exe(*inputs, labels)[0]))


def _theirs(
    row: TrainingRow,
    module: Module,
    data: _Batches,
    precision: Precision | None,
    steps: int,
    torch: Any,
    device: str,
) -> Iterator[float]:
    """In float64 where no precision is named."""
    with training_flags(torch, precision or "fp32"):
        loss_function = TorchLoss(torch, row, module, precision, device)
        optimizer = optimizer_of(torch, row, loss_function.net.parameters())
        scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
        for number in range(steps):
            inputs, target = loss_function.on_device(*data[number % len(data)])
            optimizer.zero_grad(set_to_none=True)
            loss = loss_function(inputs, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield float(loss.detach())
