"""Estimate and lower bound of attention kernels: both products and the softmax between them in registers.

The bound is T >= max(bytes / L2 bandwidth, products / rate of mma.sync, exponentials / rate) over whole
blocks per multiprocessor. The estimate adds what the ports of a multiprocessor and the dependences within a
block take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import Bound
from tilewright.ir.hardware_facts import (
    EXPONENTIALS_PER_SM_PER_CLK,
    LDMATRIX_BYTES,
    MMA_K_BYTES,
    MMA_M,
    MMA_N,
    WARP,
)
from tilewright.passes.kernels.attention.blocks import (
    FACTOR_BYTES,
    alone_clk,
    block_seconds,
    products_per_clk,
)

#: registers beside accumulators, fragments and what is read ahead: as NVRTC takes them, and as it can do with
#: (compiled for sm_90a, heads of 64, 32 to 128 keys); more per tile of rows
_REGISTERS, _LEAST_REGISTERS, _ROW_REGISTERS = 38, 28, 8
#: registers more where values are loaded one by one: places of tiles of columns that swizzled rows tell apart
_PLACE_REGISTERS = 8


@dataclass(frozen=True)
class AttentionWork:
    """An attention kernel with chosen parameters.

    heads: batches of queries, keys and values; queries, keys, inner, width: extents of one; dtype: of the
    factors, f32 to be rounded to TF32; rows: queries of a block; tile: keys of a tile; warps: that share the
    rows; sets: of so many warps that share the keys of a tile. shared_bytes: per block;
    least_bytes: inputs and results once, at least; moved_bytes: all that is read and written, each element
    once; map_work, map_reads: instructions and reads of parameters per element of the scores; ahead_bytes: of
    parameters that a thread reads ahead per tile; seen: share of the tiles of keys that is computed, where
    positions hide others; copied: bytes one copy of queries, keys, values moves, 0 where threads load them.
    resident: blocks per multiprocessor that registers must leave room for, 1 where the compiler is free.
    """

    heads: int
    queries: int
    keys: int
    inner: int
    width: int
    dtype: str
    rows: int
    tile: int
    warps: int
    sets: int
    shared_bytes: int
    least_bytes: int
    moved_bytes: int
    map_work: float
    map_reads: float
    ahead_bytes: int
    seen: float
    copied: tuple[int, int, int]
    resident: int = 1

    @property
    def tiles(self) -> int:
        """Tiles of keys."""
        return -(-self.keys // self.tile)

    @property
    def part(self) -> int:
        """Keys of a tile that one warp takes."""
        return self.tile // self.sets

    @property
    def all_warps(self) -> int:
        """Warps of a block."""
        return self.warps * self.sets

    @property
    def blocks(self) -> int:
        return self.heads * -(-self.queries // self.rows)

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 queries of a warp."""
        return self.rows // self.warps // MMA_M

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of a factor."""
        return FACTOR_BYTES[self.dtype]

    @property
    def depth(self) -> int:
        """Factors along the summed dimension that one instruction of the tensor cores multiplies."""
        return MMA_K_BYTES // self.element_bytes

    @property
    def steps(self) -> int:
        """Instructions of the tensor cores along the inner dimension."""
        return -(-self.inner // self.depth)

    @property
    def columns(self) -> int:
        """Tiles of 8 columns of the values."""
        return -(-self.width // MMA_N)

    @property
    def multiplies(self) -> int:
        """Instructions of the tensor cores of a warp for a tile of keys and a tile of 16 queries."""
        return self.steps * self.part // MMA_N + self.part // self.depth * self.columns

    @property
    def loaded_bytes(self) -> float:
        """Bytes of keys and values that a warp loads as fragments for a tile of keys."""
        return float(self.element_bytes * self.part * (self.steps * self.depth + self.columns * MMA_N))

    @property
    def sums(self) -> int:
        """Registers of the accumulators and the fragments of the queries."""
        return 4 * self.row_tiles * (self.part // MMA_N + self.columns + self.steps)

    @property
    def registers(self) -> int:
        """Per thread, as compiled without a limit: what lives at once during either product."""
        first = 2 * self.part // MMA_N + -(-self.ahead_bytes // 4)
        second = 2 * self.columns + 4 * self.row_tiles
        return _REGISTERS + self._places + self.sums + max(first, second)

    @property
    def least_registers(self) -> int:
        """Per thread, without which some would be spilled."""
        least = _LEAST_REGISTERS + self._places + self.sums
        return least + -(-self.ahead_bytes // 4) + _ROW_REGISTERS * self.row_tiles

    @property
    def _places(self) -> int:
        return _PLACE_REGISTERS if self.dtype == "f32" else 0

    @property
    def flops(self) -> float:
        """Operations of both products, hidden pairs included."""
        return 2.0 * self.heads * self.queries * self.keys * (self.inner + self.width)


def estimate_attention(work: AttentionWork, hardware: GpuHardware) -> float:
    """Estimated seconds; inf where a block cannot be resident."""
    return block_seconds(work, replace(work, seen=1.0), _fetched(work), _round_clk, hardware)


def _round_clk(resident: int, work: AttentionWork, hardware: GpuHardware) -> float:
    """Cycles of `resident` blocks that run side by side on one multiprocessor, from start to end."""
    fit = hardware.attention
    shared = resident * _shared_clk(resident, work, hardware)
    alone = work.seen * work.tiles * _alone_clk(work, hardware) + fit.chain_clk * _copies(work, hardware)[0]
    first = float(work.element_bytes)
    first *= work.rows * work.inner + work.tile * (work.inner + work.width)
    wait = fit.first_clk + first / hardware.contract.l2_bytes_per_sm_per_clk
    last = fit.last_clk + (fit.exchange_clk if work.sets > 1 else 0.0)
    return hardware.contract.block_clk + wait + max(shared, alone) + last


def _issued(work: AttentionWork, hardware: GpuHardware) -> float:
    """Instructions of one warp for one tile of keys."""
    fit = hardware.attention
    elements = work.row_tiles * MMA_M * work.part / WARP
    loads = work.loaded_bytes / LDMATRIX_BYTES
    if work.dtype == "f32":  # each element is rounded, and values are loaded one by one
        loads += work.part * (work.steps * work.depth + 2 * work.columns * MMA_N) / WARP
    rounding = fit.round_instructions if work.dtype == "f32" else fit.pack_instructions
    each = fit.softmax_instructions + rounding + work.map_work + fit.read_instructions * work.map_reads
    return elements * each + loads + work.row_tiles * work.multiplies + fit.tile_instructions


def _copies(work: AttentionWork, hardware: GpuHardware) -> tuple[float, float]:
    """Instructions of a warp to fetch queries, and to fetch one tile of keys and values."""
    counts = []
    sizes = (work.rows * work.inner, work.tile * work.inner, work.tile * work.width)
    for elements, copied in zip(sizes, work.copied, strict=True):
        vectors = work.element_bytes * elements / (copied or work.element_bytes)
        counts.append(vectors / (WARP * work.all_warps) * hardware.attention.copy_instructions)
    return counts[0], counts[1] + counts[2]


def _shared_clk(resident: int, work: AttentionWork, hardware: GpuHardware) -> float:
    """Cycles a block takes of what blocks share: tensor cores, shared memory, exponentials, issue, L2."""
    fit = hardware.attention
    busy = min(1.0, resident * work.all_warps / hardware.schedulers_per_sm)
    share = hardware.mma_sync_share * hardware.estimate_mma_efficiency * hardware.matrix.loop_share
    tiles = work.seen * work.tiles
    warps = tiles * work.all_warps
    products = warps * work.row_tiles * work.multiplies * float(MMA_M * MMA_N * work.depth)
    tensor = products / (products_per_clk(work.dtype, hardware) * share * busy)
    port = warps * work.loaded_bytes / hardware.smem_bytes_per_sm_per_clk
    powers = warps * work.row_tiles * MMA_M * work.part / (EXPONENTIALS_PER_SM_PER_CLK * busy)
    first, later = _copies(work, hardware)
    vectors = (
        work.rows
        * work.width
        / 4.0
        / (WARP * work.all_warps)
        * (fit.vector_instructions + fit.set_instructions * (work.sets - 1))
    )
    issued = work.all_warps * (first + vectors) + warps * (_issued(work, hardware) + later)
    issue = issued / (hardware.schedulers_per_sm * hardware.contract.issue_efficiency * busy)
    fetch = _fetched(work) / hardware.contract.l2_bytes_per_sm_per_clk
    return max(tensor, port, powers, issue, fetch)


def _fetched(work: AttentionWork) -> float:
    """Bytes that a block reads of queries, keys and values."""
    keys = work.seen * work.tiles * work.tile
    return work.element_bytes * (work.rows * work.inner + keys * (work.inner + work.width))


def _alone_clk(work: AttentionWork, hardware: GpuHardware) -> float:
    """Cycles of one tile of keys in a block that has the multiprocessor for itself."""
    return alone_clk(work, _issued(work, hardware), _copies(work, hardware)[1], hardware)


def bound_attention(work: AttentionWork, hardware: GpuHardware) -> Bound:
    """The sound lower bound: compulsory bytes from warm caches, products and exponentials, launch."""
    pairs = work.seen * work.heads * work.queries * work.keys / hardware.sm_count
    if (
        work.queries % work.rows == 0 and work.seen == 1.0
    ):  # blocks are equal: the busiest multiprocessor has whole ones
        pairs = -(-work.blocks // hardware.sm_count) * float(work.rows * work.keys)
    rate = products_per_clk(work.dtype, hardware) * hardware.mma_sync_share
    terms = {
        "L2": work.least_bytes / hardware.l2_bytes_per_s,
        "TENSOR": pairs * (work.inner + work.width) / rate / hardware.clock_hz,
        "EXP": pairs / EXPONENTIALS_PER_SM_PER_CLK / hardware.clock_hz,
        "LAUNCH": hardware.launch_floor_s,
    }
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, work.flops / (seconds * hardware.peak_flops_per_s)), seconds, limit, seconds)
