"""Parameters of kernels of gates by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import Func
from tilewright.ir.hardware_facts import MMA_M, MMA_N
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import decided_by_estimate
from tilewright.passes.kernels.gated.division import (
    PART_INSTRUCTIONS,
    arrival_clk,
    fits,
    issue_clk,
    launch_of,
    maps_clk,
    problem_of_gates,
)
from tilewright.passes.kernels.gated.parameters import GatedParameters
from tilewright.passes.kernels.gated.view import gated_view
from tilewright.passes.kernels.resident_tiles.parameters import LANE_SUMS
from tilewright.passes.kernels.resident_tiles.view import TilesView

#: registers of a thread beside sums, fragments and elements of parameters
_OTHER_REGISTERS = 40
#: registers of a lane for fragments of a tile of rows, and of columns
_ROW_REGISTERS, _COLUMN_REGISTERS = 4, 2
#: units of a block, in groups of neighbours, and sets of warps
_GROUPS = (1, 2, 4, 8)
_SETS = (1, 2, 4, 8, 16)


def choose_gated(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel as a product with gates of units, or one clause that says why it cannot be one."""
    view = gated_view(kernel)
    if isinstance(view, str):
        return view
    if not isinstance(hardware, GpuHardware) or not _products_per_clk(view, hardware):
        return "the device has no tensor cores for such factors"
    rows = sorted({*range(MMA_M, view.rows, MMA_M), view.rows})
    space = [
        p
        for r in rows
        for groups in _GROUPS
        for sets in _SETS
        if fits(p := GatedParameters(r, groups * MMA_N, sets), view, _registers, hardware)
    ]
    if not space:
        return f"{view.rows} rows of {view.units} units cannot be divided over blocks"
    seconds = [gated_s(view, p, hardware) for p in space]
    bound = global_bound(problem_of_gates(kernel, view), hardware)
    return decided_by_estimate(kernel, "product_gates", space, seconds, bound)


def _products_per_clk(view: TilesView, hardware: GpuHardware) -> int:
    """Products of a multiprocessor's tensor cores per cycle, at their peak."""
    narrow = itemsize(view.dtype) == 2
    return hardware.tensor_fma_16bit_per_sm_per_clk if narrow else hardware.tensor_fma_tf32_per_sm_per_clk


def _registers(p: GatedParameters, view: TilesView) -> int:
    """Registers of a thread: sums and fragments, then elements of parameters."""
    multiplied = p.tiles() * (view.most_sums * LANE_SUMS + _ROW_REGISTERS)
    read = sum(map(len, view.of_row.read)) * p.points()
    return multiplied + view.most_sums * _COLUMN_REGISTERS + read + _OTHER_REGISTERS


def gated_s(view: TilesView, p: GatedParameters, hardware: GpuHardware) -> float:
    """Seconds of a kernel: state and weights to shared memory, products, parts of sums, maps, results.

    A block does one of these after the other. Each takes as long as its data at its rate, or as its
    instructions, behind the latency of what it waits for, with the coefficients of other products on tensor
    cores: start, fetch and steps are the same code.
    """
    fit, smem = hardware.matrix, hardware.smem_bytes_per_sm_per_clk
    launch = launch_of(p, view, _registers)
    per_sm, issue = launch.blocks_per_sm(hardware), issue_clk(launch, hardware)
    fetch_clk = arrival_clk(launch, *p.fetched_bytes(view), hardware)
    fma = _products_per_clk(view, hardware) * hardware.mma_sync_share * fit.loop_share
    rows = p.tiles() * MMA_M
    multiplied = per_sm * rows * p.units * view.most_sums * view.length / fma
    # Each group of units reads the rows of the block anew.
    row_bytes = view.length * itemsize(view.dtype)
    loaded = per_sm * (rows * p.groups() + p.units * view.most_sums) * row_bytes / smem
    product_clk = max(multiplied, loaded, p.steps(view) * fit.step_clk)
    words = rows * p.units * view.most_sums * p.sets / p.threads()
    parts_clk = 2 * (per_sm * p.parts_bytes(view) / smem + words * PART_INSTRUCTIONS * issue)
    parts_clk += 2 * (hardware.rows.barrier_clk + hardware.lat_smem_clk)
    clk = fit.block_clk + fetch_clk + product_clk + parts_clk + maps_clk(view, p.points(), issue, hardware)
    return float(hardware.contract.launch_s + clk / hardware.clock_hz)
