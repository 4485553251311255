"""Counts of the search space and completeness of its chunks."""

from math import prod

import numpy as np
import pytest

from tilewright.costmodel import conv_problem, load_hardware
from tilewright.costmodel.kernels.enumeration import (
    Rule,
    channel_steps,
    count_contract,
    cover_sizes,
    enumerate_contract,
    tile_pairs,
)
from tilewright.costmodel.kernels.parameters import CONTRACT_COLUMNS, contract_space

LAYER = conv_problem(1, 64, 56, 56, 64, 3, 3, pad=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("rule", "pairs"), [("multiples", [127, 109]), ("divisors", [28, 20]), ("minimal_cover", [44, 41])]
)
def test_pairs_per_dimension(rule: Rule, pairs: list[int]) -> None:
    assert [len(tile_pairs(extent, rule)) for extent in (64, 56)] == pairs


def test_space_sizes_of_the_published_layer() -> None:
    assert count_contract(LAYER, "multiples", c_steps="all") == 96_568_768
    assert count_contract(LAYER, "multiples") == 10_562_209
    assert count_contract(LAYER, "divisors") == 78_400
    assert count_contract(LAYER, "minimal_cover") == 517_748


def test_cover_sizes_match_their_definition() -> None:
    for count in range(1, 130):
        groups = [-(-count // size) for size in range(1, count + 1)]
        expected = [size for size in range(1, count + 1) if groups[size - 1] not in groups[: size - 1]]
        assert cover_sizes(count) == expected


def test_channel_steps() -> None:
    assert channel_steps(12, "divisors") == [1, 2, 3, 4, 6, 12]
    assert channel_steps(3, "all") == [1, 2, 3]


@pytest.mark.parametrize("device", ["H100", "cpu-opencl"])
def test_chunks_hold_every_point_once(device: str) -> None:
    problem = conv_problem(2, 4, 5, 6, 6, 3, 3)
    hardware = load_hardware(device)
    chunks = list(enumerate_contract(problem, hardware, "minimal_cover", stages=(1, 2), chunk=1000))
    assert max(map(len, chunks)) <= 1000
    columns = [np.concatenate([getattr(c, name) for c in chunks]) for name in CONTRACT_COLUMNS]
    points = np.stack(columns, axis=1)
    assert len(points) == count_contract(problem, "minimal_cover", variants=2)
    assert len(np.unique(points, axis=0)) == len(points)


def test_minimal_cover_exceeds_the_extent_by_less_than_a_thread_tile() -> None:
    for thread, block in tile_pairs(49, "minimal_cover"):
        assert block % thread == 0
        assert block < 49 + thread


def test_scalar_and_array_forms_agree() -> None:
    space = next(enumerate_contract(LAYER, load_hardware("H100"), "divisors"))
    for index in (0, 777, 50_000):
        point = space.at(index)
        assert point.threads == space.threads[index]
        assert prod(point.thread.values()) == space.accumulators[index]
        assert contract_space([point]).at(0) == point
