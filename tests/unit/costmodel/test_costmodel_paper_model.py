"""The printed model reproduces the published numbers, and is no bound."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tilewright.costmodel import GpuHardware, contract_bound, conv_problem, load_hardware
from tilewright.costmodel.kernels.bound import BoundArrays
from tilewright.costmodel.kernels.bound_terms import wb
from tilewright.costmodel.kernels.enumeration import enumerate_contract
from tilewright.costmodel.kernels.geometry import contract_geometry
from tilewright.costmodel.kernels.paper_model import (
    PaperModel,
    deepcuts_printed,
    printed_coef_resource,
    printed_sm_ratio,
    printed_wb_ratio,
    printed_window,
)
from tilewright.costmodel.kernels.parameters import ContractSpace, contract_point, contract_space
from tilewright.costmodel.kernels.problem import ContractProblem, matmul_problem
from tilewright.costmodel.kernels.windows import Axis

SGEMM_TILE = contract_point(1, 128, 1, 128, 1, 8, 1, 8, 8)
SAME = (1, 1, 1, 1)
POINTWISE = replace(conv_problem(1, 64, 56, 56, 256, 1, 1), h=56, w=56, h_in=56, w_in=56)
LAYER = conv_problem(1, 64, 56, 56, 64, 3, 3, pad=SAME)
STRIDED = conv_problem(1, 128, 56, 56, 128, 3, 3, stride=(2, 2), pad=SAME)


def gpu(name: str) -> GpuHardware:
    hardware = load_hardware(name)
    assert isinstance(hardware, GpuHardware)
    return hardware


def divisor_space(problem: ContractProblem) -> tuple[ContractSpace, PaperModel, BoundArrays]:
    (space,) = enumerate_contract(problem, gpu("H100"), "divisors")
    return space, deepcuts_printed(problem, space, gpu("H100")), contract_bound(problem, space, gpu("H100"))


@pytest.mark.parametrize(
    ("blocks", "printed", "true"), [(131, 0.0076, 0.9924), (133, 0.996, 0.504), (1, 0.992, 0.0076)]
)
def test_wave_balance_is_mirrored_in_print(blocks: int, printed: float, true: float) -> None:
    assert printed_wb_ratio(np.array([blocks]), 132)[0] == pytest.approx(printed, abs=5e-4)
    assert wb(np.array([blocks]), 132)[0] == pytest.approx(true, abs=5e-4)


def test_printed_wave_balance_is_below_the_true_one_for_half_of_all_block_counts() -> None:
    blocks = np.arange(1, 132 * 50 + 1)
    assert np.mean(printed_wb_ratio(blocks, 132) < wb(blocks, 132) - 1e-12) == pytest.approx(0.49, abs=0.01)


@pytest.mark.parametrize(("device", "sm_ratio", "pul"), [("V100", 0.42, 0.395), ("H100", 0.28, 0.250)])
def test_sgemm_tile(device: str, sm_ratio: float, pul: float) -> None:
    model = deepcuts_printed(matmul_problem(4096, 4096, 4096), contract_space([SGEMM_TILE]), gpu(device))
    assert model.sm_ratio[0] == pytest.approx(sm_ratio, abs=5e-3)
    assert model.pul[0] == pytest.approx(pul, abs=5e-4)


@pytest.mark.parametrize(
    ("tile", "filter", "stride", "pad", "printed"),
    [(1, 1, 1, 0, 3), (8, 1, 1, 0, 10), (8, 3, 1, 1, 10), (8, 3, 2, 1, 5), (8, 7, 2, 3, 5), (8, 5, 1, 2, 10)],
)
def test_printed_window(tile: int, filter: int, stride: int, pad: int, printed: int) -> None:
    assert printed_window(np.array([tile]), Axis(56, 56, filter, stride, 1, pad))[0] == printed


def test_the_two_texts_differ_where_they_should() -> None:
    space = contract_space([SGEMM_TILE])
    problem = matmul_problem(4096, 4096, 4096)
    by_pldi = printed_sm_ratio(problem, space, gpu("V100"), "pldi")
    by_thesis = printed_sm_ratio(problem, space, gpu("V100"), "thesis")
    assert by_pldi[0] == pytest.approx(by_thesis[0] * 16 / 9)
    assert printed_wb_ratio(np.array([133]), 132, "thesis")[0] == pytest.approx(1 - 133 / 132 / 2)
    pldi = deepcuts_printed(POINTWISE, space, gpu("H100"), "pldi")
    thesis = deepcuts_printed(POINTWISE, space, gpu("H100"), "thesis")
    assert pldi.gm_ratio[0] != thesis.gm_ratio[0]


def test_printed_legality_is_strict_and_blind_to_registers() -> None:
    full = contract_point(1, 64, 1, 64, 1, 2, 1, 2, 1)
    huge = contract_point(1, 64, 56, 56, 1, 32, 8, 8, 1)
    legal = printed_coef_resource(LAYER, contract_space([full, huge]), gpu("H100"), None)
    assert full.threads == 1024
    assert prod(huge.thread.values()) == 2048
    assert legal.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("problem", "printed", "sound", "blocks"),
    [(POINTWISE, 0.197, 0.101, 14), (LAYER, 0.803, 0.028, 4), (STRIDED, 0.966, 0.014, 2)],
)
def test_literal_best_pick_and_its_sound_bound(
    problem: ContractProblem, printed: float, sound: float, blocks: int
) -> None:
    space, model, bound = divisor_space(problem)
    value = model.gm_ratio * model.sm_ratio * model.wb_ratio * (bound.ub > 0)
    best = int(value.argmax())
    assert value[best] == pytest.approx(printed, abs=5e-4)
    assert bound.ub[best] == pytest.approx(sound, abs=5e-4)
    assert contract_geometry(problem, space).blocks[best] == blocks


@pytest.mark.parametrize(("device", "pul"), [("V100", 0.9875), ("H100", 0.992)])
def test_literal_model_picks_one_block_for_the_whole_layer(device: str, pul: float) -> None:
    (space,) = enumerate_contract(LAYER, gpu(device), "divisors")
    opt_in = gpu(device).smem_per_block_max_bytes
    model = deepcuts_printed(LAYER, space, gpu(device), smem_limit_bytes=opt_in)
    best = int(model.pul.argmax())
    assert model.pul[best] == pytest.approx(pul, abs=5e-4)
    assert contract_geometry(LAYER, space).blocks[best] == 1


@pytest.mark.parametrize(
    ("problem", "shares"), [(POINTWISE, (0.93, 1.0, 0.63, 0.98)), (LAYER, (0.59, 1.0, 0.49, 0.85))]
)
def test_most_printed_values_lie_below_the_sound_bound(
    problem: ContractProblem, shares: tuple[float, ...]
) -> None:
    _, model, bound = divisor_space(problem)
    legal = bound.ub > 0
    t = bound.terms
    pairs = [
        (model.gm_ratio, np.minimum(t["GM"], t["L2"])),
        (model.sm_ratio, np.minimum(t["SMB"], t["ISS"])),
        (model.wb_ratio, t["WB"]),
        (model.gm_ratio * model.sm_ratio * model.wb_ratio, bound.ub),
    ]
    measured = [float(np.mean((printed < sound)[legal])) for printed, sound in pairs]
    assert measured == pytest.approx(shares, abs=0.1)
