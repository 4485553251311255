"""Loss curves of Tilewright and PyTorch over the same batches, from the same weights."""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.ir import Module
from tilewright.running.stateful import StatefulExecutable
from tilewright.runtime.interface.lazy import LazyArray
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


_Batches = Sequence[tuple[list[np.ndarray], np.ndarray]]


def our_losses(exe: StatefulExecutable, data: _Batches, steps: int) -> np.ndarray:
    """The losses of a compiled step that has not run yet, over the same few batches again and again."""
    losses = [exe.step(*data[number % len(data)][0], data[number % len(data)][1]) for number in range(steps)]
    return np.array([float(_first(loss)) for loss in losses])


def _first(results: LazyArray | tuple[LazyArray, ...]) -> LazyArray:
    return results[0] if isinstance(results, tuple) else results


class TorchLosses:
    """PyTorch's losses of a row over the same batches, from the same weights, by precision.

    Parameters are float32, with autocast where 16 bits are asked for. A precision is trained in once, also
    where it is what another one is compared with: what one process has found lies in `folder` for others.
    device: PyTorch's, cuda or cpu.
    """

    def __init__(
        self,
        row: TrainingRow,
        module: Module,
        data: _Batches,
        steps: int,
        *,
        torch: Any,
        device: str,
        folder: Path,
    ) -> None:
        self._given = (row, module, data)
        self._steps, self._torch, self._device = steps, torch, device
        self._folder, self._name = folder, row.name

    def losses(self, precision: Precision | None) -> np.ndarray:
        """The losses of all steps; in float64 where no precision is named."""
        same: Precision | None = "fp32" if precision == "fp32-strict" else precision  # to PyTorch
        path = self._folder / f"{self._name}.{same or 'float64'}.npy"
        with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # which the system gives back when its holder dies
            if not path.exists():
                losses = np.array(list(self._trained(same)))
                unfinished = path.with_suffix(".unfinished.npy")
                np.save(unfinished, losses)
                unfinished.rename(path)
            return np.asarray(np.load(path))

    def _trained(self, precision: Precision | None) -> Iterator[float]:
        yield from _theirs(*self._given, precision, self._steps, self._torch, self._device)
        if self._device == "cuda":  # others share the GPU
            gc.collect()
            self._torch.cuda.empty_cache()


#: steps that PyTorch takes call by call before one is captured: cuDNN times its algorithms in the first
_CALLED = 3


def _theirs(
    row: TrainingRow,
    module: Module,
    data: _Batches,
    precision: Precision | None,
    steps: int,
    torch: Any,
    device: str,
) -> Iterator[float]:
    """In float64 where no precision is named.

    On a GPU all steps but the first ones are replays of a CUDA graph, since calls take longer than kernels;
    not in fp16, whose scaler of losses asks on the host whether gradients are finite.
    """
    with training_flags(torch, precision or "fp32"):
        loss_function = TorchLoss(torch, row, module, precision, device)
        optimizer = optimizer_of(torch, row, loss_function.net.parameters())
        scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

        def step(inputs: Sequence[Any], target: Any) -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_function(inputs, target)
            scaler.scale(loss).backward()
            if row.clip_norm is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(loss_function.net.parameters(), row.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        on_device = [loss_function.on_device(*batch) for batch in data]
        if device == "cuda" and not scaler.is_enabled():
            losses = _replayed(torch, step, on_device, steps)
        else:
            losses = [step(*on_device[number % len(data)]) for number in range(steps)]
        yield from torch.stack(losses).tolist()


def _replayed(
    torch: Any,
    step: Callable[[Sequence[Any], Any], Any],
    batches: Sequence[tuple[list[Any], Any]],
    steps: int,
) -> list[Any]:
    """The losses of steps, the first `_CALLED` of them taken call by call, the others from a CUDA graph.

    What captures a step takes none, so the graph goes on where the calls ended.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        losses = [step(*batches[number % len(batches)]) for number in range(min(_CALLED, steps))]
        inputs, target = [x.clone() for x in batches[0][0]], batches[0][1].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = step(inputs, target)
        for number in range(len(losses), steps):
            others, other = batches[number % len(batches)]
            for held, x in zip((*inputs, target), (*others, other), strict=True):
                held.copy_(x)
            graph.replay()
            losses.append(loss.clone())
    stream.synchronize()
    return losses
