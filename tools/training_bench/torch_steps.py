"""PyTorch's training steps: autocast over float32 parameters, fused optimizers, replayed from CUDA graphs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.ir import Module
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.bench.torch_contenders import deadline
from tilewright.tools.torch_peer.module import torch_module
from tilewright.tools.training_bench.cudnn_networks import CUDNN_NETWORKS
from tilewright.tools.training_bench.rows import TrainingRow

#: what PyTorch calls the type that autocast stores products in
_AUTOCAST = {"fp16": "float16", "bf16": "bfloat16"}
_WARM_UP = 4
#: the step that the rows take, of every optimizer
LEARNING_RATE = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-4}


@contextmanager
def training_flags(torch: Any, precision: str) -> Iterator[None]:
    """PyTorch's flags for a precision: TF32 unless fp32 was asked for, cuDNN times its algorithms."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    cuda.allow_tf32 = cudnn.allow_tf32 = precision not in ("fp32", "fp32-strict")
    cudnn.benchmark = True
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def loss_of(torch: Any, row: TrainingRow) -> Callable[[Any, Any], Any]:
    """The loss of a row, of logits in float32 and labels."""
    f = torch.nn.functional
    if row.loss == "bce":
        return lambda y, t: f.binary_cross_entropy_with_logits(y, t)
    return lambda y, t: f.cross_entropy(y.flatten(0, -2), t.flatten())


def optimizer_of(torch: Any, row: TrainingRow, parameters: Any) -> Any:
    """The optimizer of a row, fused and capturable."""
    rate, optim = LEARNING_RATE[row.optimizer], torch.optim
    if row.optimizer == "sgd":
        return optim.SGD(parameters, rate, momentum=row.momentum, fused=True)
    kind = optim.AdamW if row.optimizer == "adamw" else optim.Adam
    return kind(parameters, rate, fused=True, capturable=True)


class TorchLoss:
    """A row's network in training mode, and its loss of a batch, as PyTorch computes them.

    Parameters are float32 and 16 bits are autocast; without a precision all floats are float64. cudnn: the
    row's network of cuDNN's recurrent layers in place of the graph's ops.
    """

    def __init__(
        self,
        torch: Any,
        row: TrainingRow,
        module: Module,
        precision: str | None,
        device: str,
        *,
        cudnn: bool = False,
    ) -> None:
        self.dtype = torch.float32 if precision else torch.float64
        if cudnn:
            assert row.cudnn_network is not None
            net = CUDNN_NETWORKS[row.cudnn_network](torch, module.constants).to(self.dtype)
        else:
            dtype = "float32" if precision else "float64"
            net = torch_module(module, dtype=dtype, attention=True, training=True)
        self.net = net.to(device)
        self._torch, self._device, self._loss = torch, device, loss_of(torch, row)
        self._stored = _AUTOCAST.get(precision or "")

    def on_device(self, arrays: Sequence[np.ndarray], labels: np.ndarray) -> tuple[list[Any], Any]:
        """A batch as tensors: floats as the parameters are, integer labels in 64 bits."""
        tensors = [self._torch.from_numpy(a).to(self._device) for a in (*arrays, labels)]
        *inputs, target = (t.to(self.dtype) if t.is_floating_point() else t for t in tensors)
        return inputs, target if target.is_floating_point() else target.long()

    def __call__(self, inputs: Sequence[Any], target: Any, net: Callable[..., Any] | None = None) -> Any:
        """The loss, to be differentiated; net: another form of the network, such as a compiled one."""
        torch, stored = self._torch, self._stored
        dtype = getattr(torch, stored or "bfloat16")
        with torch.autocast(self._device, dtype=dtype, enabled=stored is not None):
            logits = (self.net if net is None else net)(*inputs)[0]
        return self._loss(logits.to(self.dtype), target)


def exact_loss(
    torch: Any, row: TrainingRow, module: Module, data: tuple[Sequence[np.ndarray], np.ndarray], device: str
) -> float:
    """The loss of a row's first step in float64, which those of all contenders are compared with."""
    loss = TorchLoss(torch, row, module, None, device)
    inputs, target = loss.on_device(*data)
    with torch.no_grad():
        return float(loss(inputs, target))


class TorchStep:
    """One way in which PyTorch takes a training step: a contender of `tools.bench.contender`.

    peer: `torch-eager` (call by call), `torch-graph` (eager, captured) or `torch-compile` (compiled,
    captured). variant: `contiguous`, `channels_last`, or `cudnn` for layers of cuDNN's LSTM and GRU.
    """

    def __init__(
        self,
        row: TrainingRow,
        module: Module,
        data: tuple[Sequence[np.ndarray], np.ndarray],
        precision: str,
        clock: TorchClock,
        *,
        peer: str,
        variant: str,
        limit_s: float,
    ) -> None:
        self.peer, self.variant = peer, variant
        self.facts: dict[str, Any] = {}
        self._clock = clock
        torch = clock.torch
        begin = time.perf_counter()
        # What a contender before left in circles would be freed below, and be missing from this one's peak.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with training_flags(torch, precision), clock.working(), deadline(limit_s, f"preparing {peer}"):
            # A graph keeps neither weights nor inputs: whoever replays it must hold them, as the step does.
            self._held = step = self._step(row, module, data, precision)
            first, *_ = [step().detach() for _ in range(_WARM_UP)]
            clock.finish()
            self.facts["first_loss"] = float(first)
            self._run: Callable[[], object] = step
            if peer != "torch-eager":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=clock.stream):
                    self._loss = step()
                clock.finish()
                self._run = graph.replay
        self.facts["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        self.prepare_s = time.perf_counter() - begin

    def _step(
        self,
        row: TrainingRow,
        module: Module,
        data: tuple[Sequence[np.ndarray], np.ndarray],
        precision: str,
    ) -> Callable[[], Any]:
        torch = self._clock.torch
        loss_function = TorchLoss(
            torch, row, module, precision, self._clock.device, cudnn=self.variant == "cudnn"
        )
        inputs, target = loss_function.on_device(*data)
        net = loss_function.net
        if self.variant == "channels_last":
            net = loss_function.net = net.to(memory_format=torch.channels_last)
            inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
        optimizer = optimizer_of(torch, row, net.parameters())
        if self.peer == "torch-compile":
            torch._dynamo.reset()
        call = torch.compile(net, dynamic=False) if self.peer == "torch-compile" else net

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_function(inputs, target, call)
            loss.backward()
            optimizer.step()
            return loss

        return step

    def outputs(self) -> list[np.ndarray]:
        """The loss of the first step."""
        return [np.asarray(self.facts["first_loss"])]

    def device_times(self, repeats: int) -> list[float]:
        """Seconds between events around each step; the host's pace counts where nothing was captured."""
        return self._clock.device_times(self._run, repeats, ahead=self.peer != "torch-eager")

    def wall_times(self, repeats: int) -> list[float]:
        """Seconds on the host of one step and the wait for it."""
        return self._clock.wall_times(self._run, repeats)

    def close(self) -> None:
        """Drop weights, inputs and graphs."""
        del self._run, self._held
        self.__dict__.pop("_loss", None)
