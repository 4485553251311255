"""Timelines: pauses, lanes and longest paths against brute force; stamps read into spans."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import diamond

from tilewright.codegen.emit.stamps import ARRIVAL, END, PROCESSOR, STAMPS_PER_BLOCK, START
from tilewright.profiling.stamps import launch_spans, processor_busy_s, resolution_ns, span_ns
from tilewright.profiling.timeline import Timeline, covered, lanes, longest_path, union

SPAN = st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda p: (p[0], p[0] + p[1]))
SPANS = st.lists(SPAN, max_size=9)


@given(SPANS)
def test_the_union_covers_the_same_unit_steps(spans):
    steps = {t for start, end in spans for t in range(start, end)}
    joined = union(spans)
    assert {t for start, end in joined for t in range(start, end)} == steps
    assert covered(spans) == len(steps)
    assert all(a[1] < b[0] for a, b in pairwise(joined))


@given(SPANS)
def test_lanes_hold_no_overlap_and_are_as_few_as_run_at_once(spans):
    found = lanes(spans)
    for lane in set(found):
        own = sorted(s for s, at in zip(spans, found, strict=True) if at == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(own))
    deepest = max((sum(s <= t < e for s, e in spans) for t in range(40)), default=0)
    assert len(set(found)) == deepest


@st.composite
def dags(draw):
    n = draw(st.integers(0, 7))
    deps = [tuple(sorted(draw(st.sets(st.integers(0, i - 1))))) if i else () for i in range(n)]
    return [draw(st.integers(0, 5)) for _ in range(n)], deps


@given(dags())
def test_the_critical_path_is_a_longest_chain(dag):
    durations, deps = dag
    chains = [[i] for i in range(len(deps))]
    for chain in chains:  # grows while it is walked: all chains, by their ends
        chains += [[*chain, i] for i, own in enumerate(deps) if chain[-1] in own]
    path = longest_path(durations, deps)
    assert all(a in deps[b] for a, b in pairwise(path))
    assert sum(durations[i] for i in path) == max((sum(durations[i] for i in c) for c in chains), default=0)


def test_what_a_timeline_says():
    # 0 on its own; 1 and 2 side by side; a pause of 2; 3 waits for both
    t = Timeline(((0, 4), (5, 9), (5, 12), (14, 20)), ((), (0,), (0,), (1, 2)))
    assert (t.span_s, t.busy_s, t.idle_s) == (20, 17, 3)
    assert t.idle_gaps == (1, 2)
    assert t.critical_path == (0, 2, 3)
    assert t.critical_s == 17
    assert t.boundary_gaps == (1, 2)
    assert t.concurrency == pytest.approx(21 / 20)
    empty = Timeline((), ())
    assert (empty.span_s, empty.idle_s, empty.concurrency, empty.critical_path) == (0, 0, 0, ())


def stamped_rows() -> tuple[np.ndarray, tuple[int, ...]]:
    """Eight blocks per launch of `diamond`, on two processors; launches 1 and 2 overlap."""
    zero = 10**18 + 5  # beyond what a float holds exactly
    plan, rows = diamond(), []
    for start, launch in zip((0, 100, 132, 300), plan.launches, strict=True):
        for block in range(launch.grid[0]):
            row = np.zeros(STAMPS_PER_BLOCK, np.uint64)
            begin = zero + start + 8 * (block // 2)
            row[[ARRIVAL, START, END, PROCESSOR]] = begin - 3, begin, begin + 6, 40 + block % 2
            rows.append(row)
    return np.array(rows), (0, 8, 16, 24)


def test_stamps_become_spans():
    stamps, first = stamped_rows()
    spans = launch_spans(diamond(), stamps, first)
    assert [round(1e9 * x.start_s) for x in spans] == [3, 103, 135, 303]
    assert [round(1e9 * x.seconds) for x in spans] == [30] * 4
    assert [round(1e9 * (x.start_s - x.arrived_s)) for x in spans] == [3] * 4
    assert [(x.index, x.stream, x.deps, x.blocks) for x in spans] == [
        (0, 0, (), 8), (1, 0, (0,), 8), (2, 1, (0,), 8), (3, 0, (1, 2), 8),
    ]  # fmt: skip
    for x in spans:
        assert [p.processor for p in x.processors] == [40, 41]
        assert [p.blocks for p in x.processors] == [4, 4]
        # four blocks of 6 ns one after the other, 2 ns between them
        assert [round(1e9 * p.busy_s) for p in x.processors] == [24, 24]
        assert [round(1e9 * (p.end_s - p.start_s)) for p in x.processors] == [30, 30]
    assert {p: round(1e9 * s) for p, s in processor_busy_s(stamps).items()} == {40: 96, 41: 96}
    assert span_ns(stamps) == 330
    assert resolution_ns(stamps) == 1


def test_blocks_side_by_side_on_one_processor_count_once():
    spans = [(100, 120), (105, 108), (115, 118), (125, 130), (126, 128)]
    stamps = np.zeros((len(spans), STAMPS_PER_BLOCK), np.uint64)
    stamps[:, [ARRIVAL, START, END]] = [(start, start, end) for start, end in spans]
    assert {p: round(1e9 * s) for p, s in processor_busy_s(stamps).items()} == {0: 25}
    assert resolution_ns(stamps) == 1


def test_no_stamps_are_no_time():
    none = np.zeros((0, STAMPS_PER_BLOCK), np.uint64)
    assert (span_ns(none), resolution_ns(none), processor_busy_s(none)) == (0, 0, {})
