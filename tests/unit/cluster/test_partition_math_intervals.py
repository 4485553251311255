"""Intervals, links and counts against the printed tables, and rows between layers against sets."""

import random
from fractions import Fraction

import pytest

from tilewright.costmodel.partition.intervals import (
    count_partitions,
    free_space,
    interval_space,
    partitions,
    threshold_sizes,
)
from tilewright.costmodel.partition.naive import cropped_rows, fetched_rows
from tilewright.ir import InputError

TABLE_4_1 = {
    2: (323, 1126, 2413, 4184),
    4: (518805, 23449191, 169891492, 971173738),
    8: (5925375770, 21542966041885, 3545920785120256, 147135898705238815),
    16: (
        113325906305557249,
        1326773729239590393082,
        430123660781107128199387516,
        49405056722516514586451303713,
    ),
}


def test_unequal_speeds_as_printed():
    sizes = threshold_sizes(8, [1, 3, 1], 20)
    assert sizes == [range(1, 3), range(4, 6), range(1, 3)]
    space = interval_space(8, sizes)
    assert [sorted(node.intervals()) for node in space.nodes] == [
        [(0, 1), (0, 2)],
        [(1, 5), (1, 6), (2, 6), (2, 7), (3, 7)],
        [(6, 8), (7, 8)],
    ]
    assert count_partitions(space) == 5
    assert count_partitions(interval_space(8, sizes, overlap=False)) == 3


@pytest.mark.parametrize(("threshold", "lower"), [(20, "floor"), (Fraction(100, 3), "ceil")])
def test_tables_of_three_equal_devices(threshold, lower):
    sizes = threshold_sizes(9, [1, 1, 1], threshold, lower=lower)
    assert sizes == [range(2, 5)] * 3
    space = interval_space(9, sizes)
    assert [sorted(node.intervals()) for node in space.nodes] == [
        [(0, 2), (0, 3), (0, 4)],
        [(s, s + p) for s in range(1, 6) for p in (2, 3, 4) if s + p < 9],
        [(5, 9), (6, 9), (7, 9)],
    ]
    assert count_partitions(space) == len(list(partitions(space))) == 32
    assert count_partitions(interval_space(9, sizes, overlap=False)) == 7


@pytest.mark.parametrize("devices", TABLE_4_1)
def test_counts_of_table_4_1(devices):
    counts = [
        count_partitions(interval_space(448, threshold_sizes(448, [1] * devices, t))) for t in (5, 10, 15, 20)
    ]
    assert tuple(counts) == TABLE_4_1[devices]


def test_vertices_of_the_largest_case():
    assert interval_space(448, threshold_sizes(448, [1] * 16, 20)).vertices == 14796


def test_counts_are_those_of_enumeration():
    draws = random.Random(5)
    for _ in range(80):
        output, devices, overlap = draws.randint(1, 9), draws.randint(1, 4), draws.random() < 0.5
        speeds = [draws.randint(1, 3) for _ in range(devices)]
        sizes = threshold_sizes(output, speeds, draws.choice([0, 30, 70, 150]), lower="floor")
        space = interval_space(output, sizes, overlap=overlap)
        if draws.random() < 0.5:
            space = free_space(output, [draws.randint(0, output) for _ in speeds], overlap=overlap)
        found = list(partitions(space))
        assert count_partitions(space) == len(found) == len(set(found))
        for intervals in found:
            assert {row for s, e in intervals for row in range(s, e)} == set(range(output))


def test_fetched_and_cropped_rows_are_those_of_row_sets():
    draws = random.Random(2)
    for _ in range(400):
        own, required = (tuple(sorted(draws.choices(range(8), k=2))) for _ in range(2))
        have, need = set(range(*own)), set(range(*required))
        assert (fetched_rows(own, required), cropped_rows(own, required)) == (
            len(need - have),
            len(have - need),
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [1], 5), "output of at least 1 row"),
        ((4, [], 5), "at least 1 device"),
        ((4, [1, 1], -1), "threshold of at least 0"),
        ((4, [1, 1], float("nan")), "threshold of at least 0"),
    ],
)
def test_bad_spaces_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        threshold_sizes(*arguments)
