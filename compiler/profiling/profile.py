"""`Profile`: the record of one replay, with the forms in which a user takes it away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.profiling.replay_record import Clock, LaunchSpan, ReplayRecord
from tilewright.profiling.trace import trace_of, trace_text, write_trace
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import Work
from tilewright.runtime.streams.device_model import DeviceCapacity
from tilewright.runtime.streams.event_loop import simulate


@dataclass(frozen=True)
class Profile(ReplayRecord):
    """One replay of a plan: its numbers (see `ReplayRecord`), as a trace for Perfetto, and as text."""

    def trace(self) -> dict[str, Any]:
        """The replay in Chrome's trace event format, for Perfetto (https://ui.perfetto.dev)."""
        return trace_of(self)

    def to_json(self) -> str:
        """`trace()` as text."""
        return trace_text(self)

    def write_trace(self, path: str | Path) -> None:
        """Write `trace()` to a file, replaced at once; raises InputError where that is impossible."""
        write_trace(self, path)

    def __str__(self) -> str:
        return profile_table(self)


_BY: dict[Clock, str] = {
    "stamps": "recorded by stamps of every block",
    "events": "recorded by OpenCL events",
    "model": "by the model",
}
#: launches that are listed; the trace has all of them
SHOWN = 60


def profile_table(profile: ReplayRecord) -> str:
    """Lines of at most about 110 characters; launches on the critical path have a star."""
    return "\n".join((*_numbers(profile), "", *_launches(profile)))


def _numbers(p: ReplayRecord) -> Iterator[str]:
    yield f"{p.device}: {len(p.launches)} launches on {_count(p.streams, 'stream')}, {_BY[p.clock]}"
    if p.measured:
        cost = "" if p.recorded_s is None else f"stamping costs {100 * p.overhead:+.1f} %, "
        yield (
            f"one replay {_us(p.total_s)}, the recorded one {_us(p.span_s)} from first start to last end "
            f"({cost}clock steps of {1e9 * p.resolution_s:.0f} ns)"
        )
    else:
        yield f"one replay {_us(p.total_s)}"
    yield (
        f"idle {100 * p.idle_share:.1f} % of it, {100 * p.idle_share_beyond_boundaries:.1f} % beyond kernel "
        f"boundaries of {_us(p.boundary_s)}; {p.concurrency:.2f} kernels at a time"
    )
    if p.processor_idle_share is not None:
        count = _count(len(p.processor_busy_s), "multiprocessor")
        yield f"{count}, idle {100 * p.processor_idle_share:.1f} %"
    yield (
        f"critical path: {_count(len(p.critical_path), 'launch')}, {_us(p.critical_s)} of kernels and "
        f"{_us(sum(p.timeline.boundary_gaps))} in {p.boundaries} boundaries"
    )
    if p.bounded_launches:
        yield (
            f"<= {_count(p.bounded_launches, 'launch')} of libraries or communications: bounded by "
            "neighbours, with one boundary on either side"
        )
    for copy in p.copies:
        where = "to the device" if copy.direction == "in" else "to the host"
        yield f"copies {where}: {copy.nbytes} bytes in {_us(copy.seconds)} by the host's clock"
    if p.streams == 1:
        yield "one stream: the plan is serial"
    if p.serial_s is not None and p.speedup_over_serial is not None:
        yield f"serial plan: {_us(p.serial_s)}, {p.speedup_over_serial:.2f} times as long"


def _launches(p: ReplayRecord) -> Iterator[str]:
    critical = set(p.critical_path)
    yield f"{'':2}{'launch':>6} {'stream':>6} {'start':>11} {'time':>11} {'blocks':>8} {'SMs':>4}  kernel"
    for x in sorted(p.launches, key=lambda x: (x.start_s, x.index))[:SHOWN]:
        mark = "*" if x.index in critical else ""
        processors = len(x.processors) or ""
        seconds = f"<={_us(x.seconds)}" if x.bounded else _us(x.seconds)
        yield (
            f"{mark:2}{x.index:>6} {x.stream:>6} {_us(x.start_s):>11} {seconds:>11} {x.blocks:>8} "
            f"{processors:>4}  {x.kernel}"
        )
    if len(p.launches) > SHOWN:
        yield f"  and {len(p.launches) - SHOWN} more"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f} us" if seconds < 1e-3 else f"{1e3 * seconds:.3f} ms"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('ch') else 's'}"


def modelled_profile(plan: ExecutionPlan, work: Work, device: str) -> Profile:
    """Launches start in plan order, one kernel boundary after what they wait for, while their shares fit.

    work: times without boundaries, shares, and seconds of a boundary, of the launches
    (`tilewright.measuring.stream_choice.work_of`).
    device: the name of what is modelled. The serial plan takes the sum of all times and the boundaries
    between them; on one stream it is the plan itself, and not compared.
    """
    starts, end_s = _simulated(plan, work)
    launches = tuple(
        LaunchSpan(
            i, x.kernel, x.origin, x.stream, x.deps, x.grid, x.block,
            arrived_s=starts[i], start_s=starts[i], end_s=starts[i] + work.costs[i],
        )
        for i, x in enumerate(plan.launches)
    )  # fmt: skip
    boundaries = max(0, len(plan.launches) - 1)
    return Profile(
        target=plan.target,
        device=device,
        clock="model",
        repeats=0,
        launches=launches,
        total_s=end_s,
        recorded_s=None,
        resolution_s=0.0,
        serial_s=sum(work.costs) + boundaries * work.sync_cost
        if len({x.stream for x in launches}) > 1
        else None,
    )


def _simulated(plan: ExecutionPlan, work: Work) -> tuple[dict[int, float], float]:
    if not plan.launches:
        return {}, 0.0
    return simulate(plan.dag, work.costs, DeviceCapacity(work), lambda v: v, lambda u, v: work.sync_cost)
