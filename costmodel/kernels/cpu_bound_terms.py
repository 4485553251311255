"""The terms of the sound bound for contract kernels on a CPU, as fractions of all cores' SIMD FMA peak."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.hardware.description import CpuHardware
from tilewright.costmodel.kernels.geometry import Geometry, vector_width
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import FloatArray


def cpu_lane(space: ContractSpace, hardware: CpuHardware, g: Geometry) -> FloatArray:
    """LANE: SIMD lanes one work-group can fill, even when the compiler vectorises across its work-items."""
    lanes = vector_width(space.k_t, hardware.simd_lanes)
    return np.minimum(1.0, lanes * g.threads / hardware.simd_lanes)


def cpu_iss(hardware: CpuHardware, g: Geometry) -> FloatArray:
    """ISS: cycles of the FMA pipes against those of the load ports, all accesses full vectors."""
    fma_clk = g.fma / hardware.fma_per_core_per_clk
    load_clk = g.load_words / hardware.loads_per_core_per_clk
    return np.minimum(1.0, fma_clk / load_clk)


def cpu_lat(problem: ContractProblem, hardware: CpuHardware, g: Geometry) -> FloatArray:
    """LAT: seconds at peak against one accumulator's chain of dependent FMAs."""
    chain_s = hardware.lat_fma_clk * g.c_padded * problem.taps / hardware.clock_hz
    return np.asarray(np.minimum(1.0, problem.flops / hardware.peak_flops_per_s / chain_s))
