"""Parameters of kernels of gates by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from tilewright.costmodel import Hardware, LineProblem
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.relays import Footprint
from tilewright.ir import Func, InputError
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, MMA_M, MMA_N, REGISTER_UNIT, WARP
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.gated.parameters import GatedParameters
from tilewright.passes.kernels.gated.view import gated_view
from tilewright.passes.kernels.kernel_problem import instructions, traffic
from tilewright.passes.kernels.resident_tiles.parameters import LANE_SUMS
from tilewright.passes.kernels.resident_tiles.view import TilesView

#: registers of a thread beside sums, fragments and elements of parameters
_OTHER_REGISTERS = 40
#: registers of a lane for fragments of a tile of rows, and of columns
_ROW_REGISTERS, _COLUMN_REGISTERS = 4, 2
#: units of a block, in groups of neighbours, and sets of warps
_GROUPS = (1, 2, 4, 8)
_SETS = (1, 2, 4, 8, 16)
#: instructions of a thread per word of a part of a sum, to store it and to add it
_PART_INSTRUCTIONS = 3


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
        if _fits(p := GatedParameters(r, groups * MMA_N, sets), view, hardware)
    ]
    if not space:
        return f"{view.rows} rows of {view.units} units cannot be divided over blocks"
    seconds = [gated_s(view, p, hardware) for p in space]
    best = min(range(len(space)), key=seconds.__getitem__)
    bound = global_bound(problem_of_gates(kernel, view), hardware)
    return decided(kernel, "product_gates", ParameterChoice(space[best], bound, seconds[best], len(space)))


def _products_per_clk(view: TilesView, hardware: GpuHardware) -> int:
    """Products of a multiprocessor's tensor cores per cycle, at their peak."""
    narrow = itemsize(view.dtype) == 2
    return hardware.tensor_fma_16bit_per_sm_per_clk if narrow else hardware.tensor_fma_tf32_per_sm_per_clk


def _fits(p: GatedParameters, view: TilesView, hardware: GpuHardware) -> bool:
    """Return whether a block's rows and units are whole ones, and fit its shared memory and registers."""
    try:
        p.check(view)
    except InputError:
        return False
    if p.threads() > hardware.max_threads_per_block:
        return False
    if p.shared_bytes(view) > hardware.smem_per_block_max_bytes:
        return False
    share = hardware.registers_per_sm // p.threads() // REGISTER_UNIT * REGISTER_UNIT
    return _registers(p, view) <= min(share, hardware.max_registers_per_thread)


def _registers(p: GatedParameters, view: TilesView) -> int:
    """Registers of a thread: sums and fragments, then elements of parameters."""
    multiplied = p.tiles() * (view.most_sums * LANE_SUMS + _ROW_REGISTERS)
    read = sum(map(len, view.of_row.read)) * p.points()
    return multiplied + view.most_sums * _COLUMN_REGISTERS + read + _OTHER_REGISTERS


def problem_of_gates(kernel: Func, view: TilesView) -> LineProblem:
    """One line per unit and row: its sums and maps."""
    written = sum(v.tensor.nbytes for v in kernel.body.ops[-1].operands)
    flops = 2 * view.most_sums * view.length * view.units * view.rows
    lines = view.units * view.rows
    return LineProblem(lines, 1, 1, max(0, traffic(kernel) - written), written, flops)


def arrival_clk(launch: Footprint, state: int, weights: int, hardware: GpuHardware) -> float:
    """Cycles from the end of a kernel's wait until these bytes of state and of weights are in shared memory.

    Threads of each block copy both, the weights before they wait. Where launches take turns, weights come
    while the blocks of the launch before end and its results become visible.
    """
    fit = hardware.matrix
    per_sm, warps = launch.blocks_per_sm(hardware), launch.threads // WARP
    issue = per_sm * -(-warps // hardware.schedulers_per_sm) / hardware.estimate_issue_efficiency
    fetched = state + weights
    copies = fetched / ASYNC_COPY_BYTES[0] / launch.threads * fit.copy_instructions * issue
    clk = max(per_sm * fetched / fit.l2_bytes_per_sm_per_clk, copies)
    if launch.takes_turns_after(launch, hardware):
        clk = max(clk * state / fetched, clk - hardware.relay.turn_weights_s * hardware.clock_hz)
    return fit.fetch_clk + clk


def gated_s(view: TilesView, p: GatedParameters, hardware: GpuHardware) -> float:
    """Seconds of a kernel: state and weights to shared memory, products, parts of sums, maps, results.

    A block does one of these after the other. Each takes as long as its data at its rate, or as its
    instructions, behind the latency of what it waits for, with the coefficients of other products on tensor
    cores: start, fetch and steps are the same code.
    """
    fit, smem = hardware.matrix, hardware.smem_bytes_per_sm_per_clk
    warps, per_sm = p.threads() // WARP, -(-p.blocks(view) // hardware.sm_count)
    issue = per_sm * -(-warps // hardware.schedulers_per_sm) / hardware.estimate_issue_efficiency
    launch = Footprint(p.blocks(view), p.threads(), p.shared_bytes(view), _registers(p, view))
    state = p.rows * view.length * itemsize(view.dtype)
    fetch_clk = arrival_clk(launch, state, p.fetched_bytes(view) - state, hardware)
    fma = _products_per_clk(view, hardware) * hardware.mma_sync_share * fit.loop_share
    rows = p.tiles() * MMA_M
    multiplied = per_sm * rows * p.units * view.most_sums * view.length / fma
    # Each group of units reads the rows of the block anew.
    row_bytes = view.length * itemsize(view.dtype)
    loaded = per_sm * (rows * p.groups() + p.units * view.most_sums) * row_bytes / smem
    product_clk = max(multiplied, loaded, p.steps(view) * fit.step_clk)
    words = rows * p.units * view.most_sums * p.sets / p.threads()
    parts_clk = 2 * (per_sm * p.parts_bytes(view) / smem + words * _PART_INSTRUCTIONS * issue)
    parts_clk += 2 * (hardware.rows.barrier_clk + hardware.lat_smem_clk)
    accesses = sum(map(len, view.of_row.read)) + len(view.of_row.ready)
    applied = fit.tail_instructions * instructions(view.applied)
    maps_clk = (applied + hardware.chain.read_instructions * accesses) * p.points() * issue
    clk = fit.block_clk + fetch_clk + product_clk + parts_clk + maps_clk
    return float(hardware.contract.launch_s + clk / hardware.clock_hz)
