"""What blocks of kernels of the attention family have in common for the model: their residence and pace.

The work of such a kernel is counted by its own module; a block walks along tiles, multiplies on `mma.sync`,
and shares a multiprocessor with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir.hardware_facts import MMA_M, MMA_N, REGISTER_UNIT, WARP

#: bytes of an element of the factors
FACTOR_BYTES = {"f16": 2, "bf16": 2, "f32": 4}

#: registers beside its sums that ptxas wants for a product of a warpgroup, of what a thread has before roles
#: share anew (it refuses the kernel with fewer: C7602)
PRODUCT_REGISTERS = 30


class BlockWork(Protocol):
    """The facts of a kernel by which its blocks share multiprocessors, and what it moves."""

    @property
    def resident(self) -> int: ...
    @property
    def registers(self) -> int: ...
    @property
    def least_registers(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def all_warps(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def moved_bytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...


class TileWork(Protocol):
    """What a warp multiplies for one tile."""

    @property
    def row_tiles(self) -> int: ...
    @property
    def multiplies(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def dtype(self) -> str: ...


W = TypeVar("W", bound=BlockWork)


def products_per_clk(dtype: str, hardware: GpuHardware) -> int:
    """Products of factors of this type per multiprocessor and cycle at the peak of its tensor cores."""
    narrow = FACTOR_BYTES[dtype] == 2
    return hardware.tensor_fma_16bit_per_sm_per_clk if narrow else hardware.tensor_fma_tf32_per_sm_per_clk


def resident_attention(work: BlockWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor; 0 where none does, or where registers would be spilled."""
    registers = work.registers
    if work.resident > 1:
        registers = min(registers, _allowed(work.resident, work, hardware))
        if registers < work.least_registers:
            return 0
    if work.shared_bytes > hardware.smem_per_block_max_bytes:
        return 0
    if (
        work.all_warps * WARP > hardware.max_threads_per_block
        or registers > hardware.max_registers_per_thread
    ):
        return 0
    schedulers = hardware.schedulers_per_sm
    each = hardware.registers_per_sm // schedulers // (WARP * -(-registers // REGISTER_UNIT) * REGISTER_UNIT)
    return min(_room(work, hardware), schedulers * each // work.all_warps)


def most_resident(work: BlockWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor where the compiler is told to save registers, without spills."""
    found = 0
    for n in range(1, _room(work, hardware) + 1):
        if _allowed(n, work, hardware) >= work.least_registers:
            found = n
    return found


def _room(work: BlockWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor but for their registers."""
    return min(
        hardware.max_blocks_per_sm,
        hardware.max_threads_per_sm // (work.all_warps * WARP),
        hardware.smem_per_sm_bytes // (work.shared_bytes + hardware.smem_reserved_per_block_bytes),
    )


def _allowed(resident: int, work: BlockWork, hardware: GpuHardware) -> int:
    """Registers per thread with so many blocks, whose warps the schedulers share."""
    warps = -(-resident * work.all_warps // hardware.schedulers_per_sm)
    each = hardware.registers_per_sm // hardware.schedulers_per_sm // (WARP * warps)
    return min(each // REGISTER_UNIT * REGISTER_UNIT, hardware.max_registers_per_thread)


def residents(work: BlockWork, hardware: GpuHardware) -> Iterator[int]:
    """Blocks per multiprocessor that registers may be limited for: 1 leaves the compiler free.

    More where registers, and not the number of blocks, keep further ones out.
    """
    free = resident_attention(work, hardware)
    for resident in {1, most_resident(work, hardware)}:
        if free and (resident == 1 or free < min(resident, -(-work.blocks // hardware.sm_count))):
            yield resident


def block_seconds(
    work: W,
    full: W,
    fetched_bytes: float,
    round_clk: Callable[[int, W, GpuHardware], float],
    hardware: GpuHardware,
) -> float:
    """Estimated seconds of a kernel; inf where a block cannot be resident.

    full: the work of a block that computes all tiles; fetched_bytes: of factors, per block; round_clk: cycles
    of so many blocks side by side on one multiprocessor.
    """
    fits = resident_attention(work, hardware)
    if fits == 0 or not products_per_clk(work.dtype, hardware):
        return float("inf")
    per_sm = -(-work.blocks // hardware.sm_count)
    resident = min(fits, per_sm)
    rounds, rest = divmod(per_sm, resident)
    busy_clk = rounds * round_clk(resident, work, hardware)
    if rest:
        busy_clk += round_clk(rest, work, hardware)
    # where positions take pairs away, blocks differ: the one with all of them starts first
    busy_clk = max(busy_clk, round_clk(1, full, hardware))
    busy_s = busy_clk / hardware.clock_hz
    dram_s = work.moved_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    l2_s = work.blocks * fetched_bytes / (hardware.l2_bytes_per_s * hardware.attention.l2_efficiency)
    traffic_s = max(dram_s, l2_s)
    exposed = hardware.matrix.exposed_share + hardware.matrix.exposed_alone_share / resident
    seconds = hardware.contract.launch_s + max(busy_s, traffic_s) + exposed * min(busy_s, traffic_s)
    return seconds + hardware.matrix.exposed_share * min(dram_s, l2_s)


def alone_clk(work: TileWork, issued: float, copies: float, hardware: GpuHardware) -> float:
    """Cycles of one tile in a block that has the multiprocessor for itself.

    issued: instructions of a warp for the tile; copies: those to fetch it.
    """
    fit = hardware.attention
    share = hardware.mma_sync_share * hardware.estimate_mma_efficiency
    rate = products_per_clk(work.dtype, hardware) * share / hardware.schedulers_per_sm
    products = work.row_tiles * work.multiplies * float(MMA_M * MMA_N * work.depth) / rate
    others = issued - work.row_tiles * work.multiplies + copies
    return products + fit.chain_clk * others + fit.tile_clk
