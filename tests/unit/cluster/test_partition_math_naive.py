"""The naive split: printed examples, and every slice of random windows computed apart equals the whole."""

import random

import numpy as np
import pytest

from tilewright.costmodel.partition.naive import output_extent, split_extent
from tilewright.ir import InputError
from tilewright.ir.windows import input_interval, window_rows


def convolve(x: np.ndarray, w: np.ndarray, stride: int, dilation: int, rows: int) -> np.ndarray:
    taps = np.arange(len(w)) * dilation
    return np.array([(x[i * stride + taps] * w).sum() for i in range(rows)])


def pad(x: np.ndarray, before: int, after: int) -> np.ndarray:
    return np.concatenate([np.zeros(before), x, np.zeros(after)])


def test_printed_sizes():
    assert split_extent(8, 3) == [(0, 3), (3, 6), (6, 8)]
    assert window_rows(3, 3, 2, 2) == 9
    assert split_extent(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("output", "devices", "window", "wanted"),
    [
        (112, 2, (224, 7, 2, 1, 3), [(0, 114, 3, 0), (109, 224, 0, 2)]),
        (112, 2, (224, 3, 2, 1, 1), [(0, 112, 1, 0), (111, 224, 0, 0)]),
        (224, 3, (224, 3, 1, 1, 1), [(0, 76, 1, 0), (74, 151, 0, 0), (149, 224, 0, 1)]),
    ],
)
def test_inputs_of_known_layers(output, devices, window, wanted):
    assert [input_interval(cut, *window) for cut in split_extent(output, devices)] == wanted


def test_every_slice_convolved_apart_is_the_whole():
    rng, draws = np.random.default_rng(0), random.Random(0)
    for _ in range(600):
        kernel, stride, dilation = draws.randint(1, 5), draws.randint(1, 4), draws.randint(1, 3)
        pads = (draws.randint(0, 4), draws.randint(0, 4))
        extent = draws.randint(max(1, (kernel - 1) * dilation + 1 - sum(pads)), 30)
        rows = output_extent(extent, kernel, stride, dilation, pads, ceil_mode=draws.random() < 0.3)
        x, w = rng.standard_normal(extent), rng.standard_normal(kernel)
        whole = convolve(pad(x, pads[0], pads[1] + stride), w, stride, dilation, rows)
        speeds = [draws.randint(1, 9) for _ in range(draws.randint(1, 6))]
        for start, end in split_extent(rows, speeds):
            piece = input_interval((start, end), extent, kernel, stride, dilation, pads[0])
            mine = pad(x[piece.start : piece.end], piece.pad_before, piece.pad_after)
            assert len(mine) == window_rows(end - start, kernel, stride, dilation)
            np.testing.assert_array_equal(convolve(mine, w, stride, dilation, end - start), whole[start:end])


def test_windows_inside_the_padding_read_nothing():
    assert input_interval((0, 1), 5, 1, 1, 1, 3) == (0, 0, 1, 0)
    assert input_interval((7, 9), 5, 1, 1, 1, 1) == (5, 5, 0, 2)
    assert input_interval((4, 4), 5, 3, 1, 1, 1) == (3, 3, 0, 0)


def test_speeds_weigh_the_split():
    assert split_extent(10, [1, 3, 1]) == [(0, 2), (2, 8), (8, 10)]
    assert split_extent(7, [0.5, 0.5]) == split_extent(7, 2)
    for draws in (random.Random(seed) for seed in range(60)):
        speeds = [draws.randint(1, 5) for _ in range(3)]
        extent = draws.randint(0, 12)
        sizes = [end - start for start, end in split_extent(extent, speeds)]
        best = min(
            max(a / speeds[0], b / speeds[1], (extent - a - b) / speeds[2])
            for a in range(extent + 1)
            for b in range(extent + 1 - a)
        )
        assert sum(sizes) == extent
        assert max(n / v for n, v in zip(sizes, speeds, strict=True)) == best


@pytest.mark.parametrize("devices", [0, -1, [], [1, 0], [1, -2], [1, float("nan")], [float("inf")]])
def test_bad_devices_are_refused(devices):
    with pytest.raises(InputError, match=r"expected (at least 1 device|positive speeds)"):
        split_extent(4, devices)


def test_bad_windows_are_refused():
    with pytest.raises(InputError, match="expected kernel, stride and dilation"):
        input_interval((0, 1), 4, 3, 0)
    with pytest.raises(InputError, match="expected an output interval"):
        input_interval((2, 1), 4, 3)
    with pytest.raises(InputError, match="padded input of at least one window"):
        output_extent(2, 3)
