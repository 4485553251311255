"""Loss curves of Tilewright and PyTorch over the same batches, from the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.ir import Module
from tilewright.tools.training_bench.ours import compiled, training_step
from tilewright.tools.training_bench.rows import TrainingRow
from tilewright.tools.training_bench.torch_steps import TorchLoss, optimizer_of, training_flags


@dataclass(frozen=True)
class Curves:
    """Losses per step, of ours, of PyTorch in the same precision, and of PyTorch in float64.

    Training amplifies differences of roundings, by how much depends on the network; PyTorch's own distance
    from its float64 says what there is to expect.
    """

    ours: np.ndarray
    torch: np.ndarray
    exact: np.ndarray

    def largest_difference(self, smooth: int = 1) -> float:
        """The largest relative difference of our losses to PyTorch's, each a mean over `smooth` steps."""
        return difference(self.ours, self.torch, smooth)

    def of_rounding(self, smooth: int = 1) -> tuple[float, float]:
        """The largest relative differences to float64: of our losses, and of PyTorch's."""
        return difference(self.ours, self.exact, smooth), difference(self.torch, self.exact, smooth)


def difference(losses: np.ndarray, others: np.ndarray, smooth: int = 1) -> float:
    """The largest relative difference of losses to others, each a mean over `smooth` steps."""
    a, b = (np.convolve(x, np.ones(smooth) / smooth, "valid") for x in (losses, others))
    return float((np.abs(a - b) / np.abs(b)).max())


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
    precision: Precision,
    steps: int,
    *,
    target: str,
    torch: Any,
    seed: int = 0,
) -> Curves:
    """Train on the same few batches with both; float32 parameters, autocast where 16 bits are asked for.

    torch: the package; its device is the GPU where the target is CUDA, else the CPU.
    """
    module = without_dropout(module)
    data = batches(row, module, 4, seed)
    ours = np.array(list(_ours(row, module, data, precision, steps, target)))
    device = "cuda" if target.startswith("cuda") else "cpu"
    theirs = np.array(list(_theirs(row, module, data, precision, steps, torch, device)))
    exact = np.array(list(_theirs(row, module, data, None, steps, torch, device)))
    return Curves(ours, theirs, exact)


_Batches = Sequence[tuple[list[np.ndarray], np.ndarray]]


def _ours(
    row: TrainingRow, module: Module, data: _Batches, precision: Precision, steps: int, target: str
) -> Iterator[float]:
    step = training_step(row, module)
    with compiled(step, target, precision=precision) as exe:
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
