"""Parameters of kernels of gates on lanes by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import Func
from tilewright.ir.hardware_facts import LINE_BYTES, VECTOR_BYTES, WARP
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
from tilewright.passes.kernels.gated_lanes.parameters import VECTOR, GatedLanesParameters
from tilewright.passes.kernels.gated_lanes.view import gated_lanes_view
from tilewright.passes.kernels.resident_tiles.view import TilesView, column_of

#: registers of a thread beside sums, factors and elements of parameters
_OTHER_REGISTERS = 32
#: rows of a block, at most, and rows of a thread
_MOST_ROWS, _TILES = 64, (1, 2, 4, 8)
#: units of a block
_UNITS = (4, 8, 16, 32)
#: threads of a block
_THREADS = (64, 128, 256, 512)
#: instructions of a step beside loads and multiplications
_STEP_INSTRUCTIONS = 8


def choose_gated_lanes(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel as a product with gates of units on lanes, or one clause that says why it cannot be one."""
    view = gated_lanes_view(kernel)
    if isinstance(view, str):
        return view
    if not isinstance(hardware, GpuHardware):
        return "the device has no lanes that share memory"
    space = [p for p in _space(view) if fits(p, view, _registers, hardware)]
    if not space:
        return f"{view.rows} rows of {view.units} units cannot be divided over blocks"
    seconds = [gated_lanes_s(view, p, hardware) for p in space]
    bound = global_bound(problem_of_gates(kernel, view), hardware)
    return decided_by_estimate(kernel, "product_gates_lanes", space, seconds, bound)


def _space(view: TilesView) -> Iterator[GatedLanesParameters]:
    rows = [r for r in range(1, min(view.rows, _MOST_ROWS) + 1) if view.rows % r == 0]
    for r in rows:
        for tile in _TILES:
            for units in _UNITS:
                for threads in _THREADS:
                    sets = threads * tile // (units * r)
                    yield GatedLanesParameters(r, units, tile, sets)


def _registers(p: GatedLanesParameters, view: TilesView) -> int:
    """Registers of a thread: sums and factors, then elements of parameters."""
    multiplied = view.most_sums * (p.tile + VECTOR) + VECTOR
    return multiplied + sum(map(len, view.of_row.read)) * p.points() + _OTHER_REGISTERS


def gated_lanes_s(view: TilesView, p: GatedLanesParameters, hardware: GpuHardware) -> float:
    """Seconds of a kernel: state and weights to shared memory, products, parts of sums, maps, results.

    A block does one of these after the other, as a kernel on tensor cores does (`gated_s`), with the start
    and the fetch of other products that copy in the same way.
    """
    fit, smem = hardware.matrix, hardware.smem_bytes_per_sm_per_clk
    launch = launch_of(p, view, _registers)
    per_sm, issue = launch.blocks_per_sm(hardware), issue_clk(launch, hardware)
    fetch_clk = arrival_clk(launch, *p.fetched_bytes(view), hardware)
    words = p.totals(view) * p.sets / p.threads()
    parts_clk = per_sm * 2 * p.parts_bytes(view) / smem + words * PART_INSTRUCTIONS * issue
    parts_clk += (2 + (p.sets > 1)) * (hardware.rows.barrier_clk + hardware.lat_smem_clk)
    clk = fit.block_clk + fetch_clk + _product_clk(view, p, hardware, issue) + parts_clk
    clk += maps_clk(view, p.points(), issue, hardware)
    return float(hardware.contract.launch_s + clk / hardware.clock_hz)


def _product_clk(view: TilesView, p: GatedLanesParameters, hardware: GpuHardware, issue: float) -> float:
    """Cycles of the products of a multiprocessor's blocks.

    issue: cycles in which each warp of them issues one instruction. A step takes its instructions, or its
    loads at the rate of shared memory, of which a warp's threads share some; or, where few warps do that, the
    wait for its loads beside its multiplications.
    """
    gates = view.most_sums
    loads = gates * (1 if _along_rows(view) else VECTOR) + p.tile
    products = gates * p.tile * VECTOR
    units = gcd(WARP, p.units)
    groups = gcd(WARP // units, p.row_groups())
    sets = WARP // (units * groups)
    lines = [max(1.0, n * sets * VECTOR_BYTES / LINE_BYTES) for n in (units, groups)]
    port = (gates * lines[0] + p.tile * lines[1]) * LINE_BYTES / hardware.smem_bytes_per_sm_per_clk
    warps = p.threads() // WARP * -(-p.blocks(view) // hardware.sm_count)
    alone = (
        hardware.lat_smem_clk + (loads + products + _STEP_INSTRUCTIONS) / hardware.estimate_issue_efficiency
    )
    return p.steps(view) * max((loads + products + _STEP_INSTRUCTIONS) * issue, port * warps, alone)


def _along_rows(view: TilesView) -> bool:
    """Return whether all weights are read along their rows, so that neighbours in a sum are one vector."""
    return all((column := column_of(at)) is not None and column[0] for _, at in view.gates)
