"""Estimates against kernels timed on an H200: the chosen one is nearly the fastest.

All of them were timed with threads that store results, before the copy engine wrote them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from matrix_samples import matrix_parameters, product, view_of

from tilewright.costmodel import load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import Func
from tilewright.passes.kernels.matrix.choice import likely_matrix
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import matrix_space_of

#: tile, warps along m, stages and teams; 0 teams: all warps copy and multiply
POINTS = {
    "old 64": ((128, 64, 64), 4, 4, 0),
    "old 128": ((128, 128, 64), 4, 4, 0),
    "both 64": ((256, 64, 64), 8, 4, 1),
    "both 128": ((128, 128, 64), 8, 4, 1),
    "both 256": ((128, 256, 64), 8, 4, 1),
    "tall": ((256, 128, 64), 8, 4, 1),
    "turns 64": ((128, 64, 64), 4, 5, 2),
    "turns 128": ((128, 128, 64), 4, 5, 2),
}
#: images, extent, channels, filters, taps, stride, dilation: microseconds with bias and ReLU in f16
CONVOLUTIONS = {
    (64, 56, 64, 64, 3, 1, 1): {"old 64": 46.4, "both 64": 39.3, "turns 64": 38.1},
    (64, 28, 128, 128, 3, 1, 1): {"old 128": 32.4, "both 128": 25.3, "tall": 30.3, "turns 128": 23.9},
    (64, 14, 256, 256, 3, 1, 1): {"old 128": 38.9, "both 128": 28.2, "tall": 26.6, "turns 128": 27.5},
    (64, 7, 512, 512, 3, 1, 1): {"old 128": 42.9, "both 128": 26.0, "tall": 47.8},
    (64, 56, 128, 128, 3, 2, 1): {"old 128": 39.8, "both 128": 30.2, "tall": 33.9, "turns 128": 28.7},
    (64, 56, 256, 512, 1, 2, 1): {"old 128": 52.4, "both 256": 34.4, "turns 128": 31.9},
    (64, 28, 128, 128, 3, 1, 2): {"old 128": 32.4, "both 128": 25.5, "turns 128": 23.7},
    (8, 64, 320, 320, 3, 1, 1): {"old 128": 158.2, "both 128": 122.0, "both 256": 198.8, "turns 128": 103.6},
}  # fmt: skip

#: rows and columns of a tile, warps along m, teams; 0: any tile whose warps all copy and multiply
Kind = tuple[int, int, int, int] | int
#: rows, columns, summed, whether there is a residual beside the bias: microseconds in f16 by tile, warps
#: along m and teams; 0 teams: the fastest of all whose warps copy and multiply
PRODUCTS: dict[tuple[int, int, int, bool], dict[Kind, float]] = {
    (16384, 2304, 768, False): {(128, 128, 4, 2): 90.7, (128, 256, 8, 1): 117.1, 0: 113.0},
    (16384, 768, 768, True): {(128, 128, 4, 2): 37.6, (128, 256, 8, 1): 46.3, 0: 51.6},
    (16384, 768, 3072, True): {(128, 128, 4, 2): 124.7, (128, 256, 8, 1): 144.9, 0: 141.6},
    (8192, 768, 768, True): {(128, 128, 4, 2): 20.0, (64, 256, 4, 2): 19.6, (128, 192, 8, 1): 23.2, 0: 24.0},
    (50176, 512, 128, True): {(128, 128, 4, 2): 39.4, (128, 256, 8, 1): 44.5, 0: 38.1},
    (200704, 256, 64, True): {(128, 128, 4, 2): 72.2, (128, 256, 8, 1): 78.0, 0: 60.4},
    (3136, 2048, 512, True): {(64, 256, 4, 2): 14.4, (128, 64, 4, 2): 27.2, (128, 128, 4, 2): 30.7, 0: 25.0},
    (1024, 768, 3072, True): {(128, 128, 8, 1): 19.3, (256, 64, 8, 1): 19.1, 0: 16.7},
}  # fmt: skip


def rows_by_weights(m: int, n: int, k: int, residual: bool) -> Func:
    """A product with bias, and a residual tensor that is added."""
    more = ", %added" if residual else ""
    added = '%5 = scalar.cast(%3, dtype = "f32") : f32 %6 = scalar.add(%4, %5) : f32' if residual else ""
    epilogue = f"""%y = tensor.map(%p, %bias{more}, par = (m: {m}, n: {n}),
        reads = [[m, n], [n]{", [m, n]" if residual else ""}]) : f16[{m}, {n}] {{
      ^(%1: f32, %2: f32{", %3: f16" if residual else ""})
      %4 = scalar.add(%1, %2) : f32 {added}
      %7 = scalar.cast({"%6" if residual else "%4"}, dtype = "f16") : f16
      scalar.yield(%7)
    }}"""
    extra = (f"%bias: f32[{n}]", *((f"%added: f16[{m}, {n}]",) if residual else ()))
    return product(
        "f16", (f"{m}, {k}", f"{n}, {k}"), f"m: {m}, n: {n}", f"c: {k}", ("[m, c]", "[n, c]"), result="f16",
        epilogue=epilogue, extra=extra,
    )  # fmt: skip


def windows(n: int, hw: int, c: int, k: int, f: int, stride: int, dilation: int) -> Func:
    """A convolution with bias and ReLU, channels last."""
    reach = (f - 1) * dilation
    pad, out = reach // 2, (hw - 1) // stride + 1
    y, x = f"y * {stride} + r * {dilation} - {pad}", f"x * {stride} + s * {dilation} - {pad}"
    par = f"n: {n}, y: {out}, x: {out}, k: {k}"
    result = f"f16[{n}, {out}, {out}, {k}]"
    relu = f"""%y = tensor.map(%p, %bias, par = ({par}), reads = [[n, y, x, k], [k]]) : {result} {{
      ^(%1: f32, %2: f32)
      %3 = scalar.add(%1, %2) : f32
      %4 = scalar.const(value = 0.0, dtype = "f32") : f32
      %5 = scalar.max(%3, %4) : f32
      %6 = scalar.cast(%5, dtype = "f16") : f16
      scalar.yield(%6)
    }}"""
    return product(
        "f16", (f"{n}, {hw}, {hw}, {c}", f"{k}, {f}, {f}, {c}"), par, f"c: {c}, r: {f}, s: {f}",
        (f"[n, {y}, {x}, c]", "[k, r, s, c]"), fill="[0.0, none]" if pad else "[none, none]", result="f16",
        epilogue=relu, extra=(f"%bias: f32[{k}]",),
    )  # fmt: skip


def point(name: str, channel: str) -> MatrixParameters:
    tile, warps, stages, teams = POINTS[name]
    p = matrix_parameters(*tile, warps, 1, stages, channel, engine="wgmma")
    return replace(p, copiers=4, teams=teams, blocks=132, transport="engine") if teams else p


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_what_the_estimate_chooses_is_nearly_the_fastest(shape):
    times = CONVOLUTIONS[shape]
    kernel = windows(*shape)
    view = view_of(kernel)
    problem = replace(matrix_problem(kernel, view), laid=None)
    assert problem.boxes
    space = matrix_space_of(*(point(name, view.channel) for name in times))
    hardware = resolve_target("cuda:sm_90a", with_calibration=False).hardware
    estimates = estimate_matrix(problem, space, hardware)  # type: ignore[arg-type]
    chosen = min(zip(estimates, times, strict=True))[1]
    assert times[chosen] <= 1.1 * min(times.values()), (chosen, estimates * 1e6)


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_among_all_points_the_estimate_is_near_what_was_measured(shape):
    kernel = windows(*shape)
    hardware = resolve_target("cuda:sm_90a", with_calibration=False).hardware
    problem = replace(matrix_problem(kernel, view_of(kernel)), laid=None)
    (choice,) = likely_matrix(problem, hardware, 1)  # type: ignore[arg-type]
    assert choice.estimate_s * 1e6 == pytest.approx(min(CONVOLUTIONS[shape].values()), rel=0.21)
    assert choice.parameters.copiers or shape == (64, 14, 256, 256, 3, 1, 1)


@pytest.mark.parametrize("shape", PRODUCTS)
def test_of_the_products_that_were_timed_nearly_the_fastest_is_chosen(shape):
    kernel = rows_by_weights(*shape)
    problem, times = replace(matrix_problem(kernel, view_of(kernel)), laid=None), PRODUCTS[shape]
    estimates: dict[Kind, float] = {}
    for choice in likely_matrix(problem, load_hardware("H200"), 400):  # type: ignore[arg-type]
        p = choice.parameters
        if p.resident == p.parts == 1:
            kind = (p.block.m, p.block.n, p.warps.m, p.teams) if p.copiers else 0
            estimates[kind] = min(choice.estimate_s, estimates.get(kind, choice.estimate_s))
    assert min(times, key=times.__getitem__) in estimates
    chosen = min(times.keys() & estimates.keys(), key=estimates.__getitem__)
    assert times[chosen] <= 1.1 * min(times.values()), chosen
