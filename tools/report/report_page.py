"""The page itself: summary, pictures and kernel sections put into one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tilewright.costmodel.hardware.provenance import borrowed_constants, borrowed_text
from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.profiling.replay_record import Clock
from tilewright.runtime.arena.placement import arena_lower_bound
from tilewright.tools.data_movement.kernel_rows import source_of_times, totals
from tilewright.tools.report.facts import ReportFacts
from tilewright.tools.report.figures import class_colours
from tilewright.tools.report.graph_picture import graph_picture
from tilewright.tools.report.kernel_section import kernel_section
from tilewright.tools.report.memory_figure import live_bytes, memory_svg
from tilewright.tools.report.operator_class import op_title
from tilewright.tools.report.page_template import filled, resource
from tilewright.tools.report.roofline_figure import roofline_svg
from tilewright.tools.report.time_figures import classes_svg, kernels_svg
from tilewright.tools.report.timeline_figure import SHOWN_WAITS, timeline_svg, waits_across
from tilewright.tools.report.wording import bytes_text, counted, operations_text, rate_text, seconds_text

_HERE = "tilewright.tools.report"


def report_page(facts: ReportFacts) -> str:
    """HTML of the whole report. Raises UnsupportedError where matplotlib is missing."""
    colours = class_colours(facts.classes)
    return filled(
        resource("report_page.html", _HERE),
        title=escape(facts.network),
        about=escape(_about(facts)),
        style=resource("page_palette.css") + resource("report_page.css", _HERE),
        script=resource("report_page.js", _HERE),
        cards="\n".join(_cards(facts)),
        note=escape(_note(facts)),
        kernel_times=kernels_svg(facts),
        class_times=classes_svg(facts),
        replay_cards="\n".join(_card(*card) for card in replay_cards(facts)),
        timeline_legend="".join(_legend(colours)),
        timeline=timeline_svg(facts),
        timeline_note=escape(timeline_note(facts)),
        roofline=roofline_svg(facts),
        roofline_note=escape(_roofline_note(facts)),
        movement=movement_table(facts),
        movement_note=escape(_movement_note(facts)),
        graph_note=escape(_graph_note(facts)),
        legend="".join(_legend(colours)),
        graph=graph_picture(facts),
        memory=memory_svg(facts.plan),
        memory_note=escape(_memory_note(facts)),
        algorithms=algorithm_table(facts.convolutions),
        kernels="\n".join(
            kernel_section(facts, i, colours[k.operator_class]) for i, k in enumerate(facts.kernels)
        ),
    )


def _about(facts: ReportFacts) -> str:
    own = f" · own passes {'; '.join(facts.passes)}" if facts.passes else ""
    return (
        f"{facts.target} · {facts.precision} · {counted(len(facts.launches), 'launch')} of "
        f"{counted(len(facts.kernels), 'kernel')}{own}"
    )


def _cards(facts: ReportFacts) -> Iterator[str]:
    timing, plan = facts.timing, facts.plan
    total = sum(timing.launches_s)
    bound = sum(k.calls * k.bound_s for k in facts.kernels)
    estimate = sum(k.calls * k.estimate_s for k in facts.kernels)
    operations = sum(k.calls * k.operations for k in facts.kernels)
    run = timing.network_s or total
    weights = sum(b.nbytes for b in plan.buffers if b.kind == "constant")
    if timing.network_s is not None:
        yield _card("One run, measured", seconds_text(timing.network_s), f"on {timing.where}")
        yield _card("Launches one by one, measured", seconds_text(total), "sum over all launches")
        yield _card("Expected by the model", seconds_text(estimate), f"for {facts.hardware.name}")
    else:
        yield _card("One run, modelled", seconds_text(total), f"for {facts.hardware.name}: {timing.where}")
    yield _card("Lower bound by the model", seconds_text(bound), f"{_ratio(run, bound)} below the run")
    share = 100 * operations / run / facts.hardware.peak_flops_per_s if run else 0.0
    yield _card("Arithmetic", operations_text(operations), f"{rate_text(operations / run if run else 0)}, "
                f"{share:.1f} % of peak")  # fmt: skip
    yield _card("Kernels", str(len(facts.kernels)), counted(len(facts.launches), "launch"))
    yield _card("Weights", bytes_text(weights), f"{sum(b.kind == 'constant' for b in plan.buffers)} arrays")
    separate = sum(b.nbytes for b in plan.buffers if b.kind == "arena")
    yield _card("Arena", bytes_text(plan.arena_bytes), f"{bytes_text(separate)} if nothing were shared")
    yield _card("Parameters", f"by {facts.chosen_by}", f"{_compared(facts)} legal points compared")


def _ratio(run: float, bound: float) -> str:
    return f"{run / bound:.3g} times" if bound else "not"


def _compared(facts: ReportFacts) -> int:
    return sum(k.considered for k in facts.kernels)


def _card(name: str, value: str, below: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(below)}</small></dd></div>"


def _note(facts: ReportFacts) -> str:
    hardware = facts.hardware
    borrowed = borrowed_text(hardware.name, borrowed_constants(hardware), hardware.stands_for)
    record = f" The {borrowed}." if borrowed else ""
    if facts.timing.measured:
        return (
            f"Times are measured on {facts.timing.where}: medians of warm runs on random inputs, kernels "
            f"timed one by one. Bounds and expectations are the cost model's.{record}"
        )
    return (
        f"Times are the cost model's for {hardware.name} ({facts.timing.where}). They say which "
        f"kernels matter, not how long the network takes.{record}"
    )


def _roofline_note(facts: ReportFacts) -> str:
    without = sum(1 for k in facts.kernels if not k.operations)
    more = f" {without} kernels only move data and have no point." if without else ""
    return (
        f"Roofs are those of the record of {facts.hardware.name}. Traffic is what a kernel must move at "
        "least; what stays in a cache between two kernels does not reach DRAM, so points may lie above that "
        f"roof. The area of a point is its share of the time.{more}"
    )


def _movement_note(facts: ReportFacts) -> str:
    source = source_of_times([k.movement for k in facts.kernels])
    return (
        f"Memory usage efficiency, MUE = 100 (Q/D)(B/B^), with {source} times: Q are the bytes of inputs and "
        "outputs, each once; D what the kernel asks of global memory by its cut; B = D/t, and B^ = "
        f"{bytes_text(facts.hardware.dram_bytes_per_s)}/s. D cancels. A kernel is memory bound where its MUE "
        "is above its percent of peak. What a cache kept from the kernel before can lift MUE above 100."
    )


#: headings of the tables of data movement
_SUMS = ("operator class", "launches", "operations", "Q", "D", "time", "share", "MUE", "memory bound")
_KERNELS = (
    "kernel", "operator class", "operations", "words in", "words out", "Q", "D", "time", "MUE", "of peak",
    "bound",
)  # fmt: skip


def movement_table(facts: ReportFacts) -> str:
    """Sums by class of operator, then every kernel, of one launch each."""
    rows = [k.movement for k in facts.kernels]
    sums = [
        (
            t["work"], str(t["launches"]), operations_text(t["flops"]), bytes_text(t["compulsory_bytes"]),
            _moved(t["moved_bytes"]), seconds_text(t["seconds"]), f"{t['share']:.1f} %", f"{t['mue']:.1f}",
            f"{t['memory_bound']} of {t['launches']}",
        )
        for t in totals(rows, facts.hardware.dram_bytes_per_s)
    ]  # fmt: skip
    kernels = [
        (
            r.kernel, r.work, operations_text(r.flops), f"{r.words_in:,}", f"{r.words_out:,}",
            bytes_text(r.compulsory_bytes), _moved(r.moved_bytes), seconds_text(r.seconds), f"{r.mue:.1f}",
            f"{r.peak_share:.1f} %", f"{'memory' if r.memory_bound else 'compute'}: "
            f"{LIMITS.get(r.limit, r.limit)}",
        )
        for r in rows
    ]  # fmt: skip
    return _plain_table(_SUMS, sums) + _plain_table(_KERNELS, kernels)


def _moved(nbytes: int | None) -> str:
    return "" if nbytes is None else bytes_text(nbytes)


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    header = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{header}</tr>{body}</table></div>'


def _graph_note(facts: ReportFacts) -> str:
    exact = "" if facts.exact_ops else (
        " A saved executable keeps the ops of a kernel's first launch only, and they stand in all its boxes."
    )  # fmt: skip
    return (
        "Each box is one launch with the ops it computes; its head has the colour of its operator class, the "
        f"line at its foot is as long as its time. A click goes to the kernel.{exact}"
    )


def _legend(colours: dict[str, str]) -> Iterator[str]:
    for name, colour in colours.items():
        yield f'<li><i class="dot" style="background:{colour}"></i>{escape(name)}</li>'


def _memory_note(facts: ReportFacts) -> str:
    plan = facts.plan
    alive = max(live_bytes(plan), default=0)
    outside = sum(b.nbytes for b in plan.buffers if b.kind in ("input", "output", "constant", "state"))
    return (
        f"Every rectangle is a buffer of the arena from its first to its last use in plan order. At most "
        f"{bytes_text(alive)} hold data at a time; the arena takes {bytes_text(plan.arena_bytes)}, where no "
        f"layout under its dependencies takes less than {bytes_text(arena_lower_bound(plan))}. Inputs, "
        f"outputs, weights and state lie outside it and take {bytes_text(outside)}."
    )


#: ops that one row names
NAMED = 6


def algorithm_table(convolutions: Sequence[Mapping[str, Any]]) -> str:
    """A row per group of equal convolutions that had a choice, a column per algorithm, the chosen one marked.

    convolutions: as `Executable.report()["convolutions"]` has them.
    """
    open_rows = [row for row in convolutions if len(row["considered"]) > 1]
    if not open_rows:
        return ""
    names = list(dict.fromkeys(c["algorithm"] for row in open_rows for c in row["considered"]))
    head = "".join(f"<th>{escape(h)}</th>" for h in ("convolutions", "data", "kernel", *names))
    body = "".join(_row(row, names) for row in open_rows)
    return (
        '<h3>Algorithms of convolutions</h3><div class="scroll"><table class="algorithms">'
        f"<tr>{head}</tr>{body}</table></div>"
    )


def _row(row: Mapping[str, Any], names: Sequence[str]) -> str:
    titles = [op_title(at) for at in row["origins"]]
    more = f" and {len(titles) - NAMED} more" if len(titles) > NAMED else ""
    cells = [", ".join(titles[:NAMED]) + more, _shape(row["data"]), _shape(row["kernel"])]
    by_name = {c["algorithm"]: c for c in row["considered"]}
    times = []
    for name in names:
        chosen = ' class="chosen"' if name == row["algorithm"] else ""
        times.append(f"<td{chosen}>{_times(by_name.get(name))}</td>")
    return f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in cells)}{''.join(times)}</tr>"


def _times(c: Mapping[str, Any] | None) -> str:
    if c is None:
        return ""
    expected = f"{seconds_text(c['estimate_s'])} expected"
    if "measured_s" not in c:
        return expected
    measured = c["measured_s"]
    if measured is None:
        return f"bound {seconds_text(c['bound_s'])}: not measured"
    return f"{seconds_text(measured)} measured, {expected}"


def _shape(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))


_SOURCES: dict[Clock, str] = {
    "stamps": "kernels that stamp the start and end of every block by the GPU's timer",
    "events": "the profiling events of OpenCL",
    "model": "the cost model",
}


def replay_cards(facts: ReportFacts) -> Iterator[tuple[str, str, str]]:
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


def timeline_note(facts: ReportFacts) -> str:
    """A note on how the picture came about and how to read it."""
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
