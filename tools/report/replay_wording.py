"""What the page says about one replay: idle share, critical path, speed against the serial plan."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.profiling.replay_record import Clock
from tilewright.tools.report.facts import Facts
from tilewright.tools.report.timeline_figure import SHOWN_WAITS, waits_across
from tilewright.tools.report.wording import bytes_text, counted, seconds_text

_SOURCES: dict[Clock, str] = {
    "stamps": "kernels that stamp the start and end of every block by the GPU's timer",
    "events": "the profiling events of OpenCL",
    "model": "the cost model",
}


def replay_cards(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """Name, value and remark of each number beside the timeline."""
    r = facts.replay
    by = "measured" if r.measured else "modelled"
    boundary = (
        f"{100 * r.idle_share_beyond_boundaries:.1f} % beyond boundaries of {seconds_text(r.boundary_s)}"
    )
    yield f"No kernel runs, {by}", f"{100 * r.idle_share:.1f} %", boundary
    if r.processor_idle_share is not None:
        share = f"{100 * r.processor_idle_share:.1f} %"
        yield "Multiprocessors idle", share, f"mean over {len(r.processor_busy_s)}, {by}"
    part = 100 * r.critical_s / r.span_s if r.span_s else 0.0
    yield (
        "Critical path",
        seconds_text(r.critical_s),
        f"{counted(len(r.critical_path), 'launch')}, {part:.1f} % of {seconds_text(r.span_s)}",
    )
    if r.speedup_over_serial is not None and r.serial_s is not None:
        yield (
            "Against the serial plan",
            f"{r.speedup_over_serial:.2f} x",
            f"{seconds_text(r.serial_s)} on one stream, {by}",
        )
    yield "Streams", str(r.streams), f"{r.concurrency:.2f} kernels at a time"
    for copy in r.copies:
        name = "Inputs to the device" if copy.direction == "in" else "Outputs to the host"
        yield name, seconds_text(copy.seconds), f"{bytes_text(copy.nbytes)}, by the host's clock"


def timeline_note(facts: Facts) -> str:
    """How the picture came about and how to read it."""
    r = facts.replay
    drawn = len(waits_across(r)) <= SHOWN_WAITS
    waits = "are thin lines" if drawn else "are too many to be drawn"
    read = (
        f"A lane per stream; a stream has several where its kernels overlap. Waits across streams {waits}. "
        "The critical path is the longest way through the dependencies by the kernels' times."
    )
    if not r.measured:
        why = facts.timing.unrecorded or facts.timing.where
        return f"One replay as {_SOURCES[r.clock]} sees it, for {r.device} ({why}). {read}"
    cost = ""
    if r.recorded_s is not None:
        cost = f" A replay that stamps takes {100 * r.overhead:+.1f} %."
    return (
        f"The replay of median length of {r.repeats} on {r.device}, by {_SOURCES[r.clock]}; the clock makes "
        f"steps of {seconds_text(r.resolution_s)}.{cost} {read}"
    )
