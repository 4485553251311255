"""Parameters of resident kernels on tensor cores by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from tilewright.costmodel import Hardware, LineProblem
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import Func, InputError
from tilewright.ir.hardware_facts import REGISTER_UNIT, VECTOR_BYTES, WARP
from tilewright.ir.thread.tensor_maps import MAX_CLUSTER
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import decided_by_estimate
from tilewright.passes.kernels.kernel_problem import instructions, traffic
from tilewright.passes.kernels.matrix.space import has_clusters
from tilewright.passes.kernels.resident_tiles.parameters import LANE_SUMS, TilesParameters
from tilewright.passes.kernels.resident_tiles.view import TilesView, tiles_view

#: registers of a thread beside weights, sums, the state's tiles and its elements
_OTHER_REGISTERS = 32
#: registers of a lane for a tile of the state
_STATE_REGISTERS = 4
#: sets of warps that may share sums
_SETS = (1, 2, 4)


def choose_resident_tiles(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel as a resident one on tensor cores, or one clause that says why it cannot be one."""
    view = tiles_view(kernel)
    if isinstance(view, str):
        return view
    if not isinstance(hardware, GpuHardware) or not has_clusters(hardware):
        return "the device has no clusters"
    most = min(MAX_CLUSTER, hardware.matrix.cluster_group_sms)
    space = [
        p
        for clusters in range(1, _clusters(hardware) + 1)
        for blocks in range(1, most + 1)
        for sets in _SETS
        if _divides(p := TilesParameters(clusters, blocks, sets), view, hardware)
    ]
    if not space:
        return f"{view.units} units of {view.rows} rows cannot be divided over at most {most} blocks"
    fitting = [p for p in space if _fits(p, view, hardware)]
    if not fitting:
        kept = view.units * view.length * len(view.gates) * itemsize(view.dtype)
        return f"weights of {kept >> 10} KB do not fit the registers of at most {most} blocks"
    seconds = [resident_tiles_s(view, p, hardware) for p in fitting]
    bound = global_bound(_problem(kernel, view), hardware)
    return decided_by_estimate(kernel, "resident_tiles", fitting, seconds, bound)


def _clusters(hardware: GpuHardware) -> int:
    """Clusters of any size that run beside each other: one in every group of multiprocessors."""
    return int(hardware.matrix.cluster_groups)


def _divides(p: TilesParameters, view: TilesView, hardware: GpuHardware) -> bool:
    try:
        p.check(view)
    except InputError:
        return False
    return p.threads(view) <= hardware.max_threads_per_block


def _fits(p: TilesParameters, view: TilesView, hardware: GpuHardware) -> bool:
    """Return whether weights fit the registers of a thread beside all else, and buffers the shared memory."""
    if p.shared_bytes(view) > hardware.smem_per_block_max_bytes:
        return False
    share = hardware.registers_per_sm // p.threads(view) // REGISTER_UNIT * REGISTER_UNIT
    sums = p.tiles(view) * (view.most_sums * LANE_SUMS + _STATE_REGISTERS)
    ahead = max(map(len, view.of_row.read)) * p.lane_points(view)
    most = min(share, hardware.max_registers_per_thread)
    return p.weight_registers(view) + sums + ahead + _OTHER_REGISTERS <= most


def _problem(kernel: Func, view: TilesView) -> LineProblem:
    """One line whose steps are the products."""
    written = sum(v.tensor.nbytes for v in kernel.body.ops[-1].operands)
    flops = sum(2 * len(p.sums) * p.length * view.units * view.rows for p in view.products)
    count = len(view.products)
    return LineProblem(view.units, count, count, max(0, traffic(kernel) - written), written, flops)


def resident_tiles_s(view: TilesView, p: TilesParameters, hardware: GpuHardware) -> float:
    """Seconds of a kernel: its start with the weights, then the chain of products, meetings and maps.

    A block is alone on its multiprocessor and does one thing after the other: tiles of the state are read and
    multiplied, parts of sums are exchanged, maps applied, its units written to all blocks, and all meet.
    Results are written, and parameters read, element by element. The sum of these is divided by the share of
    that rate which such kernels reach.
    """
    fit, rows, smem = hardware.matrix, hardware.rows, hardware.smem_bytes_per_sm_per_clk
    threads, size = p.threads(view), itemsize(view.dtype)
    warps = threads // WARP
    issue = -(-warps // hardware.schedulers_per_sm) / hardware.estimate_issue_efficiency
    start_clk = hardware.stream.block_start_clk + fit.cluster_start_clk * (p.blocks - 1)
    start_clk += hardware.chain.read_clk + p.weight_bytes(view) / hardware.estimate_l2_bytes_per_sm_per_clk
    start_clk += 2 * p.weight_bytes(view) / smem
    meet_clk = rows.barrier_clk
    if p.blocks > 1:
        meet_clk = fit.meet_clk + fit.meet_block_clk * p.blocks
        start_clk += meet_clk
    fma = (
        hardware.tensor_fma_16bit_per_sm_per_clk * hardware.mma_sync_share * hardware.estimate_mma_efficiency
    )
    chain_clk = 0.0
    for x in view.products:
        multiplied = p.rows(view) * view.length * p.units(view) * len(x.sums) / fma
        moved = warps * p.rows(view) * (view.length // p.sets) * size / smem
        chain_clk += max(multiplied, moved) + hardware.lat_smem_clk + hardware.lat_mma_clk
        if p.sets > 1:
            chain_clk += 2 * threads * p.exchanged_words(view) * 4 / smem
            chain_clk += rows.barrier_clk + hardware.lat_smem_clk
    others = p.slice_bytes(view) * (p.blocks - 1)
    given_clk = others / fit.cluster_bytes_per_sm_per_clk + others / VECTOR_BYTES / WARP / warps * issue
    held = len({x.state for x in view.products})
    chain_clk += held * (meet_clk + rows.barrier_clk + (given_clk if p.blocks > 1 else 0.0))
    accesses = sum(map(len, view.of_row.read)) + len(view.of_row.ready)
    applied = instructions(view.applied) + 2 * accesses
    maps_clk = applied * p.lane_points(view) * issue
    clk = (start_clk + chain_clk + maps_clk) / hardware.chain.batch_steps_efficiency
    return float(hardware.estimate_launch_s + clk / hardware.clock_hz)
