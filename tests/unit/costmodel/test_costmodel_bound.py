"""The sound bound: peaks, wave balance, monotonicity, legality, assumptions, check of measurements."""

import ast
import heapq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contract_problems import conv_problem, dividing_points, matmul_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.costmodel import (
    Assumptions,
    ContractParameters,
    CpuHardware,
    GpuHardware,
    RowReduceParameters,
    RowReduceProblem,
    StreamProblem,
    check_measured,
    contract_bound,
    contract_bound_of,
    global_bound,
    load_hardware,
)
from tilewright.costmodel.kernels.bound import LAUNCH, LOCAL_TERMS, PEAK
from tilewright.costmodel.kernels.bound_terms import occupancy, wb
from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.costmodel.kernels.geometry import contract_geometry
from tilewright.costmodel.kernels.parameters import contract_point, contract_space
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.ir.errors import InputError
from tilewright.passes.kernels import attention

LAYER = conv_problem(1, 64, 56, 56, 64, 3, 3, pad=(1, 1, 1, 1))
TILE = contract_point(1, 16, 8, 8, 1, 4, 1, 4, 8)


def gpu(name: str = "H100") -> GpuHardware:
    hardware = load_hardware(name)
    assert isinstance(hardware, GpuHardware)
    return hardware


def cpu() -> CpuHardware:
    hardware = load_hardware("opencl")
    assert isinstance(hardware, CpuHardware)
    return hardware


def makespan(jobs: int, machines: int) -> int:
    finish = [0] * machines
    for _ in range(jobs):
        heapq.heapreplace(finish, finish[0] + 1)
    return max(finish)


def test_peaks() -> None:
    assert gpu("H100").peak_flops_per_s == pytest.approx(2 * 128 * 132 * 1.98e9)
    assert gpu("H100").peak_flops_per_s == pytest.approx(67e12, rel=0.01)
    assert gpu("A100").peak_flops_per_s == pytest.approx(19.5e12, rel=0.01)
    assert gpu("V100").peak_flops_per_s == pytest.approx(15.7e12, rel=0.01)
    assert gpu("RTX 2080").peak_flops_per_s == pytest.approx(10.6e12, rel=0.01)


@pytest.mark.parametrize("machines", [1, 7, 46, 80, 132])
def test_wave_balance_is_the_makespan_of_equal_jobs(machines: int) -> None:
    jobs = np.arange(1, 10 * machines + 1)
    expected = [job / machines / makespan(int(job), machines) for job in jobs]
    assert wb(jobs, machines) == pytest.approx(expected)


FASTER = (
    "dram_bytes_per_s",
    "l2_bytes_per_clk",
    "clock_hz",
    "smem_bytes_per_sm_per_clk",
    "schedulers_per_sm",
)
SLOWER = ("lat_fetch_clk", "lat_smem_clk", "lat_fma_clk", "launch_floor_s")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["V100", "RTX 2080", "A100", "H100", "H200"]),
    st.sampled_from(FASTER + SLOWER),
    st.integers(2, 5),
    st.integers(0, 78_399),
    st.booleans(),
)
def test_better_hardware_never_raises_the_time(
    device: str, constant: str, factor: int, start: int, cold: bool
) -> None:
    hardware = gpu(device)
    value = getattr(hardware, constant)
    better = replace(hardware, **{constant: value * factor if constant in FASTER else value / factor})
    space = dividing_points(LAYER)
    some = space.take(np.arange(start, 78_400, 997))
    assumptions = Assumptions(cold_l2=cold)
    before = contract_bound(LAYER, some, hardware, assumptions).seconds
    after = contract_bound(LAYER, some, better, assumptions).seconds
    assert (after[np.isfinite(before)] <= before[np.isfinite(before)] * (1 + 1e-12)).all()


@pytest.mark.parametrize("constant", ["dram_bytes_per_s", "clock_hz", "loads_per_core_per_clk"])
def test_better_cpu_never_raises_the_time(constant: str) -> None:
    better = replace(cpu(), **{constant: getattr(cpu(), constant) * 2})
    space = dividing_points(LAYER, "direct")
    before = contract_bound(LAYER, space, cpu()).seconds
    assert (contract_bound(LAYER, space, better).seconds <= before * (1 + 1e-12)).all()


def test_terms_of_one_point_by_hand() -> None:
    hardware = gpu()
    space = contract_space([TILE])
    bound = contract_bound(LAYER, space, hardware)
    threads, blocks = 16 // 4 * 8 * (8 // 4), 64 // 16 * 7 * 7
    loads = 64 * (3 * 6 + 4 * 9) / 4
    fma = 16 * 64 * 9
    fill = 64 * (9 * 9 + 16 * 9) * 4 / 128
    assert TILE.threads == threads == 64
    assert bound.terms["WB"][0] == pytest.approx(blocks / 132 / 2)
    assert bound.terms["TQ"][0] == 1.0
    assert bound.terms["ISS"][0] == pytest.approx(fma / (fma + loads))
    assert bound.terms["SMB"][0] == pytest.approx(min(1.0, fma * 32 / 128 / (loads + fill / 2)))
    chain = 8 * (33 + 23 + 4 * 8 * 9)
    assert bound.terms["LAT"][0] == pytest.approx(min(1.0, LAYER.flops / (2 * 128 * 132) / chain))
    local = bound.terms["WB"][0] * min(bound.terms["SMB"][0], bound.terms["ISS"][0])
    assert bound.ub[0] == pytest.approx(min(local, bound.terms["LAT"][0], bound.terms["L2"][0]))
    assert bound.at(0).limit == "WB"
    assert bound.at(0).seconds == pytest.approx(LAYER.flops / hardware.peak_flops_per_s / bound.ub[0])


