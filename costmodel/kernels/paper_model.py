"""The performance model as the papers print it (`deepcuts_printed`), kept to reproduce their numbers.

Its value PUL = GMRatio SMRatio WBRatio COEF_resource is not a bound: window rows, wave balance, latency
hiding and cache reuse are mis-modelled. Use `tilewright.costmodel.kernels.bound` for decisions. The two texts
differ in the filter loads and transactions ("pldi" divides the former by the transaction size and drops the
ceiling of the latter) and in the wave balance ("thesis" loses the modulus); "literal" takes the thesis, with
the modulus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.geometry import ceil_div
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import Axis, FloatArray, IntArray

Variant = Literal["literal", "pldi", "thesis"]

TRANSACTION_ELEMENTS = 8
"""TRANS_global: float32 words of one 32-byte sector."""


@dataclass(frozen=True, eq=False)
class PaperModel:
    """The printed ratios, one entry per point; `pul` is their product."""

    gm_ratio: FloatArray
    sm_ratio: FloatArray
    wb_ratio: FloatArray
    coef_resource: FloatArray

    @property
    def pul(self) -> FloatArray:
        """PUL: the printed performance upper limit as a fraction of peak."""
        return self.gm_ratio * self.sm_ratio * self.wb_ratio * self.coef_resource


def deepcuts_printed(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    variant: Variant = "literal",
    *,
    coef_bc: float | FloatArray = 1.0,
    smem_limit_bytes: int | None = None,
) -> PaperModel:
    """All printed ratios of every point. `coef_bc` is the bank-conflict coefficient, 1 when conflict-free."""
    blocks = ceil_div(problem.n, space.n_b) * ceil_div(problem.k, space.k_b)
    blocks = problem.groups * blocks * ceil_div(problem.h, space.h_b) * ceil_div(problem.w, space.w_b)
    return PaperModel(
        gm_ratio=printed_gm_ratio(problem, space, hardware, variant),
        sm_ratio=printed_sm_ratio(problem, space, hardware, variant, coef_bc),
        wb_ratio=printed_wb_ratio(blocks, hardware.sm_count, variant),
        coef_resource=printed_coef_resource(problem, space, hardware, smem_limit_bytes),
    )


def printed_window(tile: IntArray, axis: Axis) -> IntArray:
    """The printed input window floor((h + F - 2P) / S) + 1, wrong unless F = 3 and S = P = 1 or the like."""
    return (np.asarray(tile, np.int64) + axis.filter - 2 * axis.pad) // axis.stride + 1


def printed_gm_ratio(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, variant: Variant
) -> FloatArray:
    """GMRatio = min(1, OI_TB / (R_peak / BW)) with OI_TB = COMP_TB / (4 TRANS_global NUM_trans)."""
    computation = 2.0 * (space.n_b * space.k_b * space.h_b * space.w_b) * (problem.c * problem.taps)
    rows, cols = _windows(problem, space.h_b, space.w_b)
    if variant == "pldi":
        sectors = np.full(len(space), TRANSACTION_ELEMENTS, dtype=np.int64)
    else:
        sectors = ceil_div(cols, TRANSACTION_ELEMENTS)
    filters = space.k_b * (problem.c * problem.taps) / TRANSACTION_ELEMENTS
    transactions = (space.n_b * problem.c) * (rows * sectors) + filters
    intensity = computation / (problem.element_bytes * TRANSACTION_ELEMENTS * transactions)
    return np.minimum(1.0, intensity * hardware.dram_bytes_per_s / hardware.peak_flops_per_s)


def printed_sm_ratio(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    variant: Variant,
    coef_bc: float | FloatArray = 1.0,
) -> FloatArray:
    """SMRatio = min(1, (COMP_thread / N_load) / (LAT_shared COEF_bc))."""
    computation = 2.0 * space.accumulators * (problem.c * problem.taps)
    rows, cols = _windows(problem, space.h_t, space.w_t)
    filters = space.k_t * (problem.c * problem.taps)
    loads = space.n_t * problem.c * (rows * cols) + filters / (
        TRANSACTION_ELEMENTS if variant == "pldi" else 1
    )
    return np.minimum(1.0, computation / loads / (hardware.lat_smem_printed_clk * coef_bc))


def printed_wb_ratio(blocks: IntArray, sm_count: int, variant: Variant = "literal") -> FloatArray:
    """WBRatio = 1 - ((N_TB mod N_SM) / N_SM) / ceil(N_TB / N_SM); "thesis" drops "mod" as printed."""
    remainder = blocks if variant == "thesis" else blocks % sm_count
    return 1.0 - (remainder / sm_count) / ceil_div(blocks, sm_count)


def printed_coef_resource(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, smem_limit_bytes: int | None
) -> FloatArray:
    """COEF_resource: 1 where threads and shared memory are strictly below their limits; registers are
    ignored.
    """
    rows, cols = _windows(problem, space.h_b, space.w_b)
    words = space.c_step * (space.n_b * rows * cols + space.k_b * problem.taps)
    limit = smem_limit_bytes or hardware.smem_per_block_default_bytes
    legal = (space.threads < hardware.max_threads_per_block) & (problem.element_bytes * words < limit)
    return legal.astype(np.float64)


def _windows(problem: ContractProblem, h_tile: IntArray, w_tile: IntArray) -> tuple[IntArray, IntArray]:
    """Printed windows of both axes; a matrix product has a row of its own in the papers, without windows."""
    if problem.taps == 1 and problem.h_in == 1:
        return h_tile, w_tile
    return printed_window(h_tile, problem.axis_h), printed_window(w_tile, problem.axis_w)
