"""The clock of a comparison on the CPU: calls from host memory to host memory, for all contenders alike."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
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
        """Where work is issued: calls return when they are done."""
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
