"""Ways in which results leave products, timed on an H200: estimates are near, and in the measured order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tilewright.costmodel import load_hardware
from tilewright.passes.kernels.matrix.estimator import epilogue_clk, estimate_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.space import (
    LaidResults,
    MatrixProblem,
    SummedColumns,
    laid_stages,
    matrix_space_of,
)

H200 = load_hardware("H200")
#: what is summed of each result: mean and squared distances of batch norms; their gradients, with an array
#: that is read besides; the largest; the mean
SUMS = {
    "moments": SummedColumns(64, 1, 2, 10, 3.5, 14.0),
    "gradients": SummedColumns(64, 2, 6, 8, 2.5, 4.0, 1),
    "maxima": SummedColumns(128, 1, 2, 2, 1.0, 2.0),
    "means": SummedColumns(128, 1, 4, 2, 1.5, 2.0),
}


@dataclass(frozen=True)
class Timed:
    """A product of 16 bits: rows, columns, channel, taps; millions of bytes of what results are computed
    from besides, of these together with results, and of the first factor; its tile with stages, warps and
    teams, without these where all warps do the same; sums, and how many rows a part has; microseconds of a
    launch in a recorded replay. work: instructions of a result, but of gradients; shared: those of a vector
    that pairs of its results share."""

    sizes: tuple[int, int, int, int]
    megabytes: tuple[float, float, float]
    tile: tuple[int, int, int, int]
    warps: tuple[int, int]
    teams: int
    us: float
    sums: str = ""
    part: int = 64
    work: float = 1.5
    shared: float = 0.0


#: of the training step of ResNet-50 in bf16 at batch 64: apart
STORED = (
    Timed((50176, 128, 256, 1), (0.0, 12.8, 25.7), (128, 128, 64, 4), (4, 1), 2, 11.7, work=0.5),
    Timed((50176, 128, 128, 9), (0.0, 12.8, 12.8), (128, 128, 64, 5), (4, 1), 2, 21.2, work=0.5),
    Timed((12544, 1024, 256, 1), (0.0, 25.7, 6.4), (128, 128, 64, 4), (4, 1), 2, 10.9, work=0.5),
    Timed((12544, 512, 1024, 1), (0.0, 12.8, 25.7), (128, 128, 64, 5), (4, 1), 2, 19.6, work=0.5),
    Timed((12544, 256, 1024, 1), (0.0, 6.4, 25.7), (192, 128, 64, 4), (12, 1), 1, 10.7, work=0.5),
    Timed((200704, 64, 256, 1), (0.0, 25.7, 102.8), (256, 64, 64, 4), (4, 1), 2, 33.1, work=0.5),
    Timed((3136, 2048, 512, 1), (0.0, 12.8, 3.2), (64, 256, 64, 4), (4, 1), 2, 11.2, work=0.5),
)
#: with another array that is added
ADDED = (
    Timed((12544, 1024, 256, 1), (25.7, 51.4, 6.4), (128, 128, 64, 4), (4, 1), 2, 26.3),
    Timed((12544, 1024, 512, 1), (25.7, 51.4, 12.8), (128, 128, 64, 5), (4, 1), 2, 31.9),
    Timed((50176, 512, 256, 1), (51.4, 102.8, 25.7), (128, 128, 64, 4), (4, 1), 2, 51.7),
    Timed((3136, 2048, 1024, 1), (12.8, 25.7, 6.4), (64, 256, 64, 4), (4, 1), 2, 24.9),
    Timed((3136, 2048, 512, 1), (12.8, 25.7, 3.2), (64, 256, 64, 4), (4, 1), 2, 18.0),
    Timed((12544, 256, 1024, 1), (6.4, 12.8, 25.7), (192, 128, 64, 4), (12, 1), 1, 13.5),
    Timed((50176, 128, 512, 1), (12.8, 25.7, 51.4), (128, 128, 64, 5), (4, 1), 2, 23.9),
    Timed((200704, 64, 256, 1), (25.7, 51.4, 102.8), (256, 64, 64, 4), (4, 1), 2, 42.4),
    Timed((50176, 512, 128, 1), (51.4, 102.8, 12.8), (64, 128, 64, 2), (4, 1), 0, 36.2),
    Timed((200704, 256, 64, 1), (102.8, 205.5, 25.7), (64, 64, 64, 2), (4, 1), 0, 61.1),
)
#: with sums of columns
SUMMED = (
    Timed((50176, 128, 256, 1), (0, 13.6, 25.7), (192, 128, 64, 4), (12, 1), 1, 12.3, "moments", 64, 0.5),
    Timed((12544, 256, 256, 9), (0, 6.8, 6.4), (192, 128, 64, 4), (12, 1), 1, 19.8, "moments", 64, 0.5),
    Timed((12544, 256, 1024, 1), (0, 6.8, 25.7), (192, 128, 64, 4), (12, 1), 1, 11.1, "moments", 64, 0.5),
    Timed((3136, 512, 2048, 1), (0, 3.4, 12.8), (128, 128, 64, 5), (8, 1), 1, 12.9, "moments", 64, 0.5),
    Timed((200704, 64, 256, 1), (0, 26.1, 102.8), (256, 64, 64, 4), (4, 1), 2, 34.9, "moments", 256, 0.5),
    Timed((12544, 1024, 512, 1), (25.7, 52.2, 12.8), (128, 128, 64, 5), (4, 1), 2, 34.3, "moments", 128),
    Timed((3136, 2048, 512, 1), (12.8, 26.5, 3.2), (64, 128, 64, 5), (4, 1), 2, 19.6, "moments"),
    Timed((12544, 256, 1024, 1), (12.8, 19.7, 25.7), (192, 128, 64, 3), (12, 1), 1, 19.0, "gradients"),
    Timed((3136, 2048, 512, 1), (25.7, 39.4, 3.2), (64, 128, 64, 5), (4, 1), 2, 25.6, "gradients"),
    Timed((200704, 64, 256, 1), (51.4, 77.5, 102.8), (256, 64, 64, 3), (4, 1), 2, 52.3, "gradients", 256),
    Timed((200704, 256, 64, 1), (205.5, 314.7, 25.7), (64, 32, 64, 2), (4, 1), 0, 124.5, "gradients"),
    Timed((50176, 512, 128, 1), (102.8, 157.4, 12.8), (64, 64, 64, 2), (4, 2), 0, 60.9, "gradients"),
    Timed((50176, 512, 256, 1), (51.4, 104.4, 25.7), (128, 128, 64, 3), (8, 1), 0, 56.4, "moments", 128),
    Timed((200704, 256, 64, 1), (102.8, 211.9, 25.7), (64, 64, 64, 2), (4, 1), 0, 70.4, "moments"),
)  # fmt: skip
#: where nothing but the largest element, or the mean, of runs of rows is stored: two teams, three warpgroups
#: that share a tile, warps that all do the same
ALONE = (
    Timed((65536, 1024, 128, 1), (0, 1.1, 16.8), (128, 128, 64, 2), (4, 1), 2, 50.8, "maxima", 128, 2.5),
    Timed((65536, 1024, 128, 1), (0, 1.1, 16.8), (192, 192, 64, 2), (12, 1), 1, 62.8, "maxima", 64, 2.5),
    Timed((65536, 1024, 128, 1), (0, 1.1, 16.8), (128, 128, 64, 2), (8, 1), 0, 75.7, "maxima", 128, 2.5),
    Timed((16384, 768, 768, 1), (0, 0.4, 25.2), (128, 128, 64, 5), (4, 1), 2, 29.6, "means", 128, 2.5),
)
#: results that take so many instructions that the text of two teams exceeds the cache of these: a gradient of
#: GELU with dropout and sums of columns, and dropout whose words are drawn
LONG = (
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (128, 128, 64, 5), (4, 1), 2, 277.1, work=49.0),
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (128, 96, 64, 5), (4, 1), 2, 260.0, work=49.0),
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (256, 64, 64, 4), (4, 1), 2, 295.5, work=49.0),
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (256, 48, 64, 4), (4, 1), 2, 361.1, work=49.0),
    Timed(
        (12288, 4096, 1024, 1), (0, 151.0, 25.2), (128, 128, 64, 5), (4, 1), 2, 278.0, work=8.0, shared=132.0
    ),
)
#: the same gradient where smaller tiles, or warpgroups that share a tile and a text, keep it small; and GELU
SHORT = (
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (128, 64, 64, 5), (4, 1), 2, 181.7, work=49.0),
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (128, 256, 64, 3), (8, 1), 1, 171.6, work=49.0),
    Timed((8192, 4096, 1024, 1), (100.7, 167.8, 16.8), (256, 128, 64, 3), (8, 1), 1, 173.9, work=49.0),
    Timed((8192, 4096, 1024, 1), (33.5, 100.7, 16.8), (128, 128, 64, 5), (4, 1), 2, 124.6, work=29.0),
)
#: the second and the last of those that are not stored, where threads bring sums into rows
BY_THREADS = ((ALONE[1], 86.5), (ALONE[3], 33.4))


def problem_of(timed: Timed) -> MatrixProblem:
    m, n, channel, taps = timed.sizes
    tail, results, first = (int(1e6 * x) for x in timed.megabytes)
    summed = replace(SUMS[timed.sums], part_rows=timed.part) if timed.sums else None
    alone = timed.sums in ("maxima", "means")
    laid = LaidResults(1, 4 if timed.sums == "means" else 2, written=not alone)
    return MatrixProblem(
        1, m, n, channel, taps, 2, first, 2 * n * channel * taps, results, fetched=1.0 if taps == 1 else 0.93,
        tail_work=6.5 if timed.sums == "gradients" else timed.work, tail_bytes=tail, boxes=True,
        tail_shared=timed.shared / 4, tail_paired=timed.shared, summed=summed, laid=laid,
    )  # fmt: skip


def point(timed: Timed) -> MatrixParameters:
    m, n, k, stages = timed.tile
    warps = Warps(*timed.warps)
    p = MatrixParameters(MatrixTile(m, n, k), warps, stages, "", 1, "wgmma")
    return replace(p, copiers=4, teams=timed.teams, blocks=132, transport="engine") if timed.teams else p


def estimate_us(timed: Timed, *, laid: bool = True) -> float:
    problem = problem_of(timed) if laid else replace(problem_of(timed), laid=None)
    return float(estimate_matrix(problem, matrix_space_of(point(timed)), H200)[0]) * 1e6


def log_errors(times: tuple[Timed, ...]) -> np.ndarray:
    """Logarithms of measured over estimated times; launches begin 0.3 us behind the end of others here."""
    return np.log([(t.us + 0.3) / estimate_us(t) for t in times])


@pytest.mark.parametrize("times", [STORED, ADDED, SUMMED, ALONE], ids=["stored", "added", "summed", "alone"])
def test_estimates_are_near_what_was_measured(times):
    errors = log_errors(times)
    assert np.abs(errors).mean() < 0.1, errors
    assert np.abs(errors).max() < 0.17, errors
    assert abs(errors.mean()) < 0.06


def test_what_is_never_stored_is_estimated_in_the_measured_order():
    """The estimate had warps that all do the same for the fastest, and no difference by how results leave."""
    found = [estimate_us(t) for t in ALONE[:3]] + [estimate_us(ALONE[1], laid=False)]
    assert found == sorted(found)
    for timed, us in BY_THREADS:
        assert estimate_us(timed, laid=False) > 1.05 * estimate_us(timed)
        assert estimate_us(timed, laid=False) == pytest.approx(us, rel=0.12)


@pytest.mark.parametrize("times", [LONG, SHORT], ids=["long", "short"])
def test_text_beyond_the_cache_of_instructions_takes_time(times):
    assert np.abs(log_errors(times)).max() < 0.25, log_errors(times)
    kept = replace(H200, matrix=replace(H200.matrix, code_bytes=np.inf))
    for timed in times:
        space = matrix_space_of(point(timed))
        found, without = (estimate_matrix(problem_of(timed), space, h)[0] for h in (H200, kept))
        assert found > 1.5 * without if times is LONG else found == without


def test_results_are_laid_down_where_the_ring_keeps_its_stages():
    """Two blocks of a multiprocessor with three stages each leave no room for pieces of results."""
    alone, both = (replace(point(STORED[0]), teams=1, resident=r, blocks=132 * r, stages=3) for r in (1, 2))
    space = matrix_space_of(alone, both, replace(alone, copiers=0))
    assert list(laid_stages(problem_of(STORED[0]), space, H200) > 0) == [True, False, False]
    assert not laid_stages(replace(problem_of(STORED[0]), laid=None), space, H200).any()


def test_what_is_read_besides_takes_longer_from_memory():
    timed = ADDED[0]
    problem, space = problem_of(timed), matrix_space_of(point(timed))
    one = np.ones(1, dtype=np.int64)
    small = replace(problem, result_bytes=problem.result_bytes // 64, tail_bytes=problem.tail_bytes // 64)
    near, far = (float(epilogue_clk(p, space, H200, one)[0]) for p in (small, problem))
    none = float(epilogue_clk(replace(problem, tail_bytes=0), space, H200, one)[0])
    assert none < near < far
    # A thread has 64 pairs, eight of which are under way together.
    assert far - none == pytest.approx(
        8 * (H200.matrix.tail_read_clk + H200.matrix.memory_clk * problem.compulsory_bytes / H200.l2_bytes)
    )


def test_teams_wait_for_their_own_results_alone():
    """A third tile waits for the results of the first one; a fourth only for the product of the third."""
    turns = [replace(ADDED[0], sizes=(132 * 128 * n, 128, 256, 1)) for n in (2, 3, 4)]
    two, three, four = (estimate_us(t) for t in turns)
    assert three - two > four - three > 0
