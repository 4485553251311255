"""HTML of one kernel: a row that opens to its numbers, parameters, candidates, launches, source and IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.tools.report.facts import Candidate, KernelFacts, ReportFacts
from tilewright.tools.report.roofline_figure import intensity, rate
from tilewright.tools.report.wording import (
    bytes_text,
    operations_text,
    parameter_text,
    rate_text,
    seconds_text,
)

#: launches that one section lists
SHOWN = 60


def kernel_section(facts: ReportFacts, position: int, colour: str) -> str:
    """The section of `facts.kernels[position]`, called `kernel-<position + 1>`."""
    k = facts.kernels[position]
    total = sum(x.total_s for x in facts.kernels) or 1.0
    peak = rate(k) / facts.hardware.peak_flops_per_s
    gap = k.seconds / k.bound_s if k.bound_s else 0.0
    limit = LIMITS.get(k.limit, k.limit)
    ops = dict.fromkeys(op for launch in facts.launches if launch.kernel == position for op in launch.ops)
    words = " ".join((k.name, k.operator_class, k.template, *ops)).lower()
    cells = (
        f'<span class="name"><b>{position + 1}</b> {escape(k.name)}</span>',
        f'<span><i class="dot" style="background:{colour}"></i>{escape(k.operator_class)}</span>',
        f"<span>{k.calls}</span>",
        f"<span>{seconds_text(k.total_s)}</span>",
        f'<span class="bar" title="{100 * k.total_s / total:.1f} % of the time">'
        f'<i style="width:{100 * k.total_s / total:.1f}%;background:{colour}"></i></span>',
        f"<span>{100 * peak:.1f} %</span>",
        f"<span>{gap:.3g} x</span>",
        f"<span>{escape(limit)}</span>",
    )
    return "\n".join(
        (
            f'<details class="kernel" id="kernel-{position + 1}" data-rank="{position + 1}" '
            f'data-class="{escape(k.operator_class)}" data-calls="{k.calls}" data-time="{k.total_s:.6g}" '
            f'data-peak="{peak:.6g}" data-gap="{gap:.6g}" data-limit="{escape(limit)}" '
            f'data-words="{escape(words)}">',
            f"<summary>{''.join(cells)}</summary>",
            '<div class="body"><div class="grids">',
            _numbers(facts, k, peak),
            _parameters(k),
            _candidates(k.candidates),
            _launches(facts, position),
            "</div>",
            _code("Generated source and its thread IR", ("source", k.source), ("thread IR", k.thread_ir)),
            _code("Tensor IR", ("tensor IR", k.tensor_ir)),
            "</div></details>",
        )
    )


def _numbers(facts: ReportFacts, k: KernelFacts, peak: float) -> str:
    resources = k.resources
    rows = [
        (f"one launch ({facts.timing.source})", seconds_text(k.seconds)),
        ("expected by the model", seconds_text(k.estimate_s)),
        ("lower bound", seconds_text(k.bound_s)),
        (
            "lower bound from DRAM",
            f"{seconds_text(k.dram_bound_s)}, by {LIMITS.get(k.limit, k.limit)}",
        ),
        ("operations", operations_text(k.operations)),
        ("compulsory traffic", bytes_text(k.bytes)),
        ("intensity", f"{intensity(k):.3g} FLOP/B"),
        ("achieved", f"{rate_text(rate(k))}, {100 * peak:.1f} % of peak"),
        ("bytes per second", f"{bytes_text(k.bytes / k.seconds if k.seconds else 0)}/s"),
        ("grid", f"{' x '.join(map(str, k.grid))} blocks of {k.block} threads"),
    ]
    if resources is not None:
        rows.append(("registers per thread", f"{resources.registers}, {resources.spill_bytes} bytes spilled"))
        rows.append(("static shared memory", bytes_text(resources.shared_bytes)))
    return _table("Numbers", rows)


def _parameters(k: KernelFacts) -> str:
    rows = [("template", k.template), *((name, parameter_text(v)) for name, v in k.params.items())]
    return _table("Parameters", [*rows, ("legal points compared", str(k.considered))])


def _table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _candidates(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return ""
    measured = any(c.measured_s is not None for c in candidates)
    varied = _varied(candidates)
    head = [*varied, "expected", *(["measured"] if measured else [])]
    rows = []
    for c in candidates:
        cells = [parameter_text(c.params.get(name, "")) for name in varied]
        times = [seconds_text(c.estimate_s)]
        if measured:
            times.append(seconds_text(c.measured_s) if c.measured_s is not None else "")
        rows.append(
            ('<tr class="chosen">' if c.chosen else "<tr>")
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "".join(f'<td class="n">{time}</td>' for time in times)
            + "</tr>"
        )
    title = "Candidates measured" if measured else "Likeliest candidates by the model, not measured"
    header = "".join(f"<th>{escape(h)}</th>" for h in head)
    return f'<table class="candidates"><caption>{title}</caption><tr>{header}</tr>{"".join(rows)}</table>'


def _varied(candidates: Sequence[Candidate]) -> list[str]:
    """Parameters in which the candidates differ; the first one where they differ in none."""
    names = list(candidates[0].params)
    return [n for n in names if any(c.params.get(n) != candidates[0].params[n] for c in candidates)] or names[
        :1
    ]


def _launches(facts: ReportFacts, position: int) -> str:
    mine = [(i, launch) for i, launch in enumerate(facts.launches) if launch.kernel == position]
    first = len(facts.plan.inputs)
    rows = [
        f'<tr><td><a href="#node-{first + i}">{i}</a></td><td>{escape(", ".join(launch.ops))}</td>'
        f'<td class="n">{seconds_text(launch.seconds)}</td></tr>'
        for i, launch in mine[:SHOWN]
    ]
    if len(mine) > SHOWN:
        rows.append(f"<tr><td></td><td>and {len(mine) - SHOWN} more</td><td></td></tr>")
    return (
        '<div class="scroll"><table><caption>Launches</caption><tr><th>launch</th><th>ops</th>'
        f'<th class="n">time</th></tr>{"".join(rows)}</table></div>'
    )


def _code(title: str, *panes: tuple[str, str]) -> str:
    lines = " + ".join(str(text.count("\n") + 1) for _, text in panes)
    inside = "".join(
        f'<div><h4>{escape(name)}</h4><pre class="{"ir" if name.endswith("IR") else "source"}">'
        f"{escape(text)}</pre></div>"
        for name, text in panes
    )
    kind = "panes" if len(panes) > 1 else "panes one"
    return (
        f'<details class="code"><summary>{escape(title)} ({lines} lines)</summary>'
        f'<div class="{kind}">{inside}</div></details>'
    )
