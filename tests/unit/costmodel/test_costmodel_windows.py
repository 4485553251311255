"""Window rows: closed forms and clipped counts against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.costmodel.kernels.windows import (
    WindowAxis,
    clipped_rows,
    distinct_rows,
    image_rows,
    span_rows,
    staged_rows,
)


def rows_of(outputs: range, axis: WindowAxis) -> set[int]:
    return {o * axis.stride - axis.pad + f * axis.dilation for o in outputs for f in range(axis.filter)}


def clipped(outputs: range, axis: WindowAxis) -> int:
    return sum(0 <= row < axis.input_extent for row in rows_of(outputs, axis))


@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_distinct_and_span_rows_match_brute_force(dilation: int) -> None:
    for f, s, h in product(range(1, 8), range(1, 4), range(1, 17)):
        axis = WindowAxis(16, 64, f, s, dilation, 0)
        rows = rows_of(range(h), axis)
        assert distinct_rows(h, axis) == len(rows)
        assert span_rows(h, axis) == max(rows) - min(rows) + 1


def test_distinct_rows_without_dilation_is_the_published_minimum() -> None:
    for f, s, h in product(range(1, 8), range(1, 4), range(1, 17)):
        assert distinct_rows(h, WindowAxis(16, 64, f, s, 1, 0)) == min((h - 1) * s + f, h * f)


def test_clipped_rows_match_brute_force_for_all_filters_paddings_strides() -> None:
    for f, p, s, extent in product(range(1, 8), range(4), range(1, 4), (7, 12)):
        axis = WindowAxis(extent, max((extent - 1) * s + f - 2 * p, 1), f, s, 1, p)
        tiles = np.arange(1, 17)
        average, least = clipped_rows(tiles, axis)
        for tile, got_average, got_least in zip(tiles, average, least, strict=True):
            starts = range(0, extent, int(tile))
            counts = [clipped(range(o, min(o + int(tile), extent)), axis) for o in starts]
            assert got_average == pytest.approx(sum(counts) / len(counts))
            assert got_least == min(counts)


@given(
    st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3),
    st.integers(1, 40), st.integers(1, 25),
)  # fmt: skip
def test_clipped_rows_with_dilation(
    extent: int, f: int, s: int, d: int, p: int, input_extent: int, tile: int
) -> None:
    axis = WindowAxis(extent, input_extent, f, s, d, p)
    counts = [clipped(range(o, min(o + tile, extent)), axis) for o in range(0, extent, tile)]
    average, least = clipped_rows(np.array([tile]), axis)
    assert average[0] == pytest.approx(np.mean(counts))
    assert least[0] == min(counts)


def test_strided_pointwise_window_touches_every_other_row_only() -> None:
    assert image_rows(WindowAxis(28, 56, 1, 2, 1, 0)) == 28


def test_staged_rows_skip_what_no_window_touches() -> None:
    assert staged_rows(8, WindowAxis(28, 56, 1, 2, 1, 0)) == 8
    assert staged_rows(8, WindowAxis(28, 56, 3, 2, 1, 1)) == 17
    assert staged_rows(8, WindowAxis(28, 56, 3, 2, 2, 1)) == 10
    assert staged_rows(8, WindowAxis(28, 56, 3, 1, 2, 1)) == 12
