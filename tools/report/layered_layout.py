"""Layered drawing of an acyclic graph, top to bottom: layers, order within layers, coordinates, routes.

Long edges run through unseen nodes, one chain per source that all its readers share. The steps are Sugiyama's
(longest-path layers, barycentric sweeps); coordinates are a least-squares fit under minimal distances.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP_X = 22.0
GAP_Y = 34.0
THROUGH_WIDTH = 14.0
ORDER_SWEEPS = 8
PLACE_SWEEPS = 24
#: the first sweeps look at one neighbouring layer only, which moves long chains fast
ROUGH_SWEEPS = 4
#: pulls besides those of length 1: along long edges and along plain chains, which keeps them straight, and of
#: every node to the middle, which stops long graphs from drifting sideways
UNSEEN = 8.0
CHAIN = 4.0
TO_THE_MIDDLE = 0.1

Point = tuple[float, float]
Segment = tuple[Point, Point]


@dataclass(frozen=True)
class Layout:
    """Left and top of every box, the routes of all edges as vertical-to-vertical segments, the whole size.

    routes: per edge, as given, its segments from the bottom of one box to the top of the other.
    """

    corners: tuple[Point, ...]
    routes: tuple[tuple[Segment, ...], ...]
    width: float
    height: float


@dataclass
class _Graph:
    """Boxes first, then the unseen nodes; `edges` join neighbouring layers only."""

    sizes: list[Point]
    layer: list[int]
    boxes: int
    edges: list[tuple[int, int]] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of (width, height); every edge goes from an earlier box to a later one."""
    if not sizes:
        return Layout((), (), 0.0, 0.0)
    graph = _layered(sizes, edges)
    layers = _ordered(graph)
    centres = _centres(graph, layers)
    left = min(c - graph.sizes[n][0] / 2 for n, c in enumerate(centres))
    centres = [c - left for c in centres]
    tops, heights, y = [], [], 0.0
    for members in layers:
        tops.append(y)
        heights.append(max(graph.sizes[n][1] for n in members))
        y += heights[-1] + GAP_Y
    corners = tuple((centres[n] - graph.sizes[n][0] / 2, tops[graph.layer[n]]) for n in range(graph.boxes))
    routes = tuple(_route(graph, path, centres, tops, heights) for path in graph.paths)
    width = max(c + graph.sizes[n][0] / 2 for n, c in enumerate(centres))
    return Layout(corners, routes, width, y - GAP_Y)


def _route(
    graph: _Graph, path: list[int], centres: list[float], tops: list[float], heights: list[float]
) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for a, b in pairwise(path):
        bottom = tops[graph.layer[a]] + (graph.sizes[a][1] if a < graph.boxes else heights[graph.layer[a]])
        segments.append(((centres[a], bottom), (centres[b], tops[graph.layer[b]])))
        if b >= graph.boxes:
            top = tops[graph.layer[b]]
            segments.append(((centres[b], top), (centres[b], top + heights[graph.layer[b]])))
    return tuple(segments)


def _layered(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> _Graph:
    layer = [0] * len(sizes)
    for a, b in sorted(edges, key=lambda e: e[1]):
        layer[b] = max(layer[b], layer[a] + 1)
    first_reader: dict[int, int] = {}
    for a, b in edges:
        first_reader[a] = min(first_reader.get(a, layer[b]), layer[b])
    readers = {b for _, b in edges}
    for n in set(first_reader) - readers:  # a source sits right above its first reader
        layer[n] = first_reader[n] - 1
    graph = _Graph(list(sizes), layer, len(sizes))
    chains: dict[int, list[int]] = {}
    seen: set[tuple[int, int]] = set()
    for a, b in edges:
        chain = chains.setdefault(a, [a])
        while graph.layer[chain[-1]] < graph.layer[b] - 1:
            graph.sizes.append((THROUGH_WIDTH, 0.0))
            graph.layer.append(graph.layer[chain[-1]] + 1)
            chain.append(len(graph.sizes) - 1)
        path = [*chain[: graph.layer[b] - graph.layer[a]], b]
        graph.paths.append(path)
        seen.update(pairwise(path))
    graph.edges = sorted(seen)
    return graph


def _neighbours(graph: _Graph) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in graph.sizes]
    below: list[list[int]] = [[] for _ in graph.sizes]
    for a, b in graph.edges:
        above[b].append(a)
        below[a].append(b)
    return above, below


