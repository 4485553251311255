"""Directions per layer and grids: against every choice, and exchanged volumes of known cases."""

import itertools
import random

import pytest

from tilewright.costmodel.partition.chain import Device, Link
from tilewright.costmodel.partition.directions import (
    MAKES,
    Direction,
    Held,
    SpatialLayer,
    Window,
    layer_seconds,
    least_directions,
    least_path,
    reshard_seconds,
)
from tilewright.costmodel.partition.grids import (
    GridProblem,
    alternating_grid,
    best_grid,
    guillotine_seconds,
)
from tilewright.costmodel.partition.naive import split_extent
from tilewright.ir import InputError

FOUR = (Device(1.0),) * 4


def conv(channels=(8, 8), rows=16, kernel=3, **more):
    c_in, c_out = channels
    window = Window(kernel, 1, 1, kernel // 2)
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
            weight_bytes=draws.randint(0, 400),
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
        memory = draws.choice([1500, 4000, float("inf")])
        devices = tuple(Device(draws.choice([1, 2]), memory) for _ in range(draws.randint(1, 4)))
        link = Link(draws.choice([0.01, 1, 100]), draws.choice([0, 10]))
        best = min(
            seconds_of(layers, choice, devices, link)
            for choice in itertools.product(Direction, repeat=len(layers))
        )
        if best == float("inf"):
            with pytest.raises(InputError, match="every layer in some direction"):
                least_directions(layers, devices, link)
            continue
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

    assert seconds(Held.WHOLE, Direction.H) == 0
    assert seconds(Held.CHANNELS, Direction.C_IN) == 0
    assert seconds(Held.H, Direction.H) == 2 * row
    assert seconds(Held.H, Direction.REPLICATE) == seconds(Held.H, None, None) == size * 3 / 4
    assert seconds(Held.BATCH, Direction.C_IN) == seconds(Held.CHANNELS, Direction.C_IN) + size / 4
    assert seconds(Held.CHANNELS, Direction.H) == 6 / 16 * 3 / 4 * size
    assert seconds(Held.SUMMANDS, Direction.C_OUT) == 2 * 3 / 4 * size
    assert seconds(Held.SUMMANDS, Direction.C_IN) == 3 / 4 * size
    assert reshard_seconds(layer, Held.H, layer, Direction.W, FOUR[:1], link) == 0


def test_seconds_and_memory_of_directions():
    layer = conv((8, 4), weight_bytes=1000)
    assert layer_seconds(layer, Direction.REPLICATE, FOUR) == 2 * layer.macs
    assert layer_seconds(layer, Direction.C_OUT, FOUR) == 2 * layer.macs / 4
    assert layer_seconds(layer, Direction.BATCH, FOUR) == 2 * layer.macs / 2
    read, made = layer.input_bytes, layer.output_bytes
    held = {
        Direction.H: 1000 + read / 4 + made / 4,
        Direction.BATCH: 1000 + read / 2 + made / 2,
        Direction.C_OUT: 250 + read + made / 4,
        Direction.C_IN: 250 + read / 4 + made,
        Direction.REPLICATE: 1000 + read + made,
    }
    for direction, room in held.items():
        for memory, fits in ((room, True), (room - 1, False)):
            found = layer_seconds(layer, direction, (Device(1.0, memory),) * 4)
            assert (found < float("inf")) is fits
    assert layer_seconds(conv(per_channel=True), Direction.C_IN, FOUR) == float("inf")


def random_grid(draws, rows, columns):
    return GridProblem(
        draws.randint(2, 5),
        draws.randint(2, 5),
        tuple(Device(draws.choice([1, 2, 4])) for _ in range(rows * columns)),
        Link(draws.choice([0.5, 5]), draws.choice([0, 0.5])),
        h=Window(3, 1, 1, 1),
        w=Window(draws.choice([1, 3]), 1, 1, 0),
    )


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
    window = Window(3, 1, 1, 1)
    problem = GridProblem(4, 4, (Device(2.0),) * 4, Link(2.0, 0.25), macs=3.0, bytes=4.0, h=window, w=window)
    assert problem.seconds(0, (0, 2), (0, 2)) == 2 * 3 * 4 / 2 + (9 - 4) * 4 / 2 + 2 * 0.25
    assert problem.seconds(0, (1, 1), (0, 2)) == 0
    small = GridProblem(4, 4, (Device(2.0, 35.0),) * 4, Link(2.0), bytes=4.0, h=window, w=window)
    with pytest.raises(InputError, match="memories that hold some grid of 4 devices"):
        best_grid(small)
    with pytest.raises(InputError, match="expected a grid of 4 devices, got 3 x 1"):
        alternating_grid(problem, 3, 1)
    with pytest.raises(InputError, match="window strides of 1"):
        GridProblem(4, 4, FOUR, Link(1.0), h=Window(3, 2))
