"""Tilewright as a contender: a compiled network, replayed on the clock that the peers are timed with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tilewright as tw
from tilewright.ir import Module, UnsupportedError
from tilewright.running.executable import Executable
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.tools.bench.clocks import HostClock, TorchClock

if TYPE_CHECKING:
    from tilewright.tools.bench.torch_contenders import Clock


class Ours:
    """A compiled network. Without a clock the runtime's own times count.

    On a GPU's clock its inputs lie on the device; on a CPU's a call goes from host arrays to host arrays.
    """

    peer = "tilewright"

    def __init__(
        self,
        module: Module,
        inputs: Sequence[np.ndarray],
        options: Mapping[str, Any],
        clock: Clock | None,
        variant: str = "",
    ) -> None:
        begin = time.perf_counter()
        exe = tw.compile(module, progress=False, **options)
        if not isinstance(exe, Executable):
            raise UnsupportedError("the reference target has no kernels to time; name another --target")
        self.variant, self.exe, self.clock = variant, exe, clock
        self.inputs = list(inputs)
        try:
            self._loaded = exe.load()
            self.prepare_s = time.perf_counter() - begin
            self.facts = _facts(exe)
            if self.facts["library_launches"]:
                self.facts["library_time_share"] = _library_time_share(exe, self.inputs)
        except BaseException:
            exe.close()
            raise

    def outputs(self) -> list[np.ndarray]:
        """Results of one run from host arrays; leaves the inputs on the device."""
        return self.exe(*self.inputs)

    def _run(self) -> None:
        if isinstance(self._loaded, CudaPlan) and isinstance(self.clock, TorchClock):
            self._loaded.replay(self.clock.stream_handle)
        else:
            self.exe(*self.inputs)

    @property
    def _on_clock(self) -> bool:
        return isinstance(self.clock, HostClock) or (
            self.clock is not None and isinstance(self._loaded, CudaPlan)
        )

    def device_times(self, repeats: int) -> list[float]:
        """Seconds of one run each, by the clock that the peers are timed with."""
        if self._on_clock and self.clock is not None:
            return self.clock.device_times(self._run, repeats, ahead=True)
        return self.exe.time(*self.inputs, repeats=repeats)

    def wall_times(self, repeats: int) -> list[float]:
        """Seconds on the host of one replay and the wait for it; without a clock, of a call with copies."""
        if self._on_clock and self.clock is not None:
            return self.clock.wall_times(self._run, repeats)
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self.exe(*self.inputs)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def close(self) -> None:
        """Give the device back."""
        self.exe.close()


def _library_time_share(exe: Executable, inputs: Sequence[np.ndarray]) -> float:
    """Share of the time of all launches, run one by one, that library kernels take."""
    library = {k.name for k in exe.plan.kernels if k.language == "library"}
    seconds = exe.time_kernels(*inputs, repeats=3)
    total = sum(s for _, s in seconds)
    return round(sum(s for name, s in seconds if name in library) / total, 4) if total else 0.0


def _facts(exe: Executable) -> dict[str, Any]:
    """Launches, memory, spills and tuning of a compilation, as plain data."""
    report = exe.report()
    known = ("launches", "kernels_compiled", "arena_bytes", "constant_bytes", "tuning", "libraries", "passes")
    facts = {name: report[name] for name in known if name in report}
    library = {k.name for k in exe.plan.kernels if k.language == "library"}
    streams = report.get("streams", {})
    return {
        "device": exe.device,
        **facts,
        "library_launches": sum(x.kernel in library for x in exe.plan.launches),
        "streams": {name: streams[name] for name in ("policy", "count") if name in streams},
        "spill_bytes": sum(k.resources.spill_bytes for k in exe.plan.kernels if k.resources),
    }