def _ordered(graph: _Graph) -> list[list[int]]:
    """The nodes of each layer from left to right with few crossings."""
    layers: list[list[int]] = [[] for _ in range(max(graph.layer) + 1)]
    for n, at in enumerate(graph.layer):
        layers[at].append(n)
    above, below = _neighbours(graph)
    best, fewest = [list(m) for m in layers], _crossings(layers, below)
    for sweep in range(ORDER_SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        for members in layers if down else reversed(layers):
            _sort_by_mean(members, above if down else below, layers)
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = [list(m) for m in layers], crossings
    return best


def _sort_by_mean(members: list[int], near: list[list[int]], layers: list[list[int]]) -> None:
    place = {n: i for layer in layers for i, n in enumerate(layer)}
    here = {n: float(i) for i, n in enumerate(members)}
    for n in members:
        if near[n]:
            here[n] = sum(place[m] for m in near[n]) / len(near[n])
    members.sort(key=here.__getitem__)


def _crossings(layers: list[list[int]], below: list[list[int]]) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        position = {n: i for i, n in enumerate(lower)}
        ends: list[int] = []
        for n in upper:
            mine = sorted(position[m] for m in below[n])
            count += sum(len(ends) - bisect_right(ends, p) for p in mine)
            for p in mine:
                insort(ends, p)
    return count


def _centres(graph: _Graph, layers: list[list[int]]) -> list[float]:
    """Centres that keep neighbours above each other, unseen nodes the most, without overlaps."""
    above, below = _neighbours(graph)
    x = [0.0] * len(graph.sizes)
    for members in layers:
        at = 0.0
        for n in members:
            x[n] = at + graph.sizes[n][0] / 2
            at += graph.sizes[n][0] + GAP_X
        for n in members:
            x[n] -= at / 2
    near = [[*a, *b] for a, b in zip(above, below, strict=True)]
    pull = {(a, b): _pull(graph, a, b, len(below[a]), len(above[b])) for a, b in graph.edges}
    pull |= {(b, a): w for (a, b), w in pull.items()}
    for sweep in range(PLACE_SWEEPS):
        down = sweep % 2 == 0
        one_side = above if down else below
        for members in layers if down else reversed(layers):
            _fit(graph, members, x, one_side if sweep < ROUGH_SWEEPS else near, pull)
    return x


def _pull(graph: _Graph, a: int, b: int, readers: int, sources: int) -> float:
    if min(a, b) >= graph.boxes:
        return UNSEEN
    return CHAIN if readers == sources == 1 else 1.0


def _fit(
    graph: _Graph,
    members: list[int],
    x: list[float],
    near: list[list[int]],
    pull: dict[tuple[int, int], float],
) -> None:
    """Move one layer to the least-squares places that keep order and distances (pool adjacent violators)."""
    shift = 0.0
    shifts: list[float] = []
    blocks: list[tuple[float, float, int]] = []
    for i, n in enumerate(members):
        if i:
            shift += (graph.sizes[members[i - 1]][0] + graph.sizes[n][0]) / 2 + GAP_X
        shifts.append(shift)
        weight = sum(pull[n, m] for m in near[n]) + TO_THE_MIDDLE
        goal = sum(pull[n, m] * x[m] for m in near[n]) / weight
        blocks.append((goal - shift, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (v1, w1, c1), (v2, w2, c2) = blocks[-2:]
            blocks[-2:] = [((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, c1 + c2)]
    values = [v for v, _, count in blocks for _ in range(count)]
    for n, v, s in zip(members, values, shifts, strict=True):
        x[n] = v + s
