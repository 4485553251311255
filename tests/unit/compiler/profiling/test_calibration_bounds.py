"""Laws of the bounds on random problems: below the estimate, point by point as all at once, monotone."""

from dataclasses import replace

import numpy as np
import pytest
from contract_problems import conv_problem
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright.costmodel import (
    ContractProblem,
    GpuHardware,
    RowReduceProblem,
    WindowProblem,
    contract_bound,
    contract_bound_of,
    global_bound,
    known_hardware,
    load_hardware,
)
from tilewright.costmodel.kernels.bound import BoundArrays
from tilewright.costmodel.kernels.bound_terms import GENERATED, MEASURED_LOOP, SPECIFIED
from tilewright.costmodel.kernels.geometry import resident_blocks
from tilewright.devices.targets import resolve_target
from tilewright.passes.kernels.contract.choice import contract_points
from tilewright.passes.kernels.engine_points import EnginePoints
from tilewright.passes.kernels.matrix.bound import matrix_bound, tensor_fma
from tilewright.passes.kernels.matrix.choice import matrix_points
from tilewright.passes.kernels.matrix.space import (
    MatrixProblem,
    ahead_of,
    blocks_of,
    chunks_of,
    registers_of,
    shared_bytes,
)
from tilewright.passes.kernels.window.space import choose_tiles
from tilewright.tuning.report import check_program, violation_of

NOISE = 0.02
GPUS = [h for h in known_hardware() if isinstance(h, GpuHardware)]
H100 = load_hardware("H100")
BANDWIDTHS = ("dram_bytes_per_s", "l2_bytes_per_clk", "smem_bytes_per_sm_per_clk", "mma_sync_share")
CHANNELS = st.sampled_from([1, 3, 16, 32, 96, 256, 512, 2048])


@st.composite
def convolutions(draw: st.DrawFn) -> ContractProblem:
    size, window = draw(st.sampled_from([1, 7, 14, 28, 56])), draw(st.sampled_from([1, 3, 5]))
    assume(window <= size + 2 * (window // 2))
    stride = draw(st.sampled_from([1, 2]))
    return conv_problem(
        draw(st.sampled_from([1, 8, 64])), draw(CHANNELS), size, size, draw(CHANNELS), window, window,
        stride=(stride, stride), pad=(window // 2,) * 4,
    )  # fmt: skip


@st.composite
def products(draw: st.DrawFn) -> MatrixProblem:
    size, batch = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 12]))
    m, n, k = (draw(st.integers(1, 256)) * unit for unit in (1, 8, 16))
    return MatrixProblem(
        batch, m, n, k, 1, size, size * batch * m * k, size * batch * n * k, size * batch * m * n,
        first_copy=16 // size, second_copy=16 // size,
    )  # fmt: skip


def suspicious(bounds: BoundArrays, estimates_s: np.ndarray) -> str:
    """The terms of the point whose bound is furthest above its estimate; empty where none is."""
    share = bounds.seconds / estimates_s
    i = int(np.argmax(share))
    if share[i] <= 1 + NOISE:
        return ""
    terms = {name: round(float(column[i]), 4) for name, column in bounds.terms.items()}
    return f"bound {share[i]:.2f} times the estimate, limited by {bounds.at(i).limit}: {terms}"


@settings(max_examples=12)
@given(st.sampled_from([*GPUS, load_hardware("opencl")]), convolutions())
def test_no_bound_of_the_lanes_is_above_its_estimate(hardware, problem):
    points = contract_points(problem, hardware)
    assert suspicious(points.cold, points.estimates_s) == ""
    assert np.all(points.least_s <= points.cold.seconds * (1 + 1e-9))
    assert np.all(points.cold.ub <= 1)


@settings(max_examples=20)
@given(products())
def test_no_bound_of_the_tensor_cores_is_above_its_estimate(problem):
    points = matrix_points(problem, H100)
    assert suspicious(points.cold, points.estimates_s) == ""
    assert np.all(points.least_s <= points.cold.seconds * (1 + 1e-9))
    reached = np.where(points.space.groups > 0, H100.wgmma_share, H100.mma_sync_share)
    assert np.all(points.cold.ub <= reached)


