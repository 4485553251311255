"""`ReplayRecord`: when every launch of one replay ran, where, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Literal

from tilewright.profiling.timeline import Timeline

#: what the times come from: instrumented kernels and the GPU's timer, OpenCL's events, or no device at all
Clock = Literal["stamps", "events", "model"]


@dataclass(frozen=True)
class ProcessorSpan:
    """The blocks of one launch on one multiprocessor; `busy_s`: seconds in which at least one of them ran."""

    processor: int
    start_s: float
    end_s: float
    busy_s: float
    blocks: int


@dataclass(frozen=True)
class LaunchSpan:
    """One launch: seconds since the first stamp of the replay.

    arrived_s: when its first block was on a multiprocessor, which is before `start_s` where kernels wait
    themselves for those they depend on. deps: launches it waits for. processors: empty where the device does
    not tell. bounded: it cannot stamp, and runs at some time between `start_s` and `end_s`, which are the
    last end before it and the first start behind it.
    """

    index: int
    kernel: str
    origin: tuple[str, ...]
    stream: int
    deps: tuple[int, ...]
    grid: tuple[int, int, int]
    block: int
    arrived_s: float
    start_s: float
    end_s: float
    processors: tuple[ProcessorSpan, ...] = field(default=(), repr=False)
    bounded: bool = False

    @property
    def seconds(self) -> float:
        """From the start of its first block to the end of its last."""
        return self.end_s - self.start_s

    @property
    def blocks(self) -> int:
        """Blocks of its grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class CopySpan:
    """All inputs on their way to the device (`in`) or all outputs on theirs to the host (`out`)."""

    direction: Literal["in", "out"]
    buffers: tuple[str, ...]
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class ReplayRecord:
    """One replay of a plan: the one of median length among `repeats` that were recorded.

    total_s: median of replays of the plan as it is, by the device's clock. recorded_s: the same of the plan
    whose kernels stamp, None where no kernel had to be changed. resolution_s: the smallest step the clock
    was seen to make, 0 where it made none. processor_busy_s: by multiprocessor, seconds in which it ran at
    least one block; empty where not all launches tell. serial_s: median replay of the same kernels one after
    the other on one stream, None where it was not asked for.
    """

    target: str
    device: str
    clock: Clock
    repeats: int
    launches: tuple[LaunchSpan, ...]
    total_s: float
    recorded_s: float | None
    resolution_s: float
    copies: tuple[CopySpan, ...] = ()
    processor_busy_s: Mapping[int, float] = field(default_factory=dict, repr=False)
    serial_s: float | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """Starts, ends and dependencies alone."""
        return Timeline(
            tuple((x.start_s, x.end_s) for x in self.launches),
            tuple(x.deps for x in self.launches),
            frozenset(x.index for x in self.launches if x.bounded),
        )

    @property
    def measured(self) -> bool:
        """Return whether a device ran it; otherwise the times are the model's."""
        return self.clock != "model"

    @property
    def span_s(self) -> float:
        """From the first start to the last end of the recorded replay."""
        return self.timeline.span_s

    @property
    def idle_share(self) -> float:
        """Share of the span in which no kernel runs."""
        return self.timeline.idle_s / self.span_s if self.span_s else 0.0

    @property
    def boundary_s(self) -> float:
        """The cost of one kernel boundary: the median gap between launches that follow each other on the
        critical path."""
        return median(self.timeline.boundary_gaps or (0.0,))

    @property
    def idle_share_beyond_boundaries(self) -> float:
        """Share of the span in which no kernel runs for longer than one boundary takes: each pause counts
        with what exceeds `boundary_s`."""
        more = sum(max(0.0, gap - self.boundary_s) for gap in self.timeline.idle_gaps)
        return more / self.span_s if self.span_s else 0.0

    @property
    def processor_idle_share(self) -> float | None:
        """Share of the span in which a multiprocessor runs no block, on average over all that ran any."""
        if not self.processor_busy_s or not self.span_s:
            return None
        return 1.0 - sum(self.processor_busy_s.values()) / (len(self.processor_busy_s) * self.span_s)

    @property
    def concurrency(self) -> float:
        """Mean number of kernels that run."""
        return self.timeline.concurrency

    @property
    def critical_path(self) -> tuple[int, ...]:
        """Indices of the launches on the longest way through the dependencies, by measured seconds."""
        return self.timeline.critical_path

    @property
    def critical_s(self) -> float:
        """Seconds that the launches of the critical path run."""
        return self.timeline.critical_s

    @property
    def boundaries(self) -> int:
        """Kernel boundaries on the critical path that are measured: none next to a bounded launch."""
        return len(self.timeline.boundary_gaps)

    @property
    def bounded_launches(self) -> int:
        """Launches that cannot stamp, whose times are those between their neighbours."""
        return len(self.timeline.bounded)

    @property
    def streams(self) -> int:
        """Streams in use."""
        return len({x.stream for x in self.launches})

    @property
    def overhead(self) -> float:
        """The share by which a replay of kernels that stamp takes longer: 0.02 is 2 %."""
        return self.recorded_s / self.total_s - 1.0 if self.recorded_s and self.total_s else 0.0

    @property
    def speedup_over_serial(self) -> float | None:
        """Time of the serial plan over that of this one, None where it was not compared."""
        return self.serial_s / self.total_s if self.serial_s is not None and self.total_s else None

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, without the launches."""
        return {
            "target": self.target,
            "device": self.device,
            "clock": self.clock,
            "resolution_s": self.resolution_s,
            "repeats": self.repeats,
            "launches": len(self.launches),
            "bounded_launches": self.bounded_launches,
            "streams": self.streams,
            "total_s": self.total_s,
            "span_s": self.span_s,
            "recording_overhead": self.overhead,
            "idle_share": self.idle_share,
            "idle_share_beyond_boundaries": self.idle_share_beyond_boundaries,
            "processor_idle_share": self.processor_idle_share,
            "concurrency": self.concurrency,
            "critical_path_launches": len(self.critical_path),
            "critical_path_s": self.critical_s,
            "boundaries": self.boundaries,
            "boundary_gaps_s": sum(self.timeline.boundary_gaps),
            "boundary_s": self.boundary_s,
            "copy_in_s": sum(c.seconds for c in self.copies if c.direction == "in"),
            "copy_out_s": sum(c.seconds for c in self.copies if c.direction == "out"),
            "serial_s": self.serial_s,
            "speedup_over_serial": self.speedup_over_serial,
        }
