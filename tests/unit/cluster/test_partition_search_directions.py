"""Directions per layer and grids: against every choice, and exchanged volumes of known cases."""

import itertools
import random
from functools import cache

import pytest

from tilewright.costmodel.links import Link
from tilewright.costmodel.partition.directions import (
    CUTS,
    MAKES,
    SpatialLayer,
    layer_seconds,
    least_directions,
    least_path,
    reshard_seconds,
)
from tilewright.costmodel.partition.grids import (
    GridProblem,
    alternating_grid,
    best_grid,
)
from tilewright.costmodel.partition.naive import split_extent
from tilewright.ir import InputError
from tilewright.ir.windows import RowWindow

FOUR = (1.0,) * 4


def conv(channels=(8, 8), rows=16, kernel=3, **more):
    c_in, c_out = channels
    window = RowWindow(kernel, 1, 1, kernel // 2)
    macs = c_in * c_out * rows * rows * kernel**2
    return SpatialLayer(2, c_in, rows, rows, c_out, rows, rows, macs, window, window, **more)


def random_layers(draws):
    channels = [draws.choice([1, 4, 8]) for _ in range(5)]
    rows = draws.choice([4, 8])
    return [
        conv(
            pair,
            rows,
            draws.choice([1, 3, 5]),
            per_channel=pair[0] == pair[1],
        )
        for pair in itertools.pairwise(channels[: draws.randint(2, 4)])
    ]


def seconds_of(layers, directions, devices, link):
    total = sum(layer_seconds(layer, d, devices) for layer, d in zip(layers, directions, strict=True))
    after = [*zip(layers[1:], directions[1:], strict=True), (None, None)]
    for layer, direction, (following, its) in zip(layers, directions, after, strict=True):
        total += reshard_seconds(layer, MAKES[direction], following, its, devices, link)
    return total


def test_directions_are_the_best_of_all():
    draws = random.Random(21)
    chosen = set()
    for _ in range(25):
        layers = random_layers(draws)
        devices = tuple(draws.choice([1, 2]) for _ in range(draws.randint(1, 4)))
        link = Link(draws.choice([0.01, 1, 100]), draws.choice([0, 10]))
        best = min(
            seconds_of(layers, choice, devices, link)
            for choice in itertools.product(CUTS, repeat=len(layers))
        )
        found = least_directions(layers, devices, link)
        assert found.seconds == pytest.approx(best)
        assert seconds_of(layers, found.directions, devices, link) == pytest.approx(best)
        chosen.update(found.directions)
    assert len(chosen) >= 4


def test_paths_are_the_best_of_all():
    draws = random.Random(22)
    for _ in range(30):
        widths = [draws.randint(1, 4) for _ in range(draws.randint(1, 5))]
        costs = [[draws.randint(0, 9) for _ in range(width)] for width in widths]
        between = {
            (n, i, j): draws.choice([0, 1, 7, float("inf")])
            for n in range(5)
            for i in range(4)
            for j in range(4)
        }
        last = [draws.randint(0, 9) for _ in range(widths[-1])]
        values = {
            path: sum(c[i] for c, i in zip(costs, path, strict=True))
            + sum(between[n, *pair] for n, pair in enumerate(itertools.pairwise(path)))
            + last[path[-1]]
            for path in itertools.product(*map(range, widths))
        }
        best = min(values.values())
        if best < float("inf"):
            path, seconds = least_path(costs, lambda *key, table=between: table[key], last)
            assert seconds == values[tuple(path)] == best


def test_exchanged_volumes():
    layer, link = conv(), Link(1.0)
    size = layer.output_bytes
    row = size / 16

    def seconds(held, direction, after=layer):
        return reshard_seconds(layer, held, after, direction, FOUR, link)

    assert seconds("whole", "h") == 0
    assert seconds("channels", "inner") == 0
    assert seconds("h", "h") == 2 * row
    assert seconds("h", "whole") == seconds("h", None, None) == size * 3 / 4
    assert seconds("batch", "inner") == seconds("channels", "inner") + size / 4
    assert seconds("channels", "h") == 6 / 16 * 3 / 4 * size
    assert seconds("summands", "channels") == 2 * 3 / 4 * size
    assert seconds("summands", "inner") == 3 / 4 * size
    assert reshard_seconds(layer, "h", layer, "w", FOUR[:1], link) == 0


def test_seconds_of_directions():
    layer = conv((8, 4))
    assert layer_seconds(layer, "whole", FOUR) == 2 * layer.macs
    assert layer_seconds(layer, "channels", FOUR) == 2 * layer.macs / 4
    assert layer_seconds(layer, "batch", FOUR) == 2 * layer.macs / 2
    inner = conv(per_channel=True)
    assert layer_seconds(inner, "inner", FOUR) == float("inf")
    with pytest.raises(InputError, match="a direction that every layer allows"):
        least_directions([inner], FOUR, Link(1.0), ["inner"])


def random_grid(draws, rows, columns):
    return GridProblem(
        draws.randint(2, 5),
        draws.randint(2, 5),
        tuple(draws.choice([1, 2, 4]) for _ in range(rows * columns)),
        Link(draws.choice([0.5, 5]), draws.choice([0, 0.5])),
        h=RowWindow(3, 1, 1, 1),
        w=RowWindow(draws.choice([1, 3]), 1, 1, 0),
    )


def guillotine_seconds(problem: GridProblem) -> float:
    """The least seconds over all guillotine cuts that keep the devices' order, exactly; for small cases.

    Every grid is one, so this bounds them from below: O(height^2 width^2 devices^2 (height + width)).
    """

    @cache
    def least(r0: int, r1: int, c0: int, c1: int, first: int, stop: int) -> float:
        if stop - first == 1:
            return problem.seconds(first, (r0, r1), (c0, c1))
        best = float("inf")
        for split in range(first + 1, stop):
            for r in range(r0, r1 + 1):
                above, below = least(r0, r, c0, c1, first, split), least(r, r1, c0, c1, split, stop)
                best = min(best, max(above, below))
            for c in range(c0, c1 + 1):
                left, right = least(r0, r1, c0, c, first, split), least(r0, r1, c, c1, split, stop)
                best = min(best, max(left, right))
        return best

    return least(0, problem.height, 0, problem.width, 0, len(problem.flops_per_s))


def test_grids_lie_between_guillotine_cuts_and_the_even_grid():
    draws = random.Random(23)
    improved = 0
    for rows, columns in [(2, 2), (1, 3), (3, 1), (2, 1), (1, 1)] * 3:
        problem = random_grid(draws, rows, columns)
        even = problem.value(split_extent(problem.height, rows), split_extent(problem.width, columns))
        found = alternating_grid(problem, rows, columns)
        assert found.seconds == problem.value(found.rows, found.columns)
        cuts = [
            [
                list(itertools.pairwise([0, *inner, extent]))
                for inner in itertools.combinations_with_replacement(range(extent + 1), parts - 1)
            ]
            for extent, parts in ((problem.height, rows), (problem.width, columns))
        ]
        best = min(problem.value(r, c) for r, c in itertools.product(*cuts))
        assert guillotine_seconds(problem) <= best <= found.seconds <= even
        if 1 in (rows, columns):
            assert found.seconds == best
        improved += found.seconds < even
        assert best_grid(problem).seconds <= found.seconds
    assert improved > 3


def test_parts_of_a_grid_by_hand():
    window = RowWindow(3, 1, 1, 1)
    problem = GridProblem(4, 4, (2.0,) * 4, Link(2.0, 0.25), macs=3.0, bytes=4.0, h=window, w=window)
    assert problem.seconds(0, (0, 2), (0, 2)) == 2 * 3 * 4 / 2 + (9 - 4) * 4 / 2 + 2 * 0.25
    assert problem.seconds(0, (1, 1), (0, 2)) == 0
    with pytest.raises(InputError, match="expected a grid of 4 devices, got 3 x 1"):
        alternating_grid(problem, 3, 1)
    with pytest.raises(InputError, match="window strides of 1"):
        GridProblem(4, 4, FOUR, Link(1.0), h=RowWindow(3, 2))
