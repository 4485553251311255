"""Seconds of one layer, fused blocks and cuts of a chain: exact against every choice, row by row."""

import itertools
import random

import numpy as np
import pytest

from tilewright.costmodel.partition.chain import ChainLayer, Device, Link
from tilewright.costmodel.partition.fused_blocks import (
    BlockProblem,
    input_of_block,
    least_block,
    least_blocks,
    reshard_seconds,
)
from tilewright.costmodel.partition.intervals import free_space, partitions
from tilewright.costmodel.partition.naive import output_extent
from tilewright.costmodel.partition.time_objective import LayerTime, least_time, least_total_time
from tilewright.ir import InputError


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
                kernel,
                stride,
                dilation,
                pad,
                macs_per_row=draws.choice([1, 2, 10]),
                input_row_bytes=draws.randint(1, 3),
                output_row_bytes=draws.randint(1, 3),
                weight_bytes=draws.randint(0, 5),
            )
        )
        rows = made
    return tuple(layers)


def random_devices(draws, memory):
    return tuple(
        Device(draws.choice([1, 2, 3.5]), draws.choice([memory, float("inf")]))
        for _ in range(draws.randint(1, 3))
    )


def rows_needed(layer, rows):
    """Input rows between the first and the last that the windows of `rows` touch, one by one."""
    span = range((layer.kernel - 1) * layer.dilation + 1)
    touched = {r * layer.stride - layer.pad_before + k for r in rows for k in span}
    return {r for r in range(layer.input_rows) if touched and min(touched) <= r <= max(touched)}


def seconds_of_block(problem, first, stop, device, interval, owned):
    rows, seconds, held = set(range(*interval)), 0.0, 0.0
    layers = problem.layers[first:stop]
    weights = sum(layer.weight_bytes for layer in layers) if rows else 0
    for layer in reversed(layers):
        seconds += 2 * layer.macs_per_row * len(rows) / problem.devices[device].flops_per_s
        made, rows = len(rows), rows_needed(layer, rows)
        held = max(held, made * layer.output_row_bytes + len(rows) * layer.input_row_bytes)
    if held + weights > problem.devices[device].memory_bytes:
        return float("inf")
    if owned is not None and rows:
        have = set(range(*owned[device]))
        lacking = rows - have
        messages = (min(rows) < min(have)) + (max(rows) > max(have)) if have else 1
        size = len(lacking) * layers[0].input_row_bytes
        seconds += messages * problem.link.latency_s + size / problem.link.bytes_per_s
    return seconds


def test_blocks_are_the_best_of_all_boundaries():
    draws = random.Random(3)
    impossible = 0
    for _ in range(120):
        layers = random_chain(draws, draws.randint(4, 9), draws.randint(1, 3))
        devices = random_devices(draws, draws.randint(10, 40))
        problem = BlockProblem(
            layers, devices, Link(draws.choice([0.5, 4]), 0.25), draws.choice(["slowest", "sum"])
        )
        owned = None
        if draws.random() < 0.5:
            cuts = sorted(draws.choices(range(layers[0].input_rows + 1), k=len(devices) - 1))
            owned = list(itertools.pairwise([0, *cuts, layers[0].input_rows]))
        total = max if problem.total == "slowest" else sum
        best = min(
            total(
                seconds_of_block(problem, 0, len(layers), n, interval, owned)
                for n, interval in enumerate(intervals)
            )
            for intervals in partitions(free_space(layers[-1].output_rows, [99] * len(devices)))
        )
        if best == float("inf"):
            impossible += 1
            with pytest.raises(InputError, match="expected sizes and memory"):
                least_block(problem, 0, len(layers), owned)
            continue
        found = least_block(problem, 0, len(layers), owned)
        assert found.seconds == pytest.approx(best)
        assert total(
            seconds_of_block(problem, 0, len(layers), n, interval, owned)
            for n, interval in enumerate(found.intervals)
        ) == pytest.approx(best)
    assert 0 < impossible < 60


