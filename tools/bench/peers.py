"""The peers of one row: set up one after the other, each failure kept as a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.ir import InputError, Module, UnsupportedError
from tilewright.tools.bench.clocks import HostClock, TorchClock
from tilewright.tools.bench.rows import one_line
from tilewright.tools.bench.torch_contenders import (
    PEERS,
    VARIANTS,
    Clock,
    TorchContender,
    TorchNetwork,
    torch_contender,
    torch_flags,
    torch_inputs,
    torch_network,
    variants_of,
)

#: runs by which the variant is found that peers are compiled in
TRIALS = 5


#: where nobody names any
DEFAULT_PEERS = {
    "cuda": ("torch-eager", "torch-graph", "torch-compile"),
    "cpu": ("onnxruntime", "torch-eager"),
}


def check_peers(names: Sequence[str] | None, device: str) -> tuple[str, ...]:
    """The peers named, none for `none`, those that run on `device` (cuda or cpu) for None.

    Raises InputError for unknown names and for peers of another device.
    """
    if names is None:
        return DEFAULT_PEERS[device]
    if list(names) == ["none"]:
        return ()
    for name in names:
        if name not in PEERS:
            raise InputError(
                f"expected peers among {', '.join(PEERS)}, or none alone, got '{name}'", where="--peers"
            )
        if device not in PEERS[name].devices:
            fitting = ", ".join(n for n, peer in PEERS.items() if device in peer.devices)
            raise InputError(f"expected peers on {device}: {fitting}, got '{name}'", where="--peers")
    return tuple(dict.fromkeys(names))


def gpu_torch() -> Any:
    """PyTorch, where it is installed and sees an NVIDIA GPU, else None."""
    torch = cpu_torch()
    return torch if torch is not None and torch.cuda.is_available() else None


def cpu_torch() -> Any:
    """PyTorch, where it is installed, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def _fastest(contenders: Sequence[TorchContender]) -> str:
    """The variant with the shortest of a few runs, in a CUDA graph where there is one."""
    graphs = [c for c in contenders if c.peer == "torch-graph"]
    return min(graphs or contenders, key=lambda c: min(c.device_times(TRIALS))).variant


class Peers:
    """A context with PyTorch's flags set for one precision.

    device: cuda or cpu. `clock` is None where PyTorch has no GPU, and on a CPU where there are no peers.
    doing: is told which peer is being prepared, and within how many seconds; an empty name when none is.
    """

    def __init__(
        self,
        names: Sequence[str],
        precision: str,
        *,
        device: str = "cuda",
        cold: bool,
        limit_s: float,
        left_s: Callable[[], float],
        all_variants: bool = False,
        doing: Callable[[str, float], None] = lambda what, limit_s: None,
    ) -> None:
        self._doing = doing
        self._names, self._precision, self._limit_s, self._left_s = names, precision, limit_s, left_s
        self._all_variants = all_variants
        self._torch = gpu_torch() if device == "cuda" else cpu_torch() if names else None
        self.clock: Clock | None = None
        if self._torch:
            self.clock = TorchClock(self._torch, cold=cold) if device == "cuda" else HostClock(self._torch)
        self.failures: list[dict[str, str]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._torch:
            self._stack.enter_context(torch_flags(self._torch, self._precision))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._torch:
            self._torch._dynamo.reset()
            if self.clock is not None and self.clock.device == "cuda":
                self._torch.cuda.empty_cache()

    @contextmanager
    def noting_failures(self, peer: str, variant: str) -> Iterator[None]:
        """Whatever PyTorch raises in the block goes to `failures`."""
        try:
            yield
        except Exception as e:  # noqa: BLE001 - a peer that fails is a row with a reason
            self.failures.append({"peer": peer, "variant": variant, "reason": one_line(e)})

    def contenders(self, module: Module, inputs: Sequence[np.ndarray]) -> list[TorchContender]:
        """Every peer in every variant of a module that could be set up; the others are in `failures`."""
        try:
            variants = variants_of(module) if self._names else ()
        except UnsupportedError as e:
            self.failures += [{"peer": p, "variant": "", "reason": one_line(e)} for p in self._names]
            return []
        return self.contenders_of(variants, partial(self._traced, module, inputs))

    def contenders_of(
        self, variants: Sequence[str], network_of: Callable[[str], TorchNetwork]
    ) -> list[TorchContender]:
        """Every peer in every variant that could be set up; the others are in `failures`.

        network_of: PyTorch's network in a variant, on the clock's device and in the precision's types. Peers
        that compile are set up in the variant that was fastest without compiling, unless all were asked for:
        compiling takes most of a benchmark's time.
        """
        made: list[TorchContender] = []
        compiled = [p for p in self._names if PEERS[p].mode is not None]
        for variant in variants:
            for peer in self._names:
                if peer not in compiled:
                    with self.noting_failures(peer, variant):
                        made.append(self._set_up(peer, variant, network_of))
        for variant in variants if self._all_variants or not made else [_fastest(made)]:
            for peer in compiled:
                with self.noting_failures(peer, variant):
                    made.append(self._set_up(peer, variant, network_of))
        return made

    def _traced(self, module: Module, inputs: Sequence[np.ndarray], variant: str) -> TorchNetwork:
        assert self.clock is not None
        return torch_network(self.clock, module, inputs, self._precision, variant)

    def kernel_contenders(
        self, call: Callable[[Any, Sequence[Any]], Any], inputs: Sequence[np.ndarray]
    ) -> list[TorchContender]:
        """PyTorch's call of one kernel as `torch`, in both memory formats where there are images."""
        made: list[TorchContender] = []
        if self.clock is None or not self._names:
            return made
        for variant in VARIANTS[: 2 if any(x.ndim == 4 for x in inputs) else 1]:
            with self.noting_failures("torch", variant):
                tensors = torch_inputs(self.clock, inputs, self._precision, variant)
                run = partial(call, self._torch, tensors)
                made.append(TorchContender("torch", variant, self.clock, run, 0.0))
        return made

    def copies(self, moved_bytes: int) -> list[TorchContender]:
        """A copy that reads and writes as many bytes in all."""
        if self.clock is None or not self._names:
            return []
        with self.noting_failures("copy", ""):
            source = self.clock.torch.randn(moved_bytes // 8, device=self.clock.device)
            target = self.clock.torch.empty_like(source)
            return [TorchContender("copy", "", self.clock, lambda: [target.copy_(source)], 0.0)]
        return []

    def _set_up(self, peer: str, variant: str, network_of: Callable[[str], TorchNetwork]) -> TorchContender:
        if self.clock is None:
            raise InputError("PyTorch is not installed, or does not see the device")
        limit = min(self._limit_s, self._left_s())
        if limit <= 0:
            raise InputError("the time of the whole run was over")
        self._doing(f"{peer} {variant}".strip(), limit)
        try:
            return torch_contender(peer, network_of(variant), self.clock, limit)
        finally:
            self._doing("", math.inf)