@settings(max_examples=10)
@given(convolutions(), products(), st.randoms(use_true_random=False))
def test_a_point_alone_has_the_bound_it_has_among_all(convolution, product, random):
    lanes, cores = contract_points(convolution, H100), matrix_points(product, H100)
    for i in (random.randrange(len(lanes)) for _ in range(4)):
        assert contract_bound_of(convolution, lanes.space.at(i), H100, GENERATED) == lanes.cold.at(i)
    for i in (random.randrange(len(cores)) for _ in range(4)):
        one = matrix_bound(product, cores.space.take(np.array([i])), H100)
        assert one.at(0) == cores.cold.at(i)
        # The terms explain the number.
        t = {name: float(column[i]) for name, column in cores.cold.terms.items()}
        local = t["TQ"] * t["WB"] * min(t["RATE"], t["SMB"])
        assert cores.cold.ub[i] == pytest.approx(min(t["GM"], t["L2"], t["LAT"], local))


@settings(max_examples=10)
@given(convolutions(), products(), st.sampled_from(BANDWIDTHS), st.floats(1.0, 8.0), st.booleans())
def test_more_bandwidth_never_raises_a_bound(convolution, product, constant, factor, cold):
    value = getattr(H100, constant) * factor
    better = replace(H100, **{constant: min(value, 1.0) if constant == "mma_sync_share" else value})
    assumptions = SPECIFIED if cold else MEASURED_LOOP
    lanes, cores = contract_points(convolution, H100), matrix_points(product, H100)
    pairs = [
        [contract_bound(convolution, lanes.space, h, assumptions) for h in (H100, better)],
        [matrix_bound(product, cores.space, h, assumptions) for h in (H100, better)],
    ]
    for before, after in pairs:
        assert np.all(after.seconds <= before.seconds * (1 + 1e-9))
    for problem in (convolution, product_rows(product)):
        bounds = [global_bound(problem, h, assumptions).seconds for h in (H100, better)]
        assert bounds[1] <= bounds[0] * (1 + 1e-9)


def product_rows(product: MatrixProblem) -> RowReduceProblem:
    """Rows to normalise, as many and as long as those of a product's first operand."""
    words = product.m * product.channel
    return RowReduceProblem(product.m, product.channel, 4 * words, 4 * words, 5 * words)


def in_flight_share(points: EnginePoints, problem: MatrixProblem) -> np.ndarray:
    """LITTLE: what blocks may have on its way at a time over a latency, against what a peak rate needs."""
    s = points.space
    fits = resident_blocks(
        H100, s.warps, shared_bytes(problem, s), (registers_of(problem, s) - 64).clip(24)
    ).clip(1)
    flying = fits * (ahead_of(problem, s) + 1)
    clk = blocks_of(problem, s) / H100.sm_count * chunks_of(problem, s) * H100.lat_l2_clk / flying
    return problem.flops / (2.0 * tensor_fma(problem, H100) * H100.sm_count) / clk


@settings(max_examples=20)
@given(products())
def test_the_latency_term_holds_what_littles_law_allows(problem):
    points = matrix_points(problem, H100)
    assert np.all(points.cold.terms["LAT"] <= np.minimum(1.0, in_flight_share(points, problem)) * (1 + 1e-9))


@settings(max_examples=40)
@given(st.sampled_from(GPUS), st.sampled_from([7, 14, 56, 112]), CHANNELS, st.sampled_from([2, 3]))
def test_windows_are_bounded_by_traffic_and_launch(hardware, size, channels, window):
    problem = window_problem(size, channels, window)
    choice = choose_tiles(problem, hardware, 0)
    assert choice.bound.limit in ("GM", "L2", "PEAK", "LAUNCH")
    assert choice.bound.seconds <= choice.estimate_s * (1 + NOISE)
    assert choice.bound.seconds >= hardware.launch_floor_s
    assert choice.bound.seconds >= problem.compulsory_bytes / hardware.l2_bytes_per_s


def window_problem(size: int, channels: int, window: int) -> WindowProblem:
    out = (size - window) // 2 + 1
    return WindowProblem(
        planes=channels, h=out, w=out, f_h=window, f_w=window, stride_h=2, stride_w=2, dilation_h=1,
        dilation_w=1, pad=(0, 0, 0, 0), h_in=size, w_in=size,
    )  # fmt: skip


def test_a_program_below_its_bound_is_told(capsys):
    target = resolve_target("cuda:sm_90a")
    assert violation_of("direct of conv1", 9.9e-6, 1e-5, "here") is None  # timer noise
    assert violation_of("direct of conv1", 0.0, 1e-5, "here") is None  # nothing was timed
    check_program("direct of conv1", 2e-5, 1e-5, target)
    assert capsys.readouterr().err == ""
    check_program("direct of conv1", 5e-6, 1e-5, target)
    assert capsys.readouterr().err == (
        "bug in the bound: measured 5.00 us, but the bound says at least 10.00 us with warm caches for "
        "direct of conv1, cuda:sm_90a by the record H100 (shipped)\n"
    )
