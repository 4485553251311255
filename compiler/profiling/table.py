"""A profile as text for a terminal: the numbers, then one line per launch in order of time."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.profiling.replay_record import Clock, ReplayRecord

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