def test_global_traffic_is_clipped_to_the_image() -> None:
    whole = contract_point(1, 64, 56, 56, 1, 8, 8, 8, 8)
    g = contract_geometry(LAYER, contract_space([whole]))
    assert g.fill_words_average[0] == 64 * (56 * 56 + 64 * 9)
    assert LAYER.compulsory_bytes == 4 * (64 * 56 * 56 + 64 * 64 * 9 + 64 * 56 * 56)


def test_prefetching_shortens_the_latency_chain() -> None:
    deep = conv_problem(1, 512, 7, 7, 512, 3, 3, pad=(1, 1, 1, 1))
    one = contract_point(1, 8, 7, 7, 1, 1, 1, 1, 4)
    two = replace(one, stages=2)
    bound = contract_bound(deep, contract_space([one, two]), gpu())
    assert bound.terms["LAT"][1] > bound.terms["LAT"][0]


@pytest.mark.parametrize(
    ("parameters", "legal"),
    [
        (contract_point(1, 32, 1, 32, 1, 1, 1, 1, 1), True),
        (contract_point(1, 64, 1, 32, 1, 1, 1, 1, 1), False),
        (contract_point(1, 64, 8, 32, 1, 32, 1, 8, 1), False),
        (contract_point(1, 64, 8, 32, 1, 8, 1, 16, 1), True),
        (contract_point(1, 64, 56, 56, 1, 8, 8, 2, 8), False),
        (contract_point(1, 64, 8, 8, 1, 4, 4, 4, 64), True),
    ],
)
def test_legality(parameters: ContractParameters, legal: bool) -> None:
    bound = contract_bound_of(LAYER, parameters, gpu())
    assert (bound.ub > 0) is legal
    assert np.isfinite(bound.seconds) is np.bool_(legal)
    assert legal or bound.limit == "COEF"


def test_the_shared_memory_limit_is_the_devices() -> None:
    wide = contract_point(1, 64, 8, 8, 1, 4, 4, 4, 64)
    small = replace(gpu(), smem_per_block_max_bytes=49152)
    assert contract_bound_of(LAYER, wide, gpu()).ub > 0
    assert contract_bound_of(LAYER, wide, small).ub == 0.0
    exactly = matmul_problem(1024, 1024, 1024)
    full = contract_point(1, 64, 1, 64, 1, 4, 1, 4, 96)
    assert contract_bound_of(exactly, full, small).ub > 0


