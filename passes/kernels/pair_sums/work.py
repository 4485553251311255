"""Estimate and lower bound of sums over pairs on tensor cores: products, weights and sums of a tile of pairs.

The bound is T >= max(bytes / L2 bandwidth, products / rate of mma.sync, exponentials / rate) over whole
blocks per multiprocessor. The estimate adds what the ports of a multiprocessor and the dependences within a
block take, with the coefficients of attention, whose kernels are made of the same parts.
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
    MOST_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
)
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.attention.blocks import alone_clk, block_seconds, products_per_clk

#: registers beside accumulators, fragments and what is read ahead: as NVRTC takes them, and as it can do with
_REGISTERS, _LEAST_REGISTERS, _ROW_REGISTERS = 46, 34, 8


@dataclass(frozen=True)
class PairWork:
    """A kernel of sums over pairs with chosen parameters.

    batches, own, others: extents; inner: summed extents of the products; widths: of the sums; dtype: of the
    factors. rows, tile, warps, held, resident: parameters. shared_bytes: per block; least_bytes: inputs and
    results once, at least; moved_bytes: all that is read and written, each element once; fetched_bytes: of
    one tile of others; own_bytes: of own rows of a block; map_work, map_reads: instructions and reads of
    parameters per pair; powers: exponentials per pair; ahead_bytes: of parameters that a thread reads ahead;
    seen: share of the tiles that is computed. copy_bytes: what one copy moves, 0 where threads load elements.
    engine, ahead: parameters; copiers: warps of the role that copies; limit: registers of a thread that
    multiplies by roles; early: sums whose weights need one product alone; apart: those of them whose weights
    are not the part that is computed first; line_words: words of bits for rows that a thread reads in the
    step that needs them, one for each other; read_singly: parameters that are read pair by pair; paths: 2
    where tiles all of whose pairs count have code of their own; slots: of the ring; loads: tiles of the
    blocks of a batch in the order of their start, where they differ; spread: parameter.
    """

    batches: int
    own: int
    others: int
    inner: tuple[int, ...]
    widths: tuple[int, ...]
    dtype: str
    rows: int
    tile: int
    warps: int
    held: bool
    shared_bytes: int
    least_bytes: int
    moved_bytes: int
    fetched_bytes: int
    own_bytes: int
    map_work: float
    map_reads: float
    powers: int
    ahead_bytes: int
    seen: float
    copy_bytes: int
    resident: int = 1
    engine: str = "mma"
    ahead: bool = False
    copiers: int = 0
    limit: int = 0
    early: int = 0
    apart: int = 0
    line_words: int = 0
    read_singly: int = 0
    paths: int = 1
    slots: int = 1
    loads: tuple[int, ...] = ()
    spread: bool = False

    @property
    def by_roles(self) -> bool:
        """True where warpgroups multiply what a role copies."""
        return self.engine == "wgmma"

    @property
    def all_warps(self) -> int:
        """Warps of a block."""
        return self.warps + self.copiers

    @property
    def tiles(self) -> int:
        """Tiles of others."""
        return -(-self.others // self.tile)

    @property
    def blocks(self) -> int:
        return self.batches * -(-self.own // self.rows)

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows of a warp."""
        return self.rows // self.warps // MMA_M

    @property
    def depth(self) -> int:
        """Factors along the summed dimension that one instruction of the tensor cores multiplies."""
        return MMA_K_BYTES // itemsize(self.dtype)

    @property
    def steps(self) -> int:
        """Instructions of the tensor cores along the inner dimensions of all products."""
        return sum(-(-n // self.depth) for n in self.inner)

    @property
    def columns(self) -> int:
        """Tiles of 8 columns of all sums."""
        return sum(-(-n // MMA_N) for n in self.widths)

    @property
    def multiplies(self) -> int:
        """Instructions of the tensor cores of a warp for a tile of others and a tile of 16 rows."""
        return self.steps * self.tile // MMA_N + self.tile // self.depth * self.columns

    @property
    def loaded_bytes(self) -> float:
        """Bytes that a warp loads as fragments for a tile of others."""
        others = self.tile * (self.steps * self.depth + self.columns * MMA_N)
        own = 0 if self.held else self.row_tiles * MMA_M * self.steps * self.depth
        return float(itemsize(self.dtype) * (others + own))

    @property
    def sums(self) -> int:
        """Registers of the accumulators, and of the factors of own rows that are held."""
        held = self.steps if self.held else 0
        return 4 * self.row_tiles * (len(self.inner) * self.tile // MMA_N + self.columns + held)

    @property
    def _read_registers(self) -> int:
        return -(-self.ahead_bytes // 4)

    @property
    def registers(self) -> int:
        """Per thread, as compiled without a limit: what lives at once during a product or a sum.

        By roles every thread has its share of the multiprocessor's at launch.
        """
        if self.by_roles:
            share = REGISTERS_PER_SM // (WARP * self.all_warps * self.resident)
            return min(MOST_REGISTERS, share // REGISTER_UNIT * REGISTER_UNIT)
        widest = max(2 * self.tile // MMA_N, *(2 * -(-n // MMA_N) for n in self.widths))
        return _REGISTERS + self.sums + self._read_registers + widest + 4 * self.row_tiles

    @property
    def least_registers(self) -> int:
        """Per thread, without which some would be spilled."""
        if self.by_roles:
            return self.registers
        return _LEAST_REGISTERS + self.sums + self._read_registers + _ROW_REGISTERS * self.row_tiles

    @property
    def flops(self) -> float:
        """Operations of all products and sums, pairs that do not count included."""
        return 2.0 * self.batches * self.own * self.others * (sum(self.inner) + sum(self.widths))


def estimate_pairs(work: PairWork, hardware: GpuHardware) -> float:
    """Estimated seconds on `mma.sync`; inf where a block cannot be resident."""
    return block_seconds(work, replace(work, seen=1.0), _fetched(work), _round_clk, hardware)


def _round_clk(resident: int, work: PairWork, hardware: GpuHardware) -> float:
    """Cycles of `resident` blocks that run side by side on one multiprocessor, from start to end."""
    fit = hardware.attention
    shared = resident * _shared_clk(resident, work, hardware)
    alone = work.seen * work.tiles * _alone_clk(work, hardware)
    first = float(work.own_bytes + work.fetched_bytes)
    wait = fit.first_clk + first / hardware.contract.l2_bytes_per_sm_per_clk
    last = fit.last_clk * len(work.widths)
    return hardware.contract.block_clk + wait + max(shared, alone) + last


def _issued(work: PairWork, hardware: GpuHardware) -> float:
    """Instructions of one warp for one tile of others."""
    fit = hardware.attention
    elements = work.row_tiles * MMA_M * work.tile / WARP
    loads = work.loaded_bytes / LDMATRIX_BYTES
    if work.dtype == "f32":  # each element is rounded, and values are loaded one by one
        loads += work.tile * (work.steps * work.depth + 2 * work.columns * MMA_N) / WARP
    rounding = fit.round_instructions if work.dtype == "f32" else fit.pack_instructions
    each = rounding * len(work.widths) + work.map_work + fit.read_instructions * work.map_reads
    return elements * each + loads + work.row_tiles * work.multiplies + fit.tile_instructions


def _copies(work: PairWork, hardware: GpuHardware) -> float:
    """Instructions of a warp to fetch one tile of others."""
    vectors = work.fetched_bytes / (work.copy_bytes or itemsize(work.dtype))
    return vectors / (WARP * work.warps) * hardware.attention.copy_instructions


def _shared_clk(resident: int, work: PairWork, hardware: GpuHardware) -> float:
    """Cycles a block takes of what blocks share: tensor cores, shared memory, exponentials, issue, L2."""
    fit = hardware.attention
    busy = min(1.0, resident * work.warps / hardware.schedulers_per_sm)
    share = hardware.mma_sync_share * hardware.estimate_mma_efficiency * hardware.matrix.loop_share
    warps = work.seen * work.tiles * work.warps
    products = warps * work.row_tiles * work.multiplies * float(MMA_M * MMA_N * work.depth)
    tensor = products / (products_per_clk(work.dtype, hardware) * share * busy)
    port = warps * work.loaded_bytes / hardware.smem_bytes_per_sm_per_clk
    powers = warps * work.row_tiles * MMA_M * work.tile * work.powers
    powers /= EXPONENTIALS_PER_SM_PER_CLK * busy
    vectors = work.rows * sum(work.widths) / 4.0 / (WARP * work.warps) * fit.vector_instructions
    issued = work.warps * vectors + warps * (_issued(work, hardware) + _copies(work, hardware))
    issue = issued / (hardware.schedulers_per_sm * hardware.contract.issue_efficiency * busy)
    fetch = _fetched(work) / hardware.contract.l2_bytes_per_sm_per_clk
    return max(tensor, port, powers, issue, fetch)


def _fetched(work: PairWork) -> float:
    """Bytes that a block reads of factors."""
    return work.own_bytes + work.seen * work.tiles * work.fetched_bytes


def _alone_clk(work: PairWork, hardware: GpuHardware) -> float:
    """Cycles of one tile of others in a block that has the multiprocessor for itself."""
    return alone_clk(work, _issued(work, hardware), _copies(work, hardware), hardware)


def bound_pairs(work: PairWork, hardware: GpuHardware) -> Bound:
    """The sound lower bound: compulsory bytes from warm caches, products and exponentials, launch."""
    pairs = work.seen * work.batches * work.own * work.others / hardware.sm_count
    if work.own % work.rows == 0 and work.seen == 1.0:
        # blocks are equal: the busiest multiprocessor has whole ones
        pairs = -(-work.blocks // hardware.sm_count) * float(work.rows * work.others)
    share = 1.0 if work.by_roles else hardware.mma_sync_share
    rate = products_per_clk(work.dtype, hardware) * share
    terms = {
        "L2": work.least_bytes / hardware.l2_bytes_per_s,
        "TENSOR": pairs * (sum(work.inner) + sum(work.widths)) / rate / hardware.clock_hz,
        "EXP": pairs * work.powers / EXPONENTIALS_PER_SM_PER_CLK / hardware.clock_hz,
        "LAUNCH": hardware.launch_floor_s,
    }
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, work.flops / (seconds * hardware.peak_flops_per_s)), seconds, limit, seconds)