def test_cuts_are_the_best_of_all_cuts():
    draws = random.Random(4)
    cut = 0
    for _ in range(30):
        layers = random_chain(draws, draws.randint(8, 16), 4)
        devices = tuple(Device(draws.choice([1, 3])) for _ in range(2))
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
    conv = ChainLayer(224, 224, 3, 1, 1, 1)
    assert input_of_block([conv] * 3, (0, 112)) == (0, 115)
    assert input_of_block([conv] * 3, (112, 224)) == (109, 224)
    problem = BlockProblem((conv,) * 3, (Device(1.0),) * 2, Link(1.0))
    assert least_block(problem, 0, 3).seconds == 2 * (112 + 113 + 114)


def test_seconds_of_a_layer():
    devices = (Device(2.0), Device(4.0, memory_bytes=30), Device(1.0, measured_s=((2, 3.0), (4, 4.0))))
    layer = LayerTime(devices, Link(2.0, 0.5), 3.0, 4.0, ((0, 5), (3, 9), (8, 12)))
    assert layer.device_seconds([(0, 4), (4, 8), (8, 12)]) == pytest.approx(
        [12 + 0.5 + 2, 6 + 2 * 0.5 + 4, 4]
    )
    assert layer.device_seconds([(0, 3), (0, 8), (12, 12)])[1:] == [float("inf"), 0.5 + 8]
    assert [float(devices[2].seconds(np.array(r), 1.0)) for r in (0, 1, 3, 8)] == [0, 1.5, 3.5, 8]
    overlapped = LayerTime(devices, Link(2.0, 0.5), 3.0, 4.0, layer.required, overlap=True)
    assert overlapped.device_seconds([(0, 4), (4, 8), (8, 12)]) == pytest.approx([12, 6, 4])


def test_fastest_partition_is_the_best_of_all():
    draws = random.Random(6)
    for _ in range(80):
        rows, devices = draws.randint(3, 6), random_devices(draws, 45)
        starts = [draws.randint(0, rows) for _ in devices]
        layer = LayerTime(
            devices,
            Link(draws.choice([0.5, 3]), draws.choice([0, 1])),
            draws.choice([1, 5]),
            draws.choice([1, 8]),
            tuple((s, draws.randint(s, rows)) for s in starts),
            overlap=draws.random() < 0.5,
            fixed_bytes=draws.choice([0, 10]),
        )
        space = free_space(rows, [rows] * len(devices), overlap=draws.random() < 0.5)
        every = [layer.device_seconds(p) for p in partitions(space)]
        for search, total in ((least_time, max), (least_total_time, sum)):
            best = min(map(total, every))
            if best == float("inf"):
                with pytest.raises(InputError):
                    search(space, layer)
            else:
                assert search(space, layer).value == pytest.approx(best)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device(0.0), "positive number of FLOP/s"),
        (lambda: Device(1.0, -1), "memory of at least 0 bytes"),
        (lambda: Device(1.0, measured_s=((3, 1.0), (2, 1.0))), "ascending rows above 0"),
        (lambda: Link(0.0), "positive bytes per second"),
        (lambda: BlockProblem((), (Device(),), Link(1)), "at least 1 layer"),
        (lambda: BlockProblem((ChainLayer(4, 4), ChainLayer(5, 5)), (Device(),), Link(1)), "read the 4 rows"),
        (lambda: BlockProblem((ChainLayer(4, 4),), (), Link(1)), "at least 1 device"),
    ],
)
def test_bad_problems_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_chain_that_fits_nowhere_is_refused():
    layers = (ChainLayer(4, 4, weight_bytes=9), ChainLayer(4, 4, weight_bytes=90))
    with pytest.raises(InputError, match="memories that hold every layer"):
        least_blocks(BlockProblem(layers, (Device(memory_bytes=50),) * 2, Link(1.0)))
    with pytest.raises(InputError, match="blocks of at least 1 layer"):
        least_blocks(BlockProblem(layers, (Device(),), Link(1.0)), longest=0)