def test_occupancy_counts_registers_shared_memory_and_warps() -> None:
    problem = matmul_problem(1024, 1024, 1024)
    points = [
        contract_point(1, 64, 1, 64, 1, 8, 1, 8, 8),
        contract_point(1, 128, 1, 128, 1, 8, 1, 8, 8),
        contract_point(1, 64, 1, 64, 1, 8, 1, 8, 96),
    ]
    space = contract_space(points)
    got = occupancy(problem, space, gpu(), contract_geometry(problem, space), Assumptions())
    assert got.tolist() == [65536 // (64 * 67), 65536 // (256 * 67), 233472 // (49152 + 1024)]


def test_weaker_assumptions_never_raise_the_bound() -> None:
    space = dividing_points(LAYER)
    strict = contract_bound(LAYER, space, gpu()).seconds
    for weaker in (Assumptions(l1_reuse=True), Assumptions(cold_l2=False)):
        assert (contract_bound(LAYER, space, gpu(), weaker).seconds <= strict).all()


def test_bounds_of_streaming_kernels() -> None:
    big = global_bound(StreamProblem(4 << 28, 4 << 28, 1 << 28, 1 << 28), gpu())
    assert big.limit == "GM"
    assert big.seconds == pytest.approx((8 << 28) / 3.35e12)
    assert global_bound(StreamProblem(4, 4, 1, 1), gpu()).limit == "LAUNCH"
    warm = global_bound(StreamProblem(4 << 22, 4 << 22, 1 << 22, 1), gpu(), Assumptions(cold_l2=False))
    assert warm.limit == "L2"


def test_a_time_below_the_bound_is_a_violation() -> None:
    bound = contract_bound_of(LAYER, TILE, gpu(), Assumptions(cold_l2=False, l1_reuse=True))
    assert check_measured(LAYER, TILE, gpu(), bound.seconds * 1.5) is None
    assert check_measured(LAYER, TILE, gpu(), bound.seconds * 0.99) is None
    violation = check_measured(LAYER, TILE, gpu(), bound.seconds * 0.9)
    assert violation is not None
    assert violation.bound == bound
    assert "the bound says at least" in str(violation)


def test_check_measured_refuses_nonsense() -> None:
    rows = RowReduceProblem(10, 10, 400, 40, 100)
    assert check_measured(rows, RowReduceParameters(1, 32, 1), gpu(), 1.0) is None
    with pytest.raises(ValueError, match="positive"):
        check_measured(LAYER, TILE, gpu(), 0.0)
    with pytest.raises(ValueError, match="contract parameters"):
        check_measured(LAYER, RowReduceParameters(1, 32, 1), gpu(), 1.0)


def test_problems_are_validated() -> None:
    with pytest.raises(InputError, match=r"ContractProblem\.k"):
        replace(LAYER, k=0)
    with pytest.raises(InputError, match="reaches past"):
        replace(LAYER, h=57)
    with pytest.raises(InputError, match="four"):
        replace(LAYER, pad=(1, 1, 1, -1))


def test_flops_and_groups() -> None:
    assert LAYER.flops == 2 * 64 * 64 * 56 * 56 * 9
    batched: ContractProblem = matmul_problem(128, 64, 32, batch=12)
    assert batched.flops == 2 * 12 * 128 * 64 * 32
    assert batched.compulsory_bytes == 4 * 12 * (128 * 32 + 32 * 64 + 128 * 64)
    g = contract_geometry(batched, contract_space([contract_point(1, 64, 1, 64, 1, 4, 1, 4, 8)]))
    assert g.blocks.tolist() == [12 * 2]


def test_prefetching_into_registers_needs_no_second_buffer() -> None:
    space = contract_space([contract_point(1, 64, 8, 8, 1, 4, 1, 4, 64, 2)])
    small = replace(gpu(), smem_per_block_max_bytes=65536 * 3)
    twice = contract_bound(LAYER, space, small).ub[0]
    once = contract_bound(LAYER, space, small, Assumptions(double_buffered=False)).ub[0]
    assert twice == 0.0
    assert once > 0.0


def test_traffic_terms_by_hand() -> None:
    thin = matmul_problem(1 << 14, 1 << 14, 4)
    tile = contract_point(1, 64, 1, 128, 1, 8, 1, 8, 4)
    bound = contract_bound(thin, contract_space([tile]), gpu())
    seconds_at_peak = thin.flops / gpu().peak_flops_per_s
    compulsory = 4 * (2 * (1 << 14) * 4 + (1 << 28))
    assert bound.terms["GM"][0] == pytest.approx(seconds_at_peak / (compulsory / 3.35e12))
    blocks = (1 << 14) // 64 * ((1 << 14) // 128)
    through_l2 = 4 * (blocks * (64 + 128) * 4 + (1 << 28))
    assert bound.terms["L2"][0] == pytest.approx(seconds_at_peak / (through_l2 / (6154 * 1.98e9)))
    assert bound.at(0).limit == "GM"
    assert bound.at(0).seconds == pytest.approx(compulsory / 3.35e12)


def test_bounds_of_data_in_dram_and_in_caches():
    """Sums over rows of 12.6 MB, 3.1 us measured in a loop: 3.8 us from DRAM, 1.0 from the L2."""
    hardware = gpu()
    rows = RowReduceProblem(49_152, 64, 12_582_912, 196_608, 2 * 49_152 * 64)
    bound = global_bound(rows, hardware)
    assert bound.seconds == pytest.approx(rows.compulsory_bytes / hardware.dram_bytes_per_s)
    assert bound.warm_s == pytest.approx(rows.compulsory_bytes / hardware.l2_bytes_per_s)
    assert bound.warm_s < 3.0e-6 < bound.seconds
    assert check_measured(rows, RowReduceParameters(4, 32, 8), hardware, 3.0e-6) is None
    assert check_measured(rows, RowReduceParameters(4, 32, 8), hardware, 1.0e-6) is not None
    many = replace(rows, bytes_read=100 * rows.bytes_read)
    beyond = (many.compulsory_bytes - hardware.l2_bytes) / hardware.dram_bytes_per_s
    assert global_bound(many, hardware).warm_s == pytest.approx(beyond)


@pytest.mark.parametrize("name", ["H100", "opencl"])
def test_no_warm_bound_is_above_the_bound(name):
    hardware = load_hardware(name)
    points = contract_bound(LAYER, contract_space([TILE]), hardware)
    loop = contract_bound(LAYER, contract_space([TILE]), hardware, Assumptions(cold_l2=False, l1_reuse=True))
    assert points.at(0).warm_s <= loop.at(0).seconds <= points.at(0).seconds


def test_every_term_of_a_bound_has_words():
    """A report refuses facts of a kernel whose limit nobody can name."""
    terms = set(LOCAL_TERMS) | {PEAK, LAUNCH}
    for path in Path(attention.__file__).parents[1].rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("bound_"):
                found = (n for n in ast.walk(function) if isinstance(n, ast.Dict))
                terms |= {k.value for d in found for k in d.keys if isinstance(k, ast.Constant)}
    assert {"TENSOR", "EXP", "L2"} <= terms <= set(LIMITS)
