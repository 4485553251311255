"""Masks of dropout, drawn by kernels of their own and behind products, timed on an H200 (2026-11-29)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np
import pytest
from attention_training import TARGET

from tilewright.costmodel import choose_map, load_hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.problem import StreamProblem
from tilewright.ir import parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.kernel_problem import stream_problem
from tilewright.passes.kernels.matrix.estimator import epilogue_clk, estimate_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.space import LaidResults, MatrixProblem, matrix_space_of

H200 = load_hardware("H200")
#: two teams that take turns, as the products were timed
POINT = replace(
    MatrixParameters(MatrixTile(128, 128, 64), Warps(4, 1), 5, "", 1, "wgmma"),
    copiers=4, teams=2, blocks=132, transport="engine",
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A product that draws dropout of its results: rows, columns, depth; millions of bytes of results with
    what they are computed from besides, and of that alone; whether results are laid down out of fragments;
    microseconds, the least and the most.
    """

    sizes: tuple[int, int, int]
    megabytes: tuple[float, float]
    laid: bool
    us: tuple[float, float]


#: of encoder_layer at batch 96, and the first two of decoder_layer at batch 8 with a mask that is stored
PRODUCTS = {
    "up": Drawn((12288, 4096, 1024), (100.67, 0.0), laid=True, us=(287.0, 307.0)),
    "project": Drawn((12288, 1024, 1024), (50.33, 25.17), laid=True, us=(96.0, 111.0)),
    "down": Drawn((12288, 1024, 4096), (50.33, 25.17), laid=True, us=(187.0, 206.0)),
    "stored": Drawn((8192, 1024, 1024), (41.95, 16.78), laid=False, us=(44.0, 47.5)),
}
#: masks of attention in words of 32 bits, as the model sees them
WORDS = [
    (StreamProblem(10, 16777216, 4194304, 1247019008, 4, 0, ((16, 88080384),)), (72.6, 80.0)),
    (StreamProblem(10, 3145728, 786432, 233816064, 4, 0, ((16, 16515072),)), (16.5, 20.0)),
]


def problem_of(drawn: Drawn) -> MatrixProblem:
    m, n, depth = drawn.sizes
    results, tail = (int(1e6 * x) for x in drawn.megabytes)
    return MatrixProblem(
        1, m, n, depth, 1, 2, 2 * m * depth, 2 * n * depth, results, tail_work=8.0, tail_shared=33.0,
        tail_paired=132.0, tail_bytes=tail, boxes=True,
        laid=LaidResults(1, 2, written=True) if drawn.laid else None,
    )  # fmt: skip


def mask_kernel(shape):
    """The kernel that draws a mask of 16 bits for each element, in bytes."""
    dims = ", ".join(map(str, shape))
    text = f"""module @m {{ graph.func @main(%s: u32[2], %t: u32[], %limit: u16[]) -> bool[{dims}] {{
      %0 = graph.random_bits(%s, %t, shape = [{dims}], bits = 16, stream = 0, whole = [], origin = [])
        : u16[{dims}]
      %1 = graph.less(%0, %limit) : bool[{dims}] graph.return(%1) }} }}"""
    passes = Pipeline.parse("graph-to-tensor, inline-maps, fuse-kernels")
    module = run_pipeline(parse(text), passes, PassContext(target=TARGET))
    (kernel,) = (f for f in module.funcs if f.name != "main")
    return kernel


def assert_near(estimate_us, measured):
    """Within 25 % of the middle of what was measured."""
    assert abs(log(2 * estimate_us / sum(measured))) < log(1.25)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_draw_are_near_what_was_measured(name):
    drawn = PRODUCTS[name]
    estimate = estimate_matrix(problem_of(drawn), matrix_space_of(POINT), H200)
    assert_near(float(estimate[0]) * 1e6, drawn.us)


def test_a_mask_of_bytes_is_drawn_beside_its_traffic():
    problem = stream_problem(mask_kernel((8, 1024, 4096)))
    assert problem.gathers == 0  # all threads read the words of one seed
    choice = choose_map(problem, H200)
    assert choice.parameters.vec == 8
    assert global_bound(problem, H200).seconds < choice.estimate_s
    assert_near(choice.estimate_s * 1e6, (20.4, 23.9))


@pytest.mark.parametrize(("problem", "us"), WORDS)
def test_masks_of_words_are_near_what_was_measured(problem, us):
    """The shorter one took longer for an element: the estimate is within 25 % of its fastest run."""
    estimate_us = choose_map(problem, H200).estimate_s * 1e6
    assert us[0] / 1.25 < estimate_us < 1.25 * us[1]


def test_pairs_of_fragments_repeat_a_call_that_vectors_share():
    """Four results need a half of a call by vectors of eight, and two calls by pairs."""
    laid = problem_of(PRODUCTS["project"])
    space, one = matrix_space_of(POINT), np.ones(1, dtype=np.int64)
    plain = replace(laid, tail_shared=0.0, tail_paired=0.0)
    kept = replace(H200, matrix=replace(H200.matrix, code_bytes=np.inf))
    added = [
        float((epilogue_clk(p, space, kept, one) - epilogue_clk(q, space, kept, one))[0])
        for p, q in ((laid, plain), (replace(laid, laid=None), replace(plain, laid=None)))
    ]
    assert added[0] == pytest.approx(4 * added[1])
