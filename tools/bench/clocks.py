"""The clocks of a comparison: events on a stream of an NVIDIA GPU, or the host; one for all contenders."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from tilewright.ir.machine import usable_cores


def processor_name() -> str:
    """The processor as the system calls it, with the cores that this process may use."""
    lines: list[str] = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as stream:
        lines = [line.partition(":")[2].strip() for line in stream if line.startswith("model name")]
    name = lines[0] if lines else platform.processor() or platform.machine()
    return f"{name}, {usable_cores()} cores"


class HostClock:
    """Wall time of whole calls. Peers get as many threads as this process may use cores."""

    device = "cpu"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.threads = usable_cores()
        torch.set_num_threads(self.threads)

    def working(self) -> AbstractContextManager[None]:
        """A context in which work is issued: calls return when they are done."""
        return nullcontext()

    def finish(self) -> None:
        """Wait for all that was issued: nothing is left of a call that returned."""

    def device_times(self, run: Callable[[], object], repeats: int, *, ahead: bool) -> list[float]:
        """Seconds of each of `repeats` calls after one that is not timed; `ahead` is for other clocks."""
        run()
        return self.wall_times(run, repeats)

    def wall_times(self, run: Callable[[], object], repeats: int) -> list[float]:
        """Seconds of each call."""
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return seconds


#: clock ticks of the kernel that keeps the GPU busy while runs are queued: about four milliseconds
LEAD_TICKS = 8_000_000


class TorchClock:
    """Events around each run on `stream`. cold: everything in the L2 cache is replaced before each run."""

    device = "cuda"

    def __init__(self, torch: Any, *, cold: bool) -> None:
        self.torch, self.cold = torch, cold
        self.stream = torch.cuda.Stream()
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._flushed = torch.empty(4 * l2_bytes, dtype=torch.uint8, device="cuda") if cold else None

    @property
    def stream_handle(self) -> int:
        """The driver's handle of the stream."""
        return int(self.stream.cuda_stream)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Issue work on the clock's stream."""
        with self.torch.cuda.stream(self.stream):
            yield

    def finish(self) -> None:
        """Wait for all that was issued."""
        self.stream.synchronize()

    def device_times(self, run: Callable[[], object], repeats: int, *, ahead: bool) -> list[float]:
        """Seconds between the events before and after each of `repeats` runs, after one that is not timed.

        ahead: queue all runs behind a kernel that waits, so that the host's pace does not count; for work
        whose pace the host sets (eager calls), each run begins on an idle GPU instead.
        """
        cuda = self.torch.cuda
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(repeats)]
        with cuda.stream(self.stream):
            run()
            if ahead:
                cuda._sleep(LEAD_TICKS)
            for begin, end in pairs:
                self._flush()
                if not ahead:
                    self.stream.synchronize()
                begin.record(self.stream)
                run()
                end.record(self.stream)
            self.stream.synchronize()
        return [1e-3 * begin.elapsed_time(end) for begin, end in pairs]

    def wall_times(self, run: Callable[[], object], repeats: int) -> list[float]:
        """Seconds on the host from the call of `run` until the GPU is done with it."""
        seconds = []
        with self.torch.cuda.stream(self.stream):
            for _ in range(repeats):
                self._flush()
                self.stream.synchronize()
                begin = time.perf_counter()
                run()
                self.stream.synchronize()
                seconds.append(time.perf_counter() - begin)
        return seconds

    def _flush(self) -> None:
        if self._flushed is not None:
            self._flushed.zero_()
