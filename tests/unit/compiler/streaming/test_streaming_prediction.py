"""The time model of streamed runs: exact on paper examples, bounds for any, and the better schedule."""

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tilewright.streaming import calibration
from tilewright.streaming.parts.schedule import SCHEDULES, StepCosts, Visit, predict, visits

PR, AR = SCHEDULES["pr"], SCHEDULES["ar"]


def costs(steps, storage, copy, compute, move=0.0):
    return StepCosts(*((part,) * steps for part in (storage, copy, compute, move)))


def total(schedule, steps, batches, parts, *, staged=True):
    order = list(visits(schedule, steps, batches))
    return predict(schedule, order, batches, parts, staged=staged)


def test_orders_of_both_schedules():
    assert list(visits(PR, 2, 3)) == [Visit(0, (0, 1, 2)), Visit(1, (0, 1, 2))]
    assert list(visits(AR, 2, 2)) == [Visit(0, (0,)), Visit(1, (0,)), Visit(0, (1,)), Visit(1, (1,))]


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ((4.0, 1.0, 2.0), 10 * 4 + 1 + 2),  # storage sets the pace; the last step drains
        ((2.0, 1.0, 4.0), 2 + 1 + 10 * 4),  # compute does, behind the first fetch
        ((2.0, 5.0, 1.0), 2 + 10 * 5 + 1),  # copies do
    ],
)
def test_alike_steps_take_the_slowest_part_each_and_the_fill(parts, wanted):
    assert total(PR, 10, 1, costs(10, *parts)).total_s == pytest.approx(wanted)


def test_reads_into_the_slots_themselves_wait_for_kernels():
    """Two steps of three: the third read starts when the first kernel is done."""
    found = total(PR, 3, 1, costs(3, 2.0, 0.0, 3.0), staged=False)
    assert found.total_s == pytest.approx(2 + 3 * 3)
    found = total(PR, 3, 1, costs(3, 3.0, 0.0, 2.0), staged=False)
    assert found.total_s == pytest.approx(3 * 3 + 2)
    found = total(PR, 3, 1, StepCosts((1, 1, 1), (0, 0, 0), (5, 1, 1), (0, 0, 0)), staged=False)
    assert found.total_s == pytest.approx(1 + 5 + 1 + 1)


def test_sums_of_parts():
    found = total(AR, 3, 2, costs(3, 2.0, 1.0, 3.0, 0.5))
    assert (found.storage_s, found.copy_s, found.compute_s, found.fill_s) == (12, 6, 21, 3)
    assert found.slower_s == 21


def test_fetching_once_wins_where_storage_is_slow_and_loses_where_values_move():
    slow = costs(8, 5.0, 0.0, 1.0)
    assert total(PR, 8, 4, slow).total_s < total(AR, 8, 4, slow).total_s
    moving, staying = costs(8, 0.1, 0.0, 1.0, move=3.0), costs(8, 0.1, 0.0, 1.0)
    assert total(AR, 8, 4, staying).total_s < total(PR, 8, 4, moving).total_s


seconds = st.floats(0, 10, allow_subnormal=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=6), st.integers(1, 3), st.booleans()
)
def test_no_run_is_faster_than_its_slowest_part_or_slower_than_all_in_a_row(rows, batches, staged):
    parts = StepCosts(*(tuple(column) for column in zip(*rows, strict=True)), (0.0,) * len(rows))
    for schedule in (PR, AR):
        found = total(schedule, len(rows), batches, parts, staged=staged)
        everything = found.storage_s + found.copy_s + found.compute_s
        assert found.slower_s - 1e-9 <= found.total_s <= everything + 1e-9
        more = StepCosts(
            *(tuple(x + 0.5 for x in column) for column in zip(*rows, strict=True)), parts.move_s
        )
        assert total(schedule, len(rows), batches, more, staged=staged).total_s >= found.total_s


@pytest.mark.parametrize(
    ("rates", "read", "wanted"),
    [
        ([1.0, 1.02], 2, 1.02),  # steady at once
        ([1.0, 1.4, 1.7, 1.69, 5.0], 4, 1.69),  # a cache fills
        ([1.0, 2.0, 1.0, 2.0, 1.0, 7.0], 5, 1.0),  # never steady: not for ever
    ],
)
def test_the_store_is_read_until_its_rate_is_steady(monkeypatch, rates, read, wanted):
    asked = []

    def read_for(reader, steps, buffers, seconds):
        asked.append(seconds)
        return SimpleNamespace(read_bytes_per_s=rates[len(asked) - 1])

    monkeypatch.setattr(calibration, "read_for", read_for)
    assert calibration._steady_rate(None, range(3), None, 4) == wanted
    assert len(asked) == read
    # a pass takes as long as the last rate says, within limits
    assert asked[0] == calibration.READING_S
    assert asked[1] == 4.0
