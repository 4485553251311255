"""The network as an SVG: a box per kernel launch with the ops it computes, inputs and outputs around."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.tools.report.facts import LaunchFacts, ReportFacts
from tilewright.tools.report.figures import class_colours
from tilewright.tools.report.layered_layout import Layout, Segment, lay_out
from tilewright.tools.report.wording import bytes_text, seconds_text, shape_text

WIDTH = 236.0
LINE = 15.0
HEAD = 22.0
FOOT = 20.0
PILL = 24.0
MARGIN = 12.0
MOST_OPS = 7
LETTERS = 35


@dataclass(frozen=True)
class _Edge:
    source: int
    reader: int
    buffer: Buffer


@dataclass(frozen=True)
class _Net:
    """Nodes are the inputs, then the launches, then the outputs."""

    plan: ExecutionPlan
    edges: tuple[_Edge, ...]

    @property
    def first_launch(self) -> int:
        return len(self.plan.inputs)

    @property
    def first_output(self) -> int:
        return self.first_launch + len(self.plan.launches)


def graph_picture(facts: ReportFacts) -> str:
    """The whole drawing; each launch links to its kernel's section and carries its words in `data-words`."""
    net = _net(facts.plan)
    sizes = [(_pill_width(n), PILL) for n in facts.plan.input_titles]
    sizes += [(WIDTH, HEAD + LINE * len(_lines(launch)) + FOOT) for launch in facts.launches]
    sizes += [(_pill_width(n), PILL) for n in facts.plan.outputs]
    layout = lay_out(sizes, [(e.source, e.reader) for e in net.edges])
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    parts = [
        f'<svg id="graph" class="graph" role="img" aria-label="kernels of the network" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}">',
        *_edge_paths(net, layout),
        *_boxes(facts, net, layout),
        "</svg>",
    ]
    return "\n".join(parts)


def _net(plan: ExecutionPlan) -> _Net:
    first = len(plan.inputs)
    source = {name: i for i, name in enumerate(plan.inputs)}
    edges: dict[tuple[int, int, str], _Edge] = {}

    def read(name: str, reader: int) -> None:
        owner = plan.locate(name)[0].name
        for n in (name, owner):
            if n in source:
                edges.setdefault((source[n], reader, n), _Edge(source[n], reader, plan.buffer_by_name[n]))
                return

    for i, launch in enumerate(plan.launches, first):
        for name in launch.args:
            read(name, i)
        for position in launch.writes:
            source[launch.args[position]] = source[plan.locate(launch.args[position])[0].name] = i
    for i, name in enumerate(plan.outputs, first + len(plan.launches)):
        read(name, i)
    return _Net(plan, tuple(edges.values()))


def _pill_width(name: str) -> float:
    return max(70.0, min(WIDTH, 7.0 * len(_short(name)) + 24))


def _lines(launch: LaunchFacts) -> list[str]:
    shown = list(launch.ops[:MOST_OPS])
    rest = len(launch.ops) - len(shown)
    return [*shown, f"and {rest} more"] if rest else shown


def _short(text: str, letters: int = LETTERS) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _edge_paths(net: _Net, layout: Layout) -> Iterator[str]:
    drawn: set[Segment] = set()
    for edge, route in zip(net.edges, layout.routes, strict=True):
        b = edge.buffer
        title = f"{b.title}: {shape_text(b.dtype, b.shape)}, {bytes_text(b.nbytes)}"
        path = " ".join(_curve(s) for s in route if s not in drawn)
        drawn.update(route)
        x, y = route[-1][1]
        yield (
            f'<g class="edge" data-ends="{edge.source} {edge.reader}"><title>{escape(title)}</title>'
            f'<path d="{path}"/><path class="tip" d="M{x - 4:.1f} {y - 7:.1f}L{x:.1f} {y:.1f}'
            f'L{x + 4:.1f} {y - 7:.1f}z"/></g>'
        )


