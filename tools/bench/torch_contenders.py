"""PyTorch as a contender: eager, in a CUDA graph, compiled, in both memory formats; ONNX Runtime on CPUs."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from tilewright.ir import Module, WorkError
from tilewright.tools.bench.clocks import HostClock, TorchClock
from tilewright.tools.torch_peer.module import fused_calls, torch_module


@dataclass(frozen=True)
class Peer:
    """The devices that a peer runs on, and the mode of torch.compile, where that is called."""

    devices: tuple[str, ...]
    mode: str | None = None


PEERS = {
    "torch-eager": Peer(("cuda", "cpu")),
    "torch-graph": Peer(("cuda",)),
    "torch-compile": Peer(("cuda", "cpu"), "reduce-overhead"),
    "torch-max-autotune": Peer(("cuda", "cpu"), "max-autotune"),
    "onnxruntime": Peer(("cpu",)),
}
Clock = TorchClock | HostClock
DTYPES = {
    "fp32": "float32",
    "fp32-strict": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
#: how a network may be set up: as written, with images and filters channels last, with attention as one call
VARIANTS = ("contiguous", "channels_last", "attention")
WARM_UP = 3


@contextmanager
def torch_flags(torch: Any, precision: str) -> Iterator[None]:
    """PyTorch's flags for a precision: TF32 only where it was asked for, cuDNN times its algorithms."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    cuda.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = True
    try:
        with torch.no_grad():
            yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@dataclass
class TorchNetwork:
    """A network's weights and inputs on the device, set up in one way."""

    module: Any
    inputs: list[Any]
    variant: str


def torch_network(
    clock: Clock, module: Module, inputs: Sequence[np.ndarray], precision: str, variant: str
) -> TorchNetwork:
    """The network and its inputs on the clock's device, floats in what the precision stores."""
    torch = clock.torch
    net = torch_module(module, dtype=DTYPES[precision], attention=variant == "attention").to(clock.device)
    if variant == "channels_last":
        net = net.to(memory_format=torch.channels_last)
    return TorchNetwork(net, torch_inputs(clock, inputs, precision, variant), variant)


def torch_inputs(clock: Clock, inputs: Sequence[np.ndarray], precision: str, variant: str) -> list[Any]:
    """Tensors on the device: floats as the precision stores them, images in the variant's memory format."""
    torch = clock.torch
    tensors = []
    for array in inputs:
        exotic = array.dtype.kind == "V"  # bfloat16, which PyTorch does not take from NumPy
        tensor = torch.from_numpy(array.astype(np.float32) if exotic else array).to(clock.device)
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, DTYPES[precision]))
        last = variant == "channels_last" and tensor.dim() == 4
        tensors.append(tensor.to(memory_format=torch.channels_last) if last else tensor)
    return tensors


def variants_of(module: Module) -> tuple[str, ...]:
    """The variants that differ for this network."""
    _, fused = fused_calls(module, attention=True)
    convolutions = any(name == "graph.conv2d" for name, _, _ in fused.calls)
    return tuple(
        v for v, there in zip(VARIANTS, (True, convolutions, fused.attentions), strict=True) if there
    )


class TorchContender:
    """One way PyTorch runs a network; made by `torch_contender`."""

    def __init__(
        self, peer: str, variant: str, clock: Clock, run: Callable[[], Any], prepare_s: float
    ) -> None:
        self.peer, self.variant, self.prepare_s = peer, variant, prepare_s
        self.facts: dict[str, Any] = {}
        self._clock, self._run = clock, run

    def outputs(self) -> list[np.ndarray]:
        """Results of one run, as float32 where they are floats."""
        with self._clock.working():
            made = [t.float() if t.is_floating_point() else t.clone() for t in self._run()]
            self._clock.finish()
            return [t.cpu().numpy() for t in made]

    def device_times(self, repeats: int) -> list[float]:
        """Seconds between events; only eager calls are timed at the pace of the host."""
        return self._clock.device_times(self._run, repeats, ahead=self.peer != "torch-eager")

    def wall_times(self, repeats: int) -> list[float]:
        """Seconds on the host of one call and the wait for it."""
        return self._clock.wall_times(self._run, repeats)

    def close(self) -> None:
        """Drop weights, inputs and graphs."""
        self._run = list


def torch_contender(peer: str, network: TorchNetwork, clock: Clock, limit_s: float) -> TorchContender:
    """Warm up, compile or capture within `limit_s`; raises what PyTorch raises, WorkError at the limit."""
    begin = time.perf_counter()
    with clock.working(), deadline(limit_s, f"preparing {peer}"):
        run = _prepared(clock, peer, network)
        clock.finish()
    return TorchContender(peer, network.variant, clock, run, time.perf_counter() - begin)


def _prepared(clock: Clock, peer: str, network: TorchNetwork) -> Callable[[], Any]:
    torch, module, inputs = clock.torch, network.module, network.inputs
    if isinstance(clock, HostClock) and peer == "onnxruntime":
        return onnx_session(torch, module, inputs, clock.threads)
    mode = PEERS[peer].mode
    if mode is not None:
        from torch._inductor import config

        config.freezing = True
        module = torch.compile(module, mode=mode, dynamic=False)

    def eager() -> Any:
        return module(*inputs)

    for _ in range(WARM_UP + (mode is not None)):
        eager()
    if peer != "torch-graph":
        return eager
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = eager()

    def replay(owner: TorchNetwork = network) -> Any:
        # A graph keeps neither its weights nor its inputs: whoever replays it must hold them.
        graph.replay()
        return results

    return replay


def onnx_session(torch: Any, module: Any, inputs: Sequence[Any], threads: int) -> Callable[[], list[Any]]:
    """A function that runs the exported `module` on `inputs`; its results are tensors that nothing copied.

    threads: that one operator may use. Raises what the exporter and ONNX Runtime raise.
    """
    import onnxruntime

    file = io.BytesIO()
    names = [f"x{number}" for number in range(len(inputs))]
    torch.onnx.export(module, tuple(inputs), file, input_names=names, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    inputs_of_graph = {x.name for x in session.get_inputs()}
    # An input that the graph does not use is not exported.
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True) if name in inputs_of_graph}
    return lambda: [torch.from_numpy(y) for y in session.run(None, feed)]


class _Overdue(BaseException):
    """Raised inside the work; no ordinary handler of an exception takes it."""


@contextmanager
def deadline(seconds: float, doing: str) -> Iterator[None]:
    """Raise WorkError where the block takes longer; the work stops when it next runs Python code.

    Only in the main thread of a system that has interval timers; elsewhere the block is not limited.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Overdue

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    except _Overdue:
        raise WorkError(f"{doing} took longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
