"""Depthwise and pooling windows of 16 bits with channels last, timed on an H200: estimates are near."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tilewright.costmodel import load_hardware
from tilewright.costmodel.kernels.problem import WindowProblem
from tilewright.passes.kernels.window.space import Box, box_seconds, choose_tiles

H200 = load_hardware("H200")
#: images, channels, extent of results, window, stride, instructions per result behind the sum, and the box of
#: a thread (rows, columns, channels): microseconds of a launch in a recorded replay; 0 instructions: pooling
TIMES = {
    (64, 96, 56, 3, 1, 3.5, (2, 2, 8)): 44.3,
    (32, 16, 112, 3, 1, 3.5, (2, 2, 8)): 14.3,
    (32, 64, 56, 3, 2, 3.5, (2, 2, 8)): 25.5,
    (64, 160, 14, 3, 2, 15.5, (2, 2, 8)): 6.5,
    (64, 320, 14, 3, 1, 15.5, (2, 2, 8)): 10.0,
    (64, 480, 14, 3, 1, 15.5, (2, 2, 8)): 14.0,
    (64, 672, 14, 3, 1, 15.5, (2, 2, 8)): 19.1,
    (64, 384, 14, 3, 1, 10.5, (2, 2, 8)): 12.7,
    (64, 576, 14, 3, 1, 10.5, (2, 2, 8)): 18.4,
    (64, 672, 14, 3, 1, 10.5, (2, 2, 8)): 21.5,
    (64, 1152, 7, 3, 1, 10.5, (1, 4, 8)): 11.8,
    (64, 672, 7, 3, 2, 10.5, (1, 4, 8)): 8.9,
    (64, 58, 28, 3, 1, 1.5, (4, 4, 2)): 4.3,
    (64, 24, 28, 3, 2, 1.5, (2, 4, 4)): 3.8,
    (64, 120, 28, 5, 1, 3.5, (2, 4, 4)): 15.8,
    (64, 72, 28, 5, 2, 3.5, (4, 4, 2)): 13.1,
    (64, 672, 7, 5, 2, 15.5, (4, 4, 2)): 11.7,
    (64, 64, 56, 7, 1, 1.5, (4, 4, 2)): 51.9,
    (64, 128, 28, 7, 1, 1.5, (4, 4, 2)): 26.1,
    (64, 192, 28, 7, 1, 1.5, (4, 4, 2)): 37.8,
    (64, 384, 14, 7, 1, 1.5, (8, 2, 2)): 29.8,
    (64, 768, 7, 7, 1, 1.5, (4, 4, 2)): 13.9,
    (64, 64, 56, 3, 2, 0.0, (2, 2, 8)): 34.2,
}  # fmt: skip


def problem_of(n: int, channels: int, side: int, window: int, stride: int, work: float) -> WindowProblem:
    extent = side * stride
    pad = (window // 2, window // 2 if stride == 1 else window // 2 - 1)
    return WindowProblem(
        n * channels, side, side, window, window, stride, stride, 1, 1, (pad[0], pad[0], pad[1], pad[1]),
        extent, extent, 2 * window * window * channels if work else 0, 2,
        image_bytes=2 * n * channels * extent * extent, tail_work=work,
    )  # fmt: skip


def estimate_us(shape: tuple, box: tuple[int, int, int]) -> float:
    rows, columns, vec = box
    return 1e6 * box_seconds(problem_of(*shape), H200, shape[1], Box(128, columns, vec, rows))  # type: ignore[arg-type]


def test_estimates_are_near_what_was_measured():
    """Launches begin 0.3 us behind the end of others in a replay."""
    errors = {
        (*shape, box): math.log((us + 0.3) / estimate_us(tuple(shape), box))
        for (*shape, box), us in TIMES.items()
    }
    found = np.array(list(errors.values()))
    assert np.abs(found).mean() < 0.1, errors
    assert np.abs(found).max() < 0.3, errors
    assert abs(found.mean()) < 0.05


@pytest.mark.parametrize("shape", [s[:-1] for s in TIMES if s[3] == 3 and s[4] == 1 and s[-1][2] == 8])
def test_boxes_are_chosen_that_look_up_fewer_lines(shape):
    """16 results of two channels read 36 places of one line, 4 results of eight channels 16 of four."""
    box = choose_tiles(problem_of(*shape), H200, shape[1]).parameters.outputs  # type: ignore[arg-type]
    assert box["rows"] * box["columns"] > 4
    assert estimate_us(shape, (box["rows"], box["columns"], box["inner"])) < 0.9 * estimate_us(
        shape, (2, 2, 8)
    )


def test_what_follows_the_sums_counts_for_every_result():
    shape = (64, 672, 14, 3, 1, 1.5)
    more = (*shape[:-1], 61.5)
    # 60 instructions more for 32 results of a thread, at the share of issue slots that nothing hides
    warps = 64 * 672 * 14 * 14 // 32 // 32
    slots = 60 * 32 * -(-warps // H200.sm_count) / (4 * H200.window.box_issue_efficiency)  # type: ignore[union-attr]
    least_us = 1e6 * H200.window.box_issue_share * slots / H200.clock_hz  # type: ignore[union-attr]
    assert estimate_us(more, (2, 2, 8)) - estimate_us(shape, (2, 2, 8)) > 0.9 * least_us


def test_work_of_a_tap_is_that_of_its_body():
    problem = problem_of(64, 64, 56, 3, 2, 0.0)
    box = Box(128, 2, 8, 2)
    plain, more = (box_seconds(replace(problem, tap_work=w), H200, 64, box) for w in (1.0, 10.0))  # type: ignore[arg-type]
    assert more > 1.5 * plain
