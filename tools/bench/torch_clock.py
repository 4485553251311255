"""The clock of a comparison on an NVIDIA GPU: PyTorch's events on one stream, for all contenders alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
