"""Pieces of the report page: the layout of the graph, the table of convolution algorithms."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.tools.report.layered_layout import lay_out
from tilewright.tools.report.report_page import algorithm_table


def test_algorithms_that_competed_are_shown() -> None:
    row = {"origins": ["relay:nn.conv2d#3 net.relay:9"], "data": [1, 8, 16, 16], "kernel": [8, 8, 3, 3]}
    direct = {"algorithm": "direct", "estimate_s": 2e-5, "bound_s": 1e-6, "measured_s": 3e-5}
    winograd = {"algorithm": "winograd", "estimate_s": 4e-5, "bound_s": 4.5e-5, "measured_s": None}
    text = algorithm_table([{**row, "algorithm": "direct", "considered": [direct, winograd]}])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text)
    assert cells == [
        "conv2d #3",
        "1x8x16x16",
        "8x8x3x3",
        "30.0 us measured, 20.0 us expected",
        "bound 45.0 us: not measured",
    ]
    assert text.count('class="chosen"') == 1
    modelled = [{k: v for k, v in c.items() if k in ("algorithm", "estimate_s")} for c in (direct, winograd)]
    assert "measured" not in algorithm_table([{**row, "algorithm": "direct", "considered": modelled}])
    assert algorithm_table([{**row, "algorithm": "direct", "considered": modelled[:1]}]) == ""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    n = draw(st.integers(1, 14))
    sizes = draw(st.lists(st.tuples(st.floats(10, 200), st.floats(10, 90)), min_size=n, max_size=n))
    pairs = [(a, b) for b in range(n) for a in range(b)]
    return sizes, sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []


@settings(deadline=None)
@given(graphs())
def test_layout_overlaps_nothing_and_flows_down(graph) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.corners, sizes, strict=True)]
    for i, a in enumerate(boxes):
        assert min(a) >= -1e-6
        assert a[2] <= layout.width + 1e-6
        assert a[3] <= layout.height + 1e-6
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] or b[3] <= a[1]
    for (a, b), route in zip(edges, layout.routes, strict=True):
        points = [p for segment in route for p in segment]
        assert points[0] == pytest.approx(((boxes[a][0] + boxes[a][2]) / 2, boxes[a][3]))
        assert points[-1] == pytest.approx(((boxes[b][0] + boxes[b][2]) / 2, boxes[b][1]))
        assert np.all(np.diff([y for _, y in points]) >= 0)
