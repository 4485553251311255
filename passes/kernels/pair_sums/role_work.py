"""Estimate of sums over pairs by roles: what warpgroups of a multiprocessor take of what they share.

A warpgroup's tile is 64 rows by a tile of others. Its products, its weights and its sums follow one another;
those of other warpgroups fill the time between. Tensor cores and issue slots share that time: the tile of one
of several warpgroups takes (tensor^p + issue^p)^(1/p), that of one alone their sum and its waits.
"""

from __future__ import annotations

from heapq import heapreplace

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir.hardware_facts import EXPONENTIALS_PER_SM_PER_CLK, MMA_M, WARP, WARPGROUP_WARPS
from tilewright.ir.thread.warpgroup_ops import GROUP_M
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.attention.blocks import (
    PRODUCT_REGISTERS,
    products_per_clk,
    resident_attention,
)
from tilewright.passes.kernels.pair_sums.work import PairWork

#: rounds of unequal blocks that are followed block by block
MOST_BLOCKS = 16
#: registers beside sums, products and factors that a thread needs, without which NVRTC serialises products
_MORE_REGISTERS = 32
#: registers more for each parameter read pair by pair: places of rows, beside elements before their use
_PLACE_REGISTERS = 4


def registers_needed(work: PairWork) -> int:
    """Registers of a thread that multiplies, without which some would be spilled."""
    pairs = len(work.inner) * work.tile // 2
    packed = (len(work.widths) if work.ahead else work.early) * work.tile // 4
    sums = sum(-(-n // 16) * 8 for n in work.widths)
    more = work.early > 0 or work.paths > 1  # what is read waits for a second stage, or for one of two paths
    singly = work.read_singly * (work.tile // 4 + _PLACE_REGISTERS)
    read = -(-work.ahead_bytes // 4) + singly * (2 if more else 1)
    if work.ahead or more:  # words of this tile are shifted while the ones that were read are still needed
        read += work.line_words
    return pairs + packed + work.apart * work.tile // 2 + sums + read + _MORE_REGISTERS


def estimate_roles(work: PairWork, hardware: GpuHardware) -> float:
    """Estimated seconds; inf where a block cannot be resident, or where registers would be spilled."""
    fits = resident_attention(work, hardware)
    if fits < work.resident or not products_per_clk(work.dtype, hardware):
        return float("inf")
    if registers_needed(work) > (work.limit or hardware.max_registers_per_thread):
        return float("inf")
    if max(work.tile, *work.widths) // 2 + PRODUCT_REGISTERS > work.registers:
        return float("inf")
    resident = min(fits, -(-work.blocks // hardware.sm_count))
    ends, tile = _block_clk(resident, work, hardware)
    if work.loads:
        busy_s = _makespan(work, hardware.sm_count * resident, ends, tile) / hardware.clock_hz
    else:
        rounds, rest = divmod(-(-work.blocks // hardware.sm_count), resident)
        clk = rounds * (ends + work.tiles * tile)
        if rest:
            ends, tile = _block_clk(rest, work, hardware)
            clk += ends + work.tiles * tile
        busy_s = clk / hardware.clock_hz
    dram_s = work.moved_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    fetched = work.own_bytes + work.seen * work.tiles * work.fetched_bytes
    return hardware.contract.launch_s + max(busy_s, dram_s, work.blocks * fetched / hardware.l2_bytes_per_s)


def _makespan(work: PairWork, places: int, ends: float, tile: float) -> float:
    """Cycles until the last block ends, where each starts at the first place that is free."""
    loads = [n for n in work.loads for _ in range(work.batches)] if work.spread else work.loads * work.batches
    if len(loads) > MOST_BLOCKS * places:
        return sum(ends + n * tile for n in loads) / places + ends + max(loads) * tile / 2.0
    free = [0.0] * places
    for n in loads:
        heapreplace(free, free[0] + ends + n * tile)
    return max(free)


def _block_clk(resident: int, work: PairWork, hardware: GpuHardware) -> tuple[float, float]:
    """Cycles of the ends of a block, and of a tile, with `resident` blocks side by side."""
    fit, groups = hardware.attention, resident * work.warps // WARPGROUP_WARPS
    tensor, issue = _tensor_clk(work, hardware) / fit.pair_tensor_share, _issue_clk(work, hardware)
    issue = max(issue, GROUP_M * work.tile * work.powers / EXPONENTIALS_PER_SM_PER_CLK)
    port = _port_bytes(work) / hardware.smem_bytes_per_sm_per_clk * fit.pair_port_factor
    power = fit.pair_overlap_power
    one = (max(tensor, port) ** power + issue**power) ** (1.0 / power)
    fetch = resident * work.fetched_bytes / hardware.contract.l2_bytes_per_sm_per_clk
    wait = fit.pair_wait_ahead_clk if work.ahead else fit.pair_wait_clk
    tile = max(groups * one, fetch, tensor + issue + wait)
    # a slot is filled, read for one tile or, where products run ahead, two, and filled again
    tile = max(tile, (fit.pair_copy_clk + (2.0 if work.ahead else 1.0) * tile) / work.slots)
    first = (work.own_bytes + work.fetched_bytes) / hardware.contract.l2_bytes_per_sm_per_clk
    results = work.rows * sum(work.widths) / 4.0 / (WARP * work.warps) * fit.vector_instructions
    ends = fit.first_clk + first + fit.last_clk * len(work.widths) + results * groups
    return hardware.contract.block_clk + ends * fit.pair_exposed_share ** (resident - 1), tile


def _tensor_clk(work: PairWork, hardware: GpuHardware) -> float:
    """Cycles of the tensor cores for a tile of one warpgroup."""
    inner = sum(-(-n // work.depth) * work.depth for n in work.inner)
    products = GROUP_M * work.tile * float(inner + sum(work.widths))
    return products / products_per_clk(work.dtype, hardware)


def _port_bytes(work: PairWork) -> float:
    """Bytes of shared memory that the products of a tile of one warpgroup read."""
    size = itemsize(work.dtype)
    pairs = (GROUP_M + work.tile) * sum(work.inner)
    return float(size * (pairs + work.tile * sum(work.widths)))


def _issue_clk(work: PairWork, hardware: GpuHardware) -> float:
    """Issue slots of a warpgroup's tile: one warp of it on each scheduler."""
    elements = MMA_M * work.tile / WARP
    each = 0.5 * len(work.widths) + work.map_work + 2.0 * work.map_reads
    return elements * each + hardware.attention.pair_tile_instructions
