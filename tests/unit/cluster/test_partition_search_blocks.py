"""Seconds of fused blocks and cuts of a chain: exact against every choice, row by row."""

import itertools
import random

import pytest

from tilewright.costmodel.links import Link
from tilewright.costmodel.partition.fused_blocks import (
    BlockProblem,
    ChainLayer,
    input_of_block,
    least_block,
    least_blocks,
    reshard_seconds,
)
from tilewright.costmodel.partition.intervals import free_space, partitions
from tilewright.costmodel.partition.naive import output_extent
from tilewright.ir import InputError
from tilewright.ir.windows import RowWindow


def random_chain(draws, rows, count):
    layers = []
    for _ in range(count):
        kernel, stride, dilation = draws.randint(1, 3), draws.randint(1, 2), draws.randint(1, 2)
        pad = draws.randint(0, 2)
        if rows + 2 * pad < (kernel - 1) * dilation + 1:
            kernel = 1
        made = output_extent(rows, kernel, stride, dilation, (pad, pad))
        layers.append(
            ChainLayer(
                rows,
                made,
                RowWindow(kernel, stride, dilation, pad),
                macs_per_row=draws.choice([1, 2, 10]),
                input_row_bytes=draws.randint(1, 3),
            )
        )
        rows = made
    return tuple(layers)


def rows_needed(layer, rows):
    """Input rows between the first and the last that the windows of `rows` touch, one by one."""
    w = layer.window
    span = range((w.kernel - 1) * w.dilation + 1)
    touched = {r * w.stride - w.pad_before + k for r in rows for k in span}
    return {r for r in range(layer.input_rows) if touched and min(touched) <= r <= max(touched)}


def seconds_of_block(problem, first, stop, device, interval):
    rows, seconds = set(range(*interval)), 0.0
    for layer in reversed(problem.layers[first:stop]):
        seconds += 2 * layer.macs_per_row * len(rows) / problem.flops_per_s[device]
        rows = rows_needed(layer, rows)
    return seconds


def seconds_of_fetching(problem, interval, owned):
    """Of the first layer alone, whose output rows are `interval`, with `owned` rows of its input there."""
    rows, have = rows_needed(problem.layers[0], range(*interval)), set(range(*owned))
    if not rows:
        return 0.0
    messages = (min(rows) < min(have)) + (max(rows) > max(have)) if have else 1
    size = len(rows - have) * problem.layers[0].input_row_bytes
    return messages * problem.link.latency_s + size / problem.link.bytes_per_s


def test_blocks_are_the_best_of_all_boundaries():
    draws = random.Random(3)
    for _ in range(120):
        layers = random_chain(draws, draws.randint(4, 9), draws.randint(1, 3))
        speeds = tuple(draws.choice([1, 2, 3.5]) for _ in range(draws.randint(1, 3)))
        problem = BlockProblem(layers, speeds, Link(draws.choice([0.5, 4]), 0.25))

        def slowest(intervals, problem=problem):
            stop = len(problem.layers)
            return max(seconds_of_block(problem, 0, stop, n, cut) for n, cut in enumerate(intervals))

        space = free_space(layers[-1].output_rows, [99] * len(speeds))
        best = least_block(problem, 0, len(layers))
        assert best.seconds == pytest.approx(min(map(slowest, partitions(space))))
        assert slowest(best.intervals) == pytest.approx(best.seconds)
        cuts = sorted(draws.choices(range(layers[0].input_rows + 1), k=len(speeds) - 1))
        owned = list(itertools.pairwise([0, *cuts, layers[0].input_rows]))
        rows = least_block(problem, 0, 1).intervals
        fetching = [seconds_of_fetching(problem, *pair) for pair in zip(rows, owned, strict=True)]
        assert reshard_seconds(problem, owned, 0, 1, rows) == pytest.approx(max(fetching))


def test_cuts_are_the_best_of_all_cuts():
    draws = random.Random(4)
    cut = 0
    for _ in range(30):
        layers = random_chain(draws, draws.randint(8, 16), 4)
        devices = tuple(draws.choice([1, 3]) for _ in range(2))
        problem = BlockProblem(layers, devices, Link(draws.choice([0.2, 1, 9]), draws.choice([0, 1])))
        best = float("inf")
        for size in range(4):
            for inner in itertools.combinations(range(1, 4), size):
                blocks = [least_block(problem, i, j) for i, j in itertools.pairwise([0, *inner, 4])]
                best = min(
                    best,
                    sum(b.seconds for b in blocks)
                    + sum(
                        reshard_seconds(problem, a.intervals, b.first, b.stop, b.intervals)
                        for a, b in itertools.pairwise(blocks)
                    ),
                )
        found = least_blocks(problem)
        assert found.seconds == pytest.approx(best)
        assert [b.first for b in found.blocks] == [0, *(b.stop for b in found.blocks[:-1])]
        cut += len(found.blocks) > 1
    assert 0 < cut < 30


def test_a_block_recomputes_its_halo():
    conv = ChainLayer(224, 224, RowWindow(3, 1, 1, 1))
    assert input_of_block([conv] * 3, (0, 112)) == (0, 115)
    assert input_of_block([conv] * 3, (112, 224)) == (109, 224)
    problem = BlockProblem((conv,) * 3, (1.0,) * 2, Link(1.0))
    assert least_block(problem, 0, 3).seconds == 2 * (112 + 113 + 114)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockProblem((ChainLayer(4, 4),), (0.0,), Link(1)), "positive speeds"),
        (lambda: Link(0.0), "positive bytes per second"),
        (lambda: BlockProblem((), (1.0,), Link(1)), "at least 1 layer"),
        (lambda: BlockProblem((ChainLayer(4, 4), ChainLayer(5, 5)), (1.0,), Link(1)), "read the 4 rows"),
        (lambda: BlockProblem((ChainLayer(4, 4),), (), Link(1)), "at least 1 device"),
    ],
)
def test_bad_problems_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_block_has_at_least_one_layer():
    problem = BlockProblem((ChainLayer(4, 4), ChainLayer(4, 4)), (1.0,), Link(1.0))
    with pytest.raises(InputError, match="blocks of at least 1 layer"):
        least_blocks(problem, longest=0)