def _curve(s: Segment) -> str:
    (x0, y0), (x1, y1) = s
    if abs(x0 - x1) < 0.5:
        return f"M{x0:.1f} {y0:.1f}V{y1:.1f}"
    middle = (y0 + y1) / 2
    return f"M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"


def _boxes(facts: ReportFacts, net: _Net, layout: Layout) -> Iterator[str]:
    plan = facts.plan
    colours = class_colours(facts.classes)
    longest = max((launch.seconds for launch in facts.launches), default=0.0) or 1.0
    ends = ((plan.inputs, 0, "input"), (plan.outputs, net.first_output, "output"))
    for names, first, kind in ends:
        for i, name in enumerate(names, first):
            yield _pill(plan.buffer_by_name[name], layout.corners[i], i, kind)
    for i, launch in enumerate(facts.launches):
        node = net.first_launch + i
        yield _launch_box(facts, i, node, layout.corners[node], colours, launch.seconds / longest)


def _pill(b: Buffer, corner: tuple[float, float], node: int, kind: str) -> str:
    (x, y), width = corner, _pill_width(b.title)
    title = f"{kind} {b.title}: {shape_text(b.dtype, b.shape)}"
    return (
        f'<g class="pill" id="node-{node}" transform="translate({x:.1f} {y:.1f})">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{width:.1f}" height="{PILL}" rx="{PILL / 2}"/>'
        f'<text x="{width / 2:.1f}" y="16" text-anchor="middle">{escape(_short(b.title))}</text></g>'
    )


def _launch_box(
    facts: ReportFacts,
    index: int,
    node: int,
    corner: tuple[float, float],
    colours: dict[str, str],
    share: float,
) -> str:
    launch = facts.launches[index]
    kernel, planned = facts.kernels[launch.kernel], facts.plan.launches[index]
    lines = _lines(launch)
    height = HEAD + LINE * len(lines) + FOOT
    written = [facts.plan.buffer_by_name[planned.args[p]] for p in planned.writes]
    shape = "x".join(map(str, written[0].shape)) if written else ""
    title = (
        f"launch {index}: {kernel.name}\n{', '.join(launch.ops)}\n{kernel.operator_class}, grid "
        f"{'x'.join(map(str, planned.grid))} of {planned.block} threads\n"
        f"{seconds_text(launch.seconds)} ({facts.timing.source})\nwrites "
        + ", ".join(f"{b.name}: {shape_text(b.dtype, b.shape)}" for b in written)
    )
    words = " ".join((kernel.name, kernel.operator_class, *launch.ops, *(b.name for b in written))).lower()
    x, y = corner
    texts = "".join(
        f'<text x="9" y="{HEAD + 12 + LINE * i:.0f}">{escape(_short(line))}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<a class="launch" id="node-{node}" href="#kernel-{launch.kernel + 1}" '
        f'data-words="{escape(words)}" transform="translate({x:.1f} {y:.1f})"><title>{escape(title)}</title>'
        f'<rect class="box" width="{WIDTH}" height="{height}" rx="5"/>'
        f'<path fill="{colours[kernel.operator_class]}" d="M0 5a5 5 0 0 1 5-5h{WIDTH - 10}a5 5 0 0 1 5 5v'
        f'{HEAD - 5}h-{WIDTH}z"/>'
        f'<text class="head" x="9" y="15">{escape(_short(f"{launch.kernel + 1} {kernel.name}", 33))}</text>'
        f"{texts}"
        f'<rect class="share" x="0" y="{height - 3}" width="{WIDTH * share:.1f}" height="3"/>'
        f'<text class="foot" x="9" y="{height - 8}">{escape(_short(shape, 24))}</text>'
        f'<text class="foot" x="{WIDTH - 9}" y="{height - 8}" text-anchor="end">'
        f"{seconds_text(launch.seconds)}</text></a>"
    )
