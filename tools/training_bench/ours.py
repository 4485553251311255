"""Tilewright's training step as a contender, on the clock that the peers are timed with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import Precision
from tilewright.ir import Module, UnsupportedError
from tilewright.running.stateful import StatefulExecutable
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.commands.network import passes_of
from tilewright.tools.training_bench.rows import TrainingRow
from tilewright.tools.training_bench.torch_steps import LEARNING_RATE


def training_step(row: TrainingRow, module: Module, **options: Any) -> Module:
    """The row's training step, as the peers take it."""
    rate = LEARNING_RATE[row.optimizer]
    optim = tw.optim
    optimizer = {
        "sgd": lambda: optim.sgd(lr=rate, momentum=row.momentum),
        "adam": lambda: optim.adam(lr=rate),
        "adamw": lambda: optim.adamw(lr=rate),
    }[row.optimizer]()
    return tw.train_step(module, loss=row.loss, optimizer=optimizer, unused="keep", **options)


def compile_options(a: argparse.Namespace, precision: Precision) -> dict[str, Any]:
    """Arguments of `tilewright.compile` as those of the command say, in a precision."""
    return {
        "target": a.target,
        "tune": a.tune,
        "tuning_db": a.tuning_db,
        "budget": a.budget,
        "streams": a.streams,
        "libraries": a.libraries == "on",
        "precision": precision,
        **passes_of(a),
    }


def compiled(step: Module, *args: Any, **options: Any) -> StatefulExecutable:
    """The step for a device, as `tilewright.compile` makes it."""
    exe = tw.compile(step, *args, progress=False, **options)
    if not isinstance(exe, StatefulExecutable):
        raise UnsupportedError("the reference target has no kernels to time; name another --target")
    return exe


def variant_of(memory_budget: str | None) -> str:
    """What a step that keeps to a budget of memory is called beside the one that need not."""
    return "" if memory_budget is None else f"within {memory_budget}"


class OurStep:
    """A compiled training step: a contender of `tools.bench.contender`."""

    peer = "tilewright"

    def __init__(
        self,
        row: TrainingRow,
        module: Module,
        data: tuple[Sequence[np.ndarray], np.ndarray],
        options: Mapping[str, Any],
        clock: TorchClock | None,
        memory_budget: str | None = None,
    ) -> None:
        begin = time.perf_counter()
        self.variant = variant_of(memory_budget)
        step = training_step(row, module, memory_budget=memory_budget)
        graph_s = time.perf_counter() - begin
        self.exe = compiled(step, **options)
        self._clock = clock
        self._inputs = [*data[0], data[1]]
        try:
            self._loaded = self.exe.load()
        except BaseException:
            self.exe.close()
            raise
        self.prepare_s = time.perf_counter() - begin
        report = self.exe.report()
        plan = self.exe.plan
        held = sum(b.nbytes for b in plan.buffers if b.kind in ("state", "input", "output", "constant"))
        self.facts: dict[str, Any] = {
            "device": self.exe.device,
            "graph_s": round(graph_s, 2),
            "launches": report["launches"],
            "kernels_compiled": report["kernels_compiled"],
            "streams": report.get("streams", {}),
            "arena_bytes": report["arena_bytes"],
            "peak_bytes": report["arena_bytes"] + held,
            "spill_bytes": sum(k.resources.spill_bytes for k in plan.kernels if k.resources),
        }

    def outputs(self) -> list[np.ndarray]:
        """The loss of one step; leaves the inputs on the device."""
        return [np.asarray(self.exe(*self._inputs)[0])]

    def _run(self) -> None:
        if isinstance(self._loaded, CudaPlan) and self._clock is not None:
            self._loaded.replay(self._clock.stream_handle)
        else:
            self.exe(*self._inputs)

    def device_times(self, repeats: int) -> list[float]:
        """Seconds of one step each."""
        if self._clock is not None and isinstance(self._loaded, CudaPlan):
            return self._clock.device_times(self._run, repeats, ahead=True)
        return self.exe.time(*self._inputs, repeats=repeats)

    def wall_times(self, repeats: int) -> list[float]:
        """Seconds on the host of one step and the wait for it."""
        if self._clock is not None:
            return self._clock.wall_times(self._run, repeats)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self.exe(*self._inputs)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def close(self) -> None:
        """Give the device back."""
        self.exe.close()
