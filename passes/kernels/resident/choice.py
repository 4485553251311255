"""Parameters of resident kernels by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from tilewright.costmodel import Hardware, LineProblem
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import Func
from tilewright.ir.hardware_facts import REGISTER_UNIT, WARP
from tilewright.passes.kernels.decision import decided_by_estimate
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.matrix.space import has_clusters
from tilewright.passes.kernels.resident.parameters import WORD_BYTES, ResidentParameters
from tilewright.passes.kernels.resident.view import ResidentView, resident_view

#: blocks that any device with clusters can run together, and lanes that may share a unit
_BLOCKS = (1, 2, 4, 8)
_LANES = (1, 2, 4, 8, 16, 32)
#: registers of a thread beside weights, sums and what it has read ahead
_OTHER_REGISTERS = 48


def choose_resident(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel as a resident one with its parameters, or one clause that says why it cannot be one."""
    view = resident_view(kernel)
    if isinstance(view, str):
        return view
    if not isinstance(hardware, GpuHardware) or not has_clusters(hardware):
        return "the device has no clusters"
    space = [
        p
        for blocks in _BLOCKS
        for lanes in _LANES
        if _divides(p := ResidentParameters(blocks, lanes), view, hardware)
    ]
    if not space:
        return f"{view.units} units cannot be divided over the lanes of at most {max(_BLOCKS)} blocks"
    fitting = [p for p in space if _fits(p, view, hardware)]
    if not fitting:
        kept = view.units * sum(length for _, _, length in view.weights) * WORD_BYTES
        return (
            f"weights of {kept >> 10} KB do not fit the registers of at most {max(_BLOCKS)} blocks, "
            f"of which each has {hardware.registers_per_sm * WORD_BYTES >> 10} KB for all it does"
        )
    seconds = [resident_s(kernel, view, p, hardware) for p in fitting]
    bound = global_bound(_problem(kernel, view), hardware)
    return decided_by_estimate(kernel, "resident", fitting, seconds, bound)


def _divides(p: ResidentParameters, view: ResidentView, hardware: GpuHardware) -> bool:
    if view.units % p.blocks or any(x.length % p.lanes for x in view.products):
        return False
    threads = p.threads(view)
    return threads % WARP == 0 and threads <= hardware.max_threads_per_block


def _fits(p: ResidentParameters, view: ResidentView, hardware: GpuHardware) -> bool:
    """Return whether weights fit the registers of a thread beside all else it holds."""
    share = hardware.registers_per_sm // p.threads(view) // REGISTER_UNIT * REGISTER_UNIT
    sums = max(len(x.sums) for x in view.products)
    ahead = max(map(len, view.read))
    most = min(share, hardware.max_registers_per_thread)
    return p.words(view) + 2 * sums + 2 * ahead + _OTHER_REGISTERS <= most


def _problem(kernel: Func, view: ResidentView) -> LineProblem:
    """One line whose steps are the products."""
    written = sum(v.tensor.nbytes for v in kernel.body.ops[-1].operands)
    flops = sum(2 * len(p.sums) * p.length * view.units for p in view.products)
    read = max(0, traffic(kernel) - written)
    return LineProblem(view.units, len(view.products), len(view.products), read, written, flops)


def resident_s(kernel: Func, view: ResidentView, p: ResidentParameters, hardware: GpuHardware) -> float:
    """Seconds of a kernel: its start with the weights, then the chain of products, meetings and maps.

    A product's lanes read the state, multiply, and combine; its maps follow each other. No other block is on
    the multiprocessor, so little hides a latency.
    """
    fit, rows = hardware.matrix, hardware.rows
    threads, steps = p.threads(view), p.lanes.bit_length() - 1
    warps = -(-threads // (WARP * hardware.schedulers_per_sm))
    issue = warps / hardware.estimate_issue_efficiency
    kept = p.words(view) * threads * WORD_BYTES
    start_clk = hardware.stream.block_start_clk + fit.cluster_start_clk * (p.blocks - 1)
    start_clk += hardware.chain.read_clk + kept / hardware.estimate_l2_bytes_per_sm_per_clk
    exchange_clk = rows.barrier_clk
    if p.blocks > 1:
        exchange_clk = fit.meet_clk + fit.meet_block_clk * p.blocks
        start_clk += exchange_clk
    products_clk = 0.0
    for x in view.products:
        share, near = x.length // p.lanes, p.neighbours(x.length)
        vectors = len({s.vector_at for s in x.sums})
        reads = share // near * vectors
        instructions = reads + share * len(x.sums) + 2 * steps * len(x.sums)
        # four words of a lane are a wavefront of the shared memory for each eight lanes that differ
        moved = warps * hardware.schedulers_per_sm * reads * max(1, p.lanes * near // WARP)
        products_clk += max(instructions * issue, moved) + hardware.lat_smem_clk
        products_clk += steps * rows.exchange_clk
        if x.state not in view.exchanged and x.state in kernel.params:
            products_clk += hardware.chain.read_clk
    maps_clk = view.applied * max(float(rows.add_clk), issue)
    exchanged = len(view.exchanged) * exchange_clk
    busy_s = (start_clk + products_clk + maps_clk + exchanged) / hardware.clock_hz
    return float(hardware.estimate_launch_s + busy_s)
