"""Estimate and lower bound of chains on tensor cores, from what each stage asks of a multiprocessor.

Stages of a block follow one another; blocks beside each other fill what one leaves free. A stage takes as
long as the busiest of tensor cores, the port of shared memory and issue slots, times the blocks that share
them, or as one block alone by latencies. Rows come once per block, weights once per block and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import LAUNCH, PEAK, Bound
from tilewright.ir import Op
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, MMA_M, MMA_N, WARP
from tilewright.ir.nodes import walk
from tilewright.ir.tensor.ops import dims, fills
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.index_sets import placed_reads
from tilewright.passes.kernels.chain.regions import Span, read_box
from tilewright.passes.kernels.chain.stages import Stage
from tilewright.passes.kernels.chain_tiles.block import matrix_shape, weight_buffer
from tilewright.passes.kernels.chain_tiles.lanes import runs_of, window_points
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters, WarpTiles, warp_tiles
from tilewright.passes.kernels.chain_tiles.view import MMA_K, Product, TilesChain
from tilewright.passes.kernels.kernel_problem import instructions, traffic

#: registers of a thread beside sums, fragments and what a window keeps
_OTHER_REGISTERS = 48
#: registers of a lane for fragments of a tile of rows, of columns, and of sums
_ROW_REGISTERS, _COLUMN_REGISTERS, _SUM_REGISTERS = 4, 2, 4
#: instructions of a result beside its maps, as in the machine code for sm_90: one rounds a pair of them, one
#: stores it, and each is exchanged for another value outside of its tensor
_PAIR = 2
_ROUND_INSTRUCTIONS, _OUTSIDE_INSTRUCTIONS = 1.0, 1.0


@dataclass(frozen=True)
class StageLoad:
    """The cycles of a multiprocessor for which one block needs it in one run of a stage.

    tensor, port, issue: of tensor cores, of shared memory's port, of issue slots; alone: of a single block.
    """

    tensor: float
    port: float
    issue: float
    alone: float

    def clk(self, resident: int) -> float:
        """Cycles where so many blocks share a multiprocessor."""
        return max(resident * max(self.tensor, self.port, self.issue), self.alone)


@dataclass(frozen=True)
class ChainTilesWork:
    """A chain with chosen parameters. Per block: stages ahead of all steps, those of each step, the end."""

    blocks: int
    steps: int
    threads: int
    shared_bytes: int
    registers: int
    compulsory_bytes: int
    row_bytes: float
    weight_bytes: float
    before: tuple[StageLoad, ...]
    each: tuple[StageLoad, ...]
    end: StageLoad
    tensor_flops: float
    lane_flops: float

    @property
    def fetched_bytes(self) -> float:
        """Bytes that a block brings from the L2."""
        return self.row_bytes + self.steps * self.weight_bytes


def chain_tiles_work(tiles: TilesChain, plan: ChainTilesParameters, hardware: GpuHardware) -> ChainTilesWork:
    """The work of one kernel."""
    chain, last = tiles.chain, len(tiles.chain.stages) - 1
    buffers = [matrix_shape(tiles, v, plan.warps) for v in chain.kept]
    sizes = [itemsize(v.tensor.dtype) for v in chain.kept]
    shared = sum(prod(b) * s for b, s in zip(buffers, sizes, strict=True))
    row_bytes = weight_bytes = 0.0
    for p in tiles.products.values():
        size = itemsize(p.view.dtype)
        shared += prod(weight_buffer(p, plan.warps)) * size
        step_bytes = len(p.tap_points) * p.columns * p.channels * size
        weight_bytes += step_bytes if p.walks or p.last else step_bytes / tiles.steps
        if p.factor not in chain.kept:
            shared += prod(matrix_shape(tiles, p.factor, plan.warps)) * size
            row_bytes += p.pixels * p.channels * size
    for i, stage in enumerate(chain.stages):
        if i not in tiles.products:
            read = _window_bytes(tiles, stage)
            weight_bytes += read if tiles.walks(i) or i == last else read / tiles.steps
    loads = [_stage(tiles, i, plan, hardware) for i in range(last + 1)]
    before = tuple(loads[i] for i in range(last) if not tiles.walks(i))
    each = tuple(loads[i] for i in range(last) if tiles.walks(i))
    end = StageLoad(0.0, 0.0, 0.0, 0.0)
    if last in tiles.products:
        each = (*each, _multiplied(tiles.products[last], plan, hardware))
        end = _finished(tiles, tiles.products[last], plan, hardware)
    else:
        before = (*before, loads[last])
    tensor = sum(_flops(p.op) for p in tiles.products.values())
    lanes = sum(_flops(s.anchor) for i, s in enumerate(chain.stages) if i not in tiles.products)
    return ChainTilesWork(
        prod(chain.blocks.values()), tiles.steps, plan.threads, shared, _registers(tiles, plan),
        traffic(chain.kernel), row_bytes, weight_bytes, before, each, end, tensor, lanes,
    )  # fmt: skip


def _flops(op: Op) -> float:
    return 2.0 * prod(dims(op, "par").values()) * prod(dims(op, "red").values())


def _stage(tiles: TilesChain, i: int, plan: ChainTilesParameters, hardware: GpuHardware) -> StageLoad:
    if i in tiles.products:
        product = tiles.products[i]
        one, two = _multiplied(product, plan, hardware), _finished(tiles, product, plan, hardware)
        return StageLoad(
            one.tensor + two.tensor, one.port + two.port, one.issue + two.issue, one.alone + two.alone
        )
    return _window(tiles, tiles.chain.stages[i], plan, hardware)


def _warps(product: Product, plan: ChainTilesParameters) -> WarpTiles:
    return warp_tiles(product.row_tiles, product.column_tiles, plan.warps)


def _issue(warp_instructions: float, hardware: GpuHardware) -> float:
    """Cycles in which a multiprocessor issues instructions of warps."""
    return warp_instructions / (hardware.schedulers_per_sm * hardware.chain.tiles_issue_efficiency)


def _multiplied(product: Product, plan: ChainTilesParameters, hardware: GpuHardware) -> StageLoad:
    """Copies of the weights, fragments and multiplications of one step."""
    fit, t = hardware.matrix, _warps(product, plan)
    steps = product.depth // MMA_K * len(product.tap_points)
    fma = plan.warps * t.tiles * MMA_M * MMA_N * MMA_K * steps
    rate = hardware.tensor_fma_16bit_per_sm_per_clk * hardware.mma_sync_share * fit.loop_share
    size = itemsize(product.view.dtype)
    loaded = plan.warps * steps * (t.tiles_m * MMA_M + t.tiles_n * MMA_N) * MMA_K * size
    copied = prod(product.weight_shape) * size
    copies = copied / ASYNC_COPY_BYTES[0] / WARP * fit.copy_instructions
    issued = plan.warps * steps * (t.tiles + t.tiles_m + t.tiles_n / 2 + 4) + copies
    alone = steps * max(fit.step_clk, t.tiles * hardware.lat_mma_clk) + _wait(hardware)
    port = (loaded + copied) / hardware.smem_bytes_per_sm_per_clk
    return StageLoad(fma / rate, port, _issue(issued, hardware), alone)


def _wait(hardware: GpuHardware) -> float:
    """Cycles of a barrier and of the first read behind it."""
    return hardware.rows.barrier_clk + hardware.lat_smem_clk


def _finished(
    tiles: TilesChain, product: Product, plan: ChainTilesParameters, hardware: GpuHardware
) -> StageLoad:
    """Maps of all sums, in pairs of neighbours, and their stores."""
    t, stage = _warps(product, plan), product.stage
    results = t.tiles * MMA_M * MMA_N / WARP
    read = _read_parameters(stage, product.op) / _PAIR * hardware.chain.neighbour_read_instructions
    per_thread = results * (_applied(tiles, stage) + read)
    written = plan.warps * results * WARP * sum(itemsize(v.tensor.dtype) for v, _ in stage.results[-1:])
    waits = hardware.chain.read_clk if product.last and _read_parameters(stage, product.op) else 0.0
    alone = per_thread * hardware.contract.clk_per_instruction + waits
    port = written / hardware.smem_bytes_per_sm_per_clk
    return StageLoad(0.0, port, _issue(plan.warps * per_thread, hardware), alone)


def _applied(tiles: TilesChain, stage: Stage) -> float:
    """Instructions per result of the maps behind an anchor, of rounding and storing.

    What maps round on their way is not rounded there (pass excess-precision).
    """
    maps = [op for op, _ in stage.members if op is not stage.anchor]
    inner = (i.name for op in maps if op.body is not None for i in walk(op.body))
    outside = any(v in tiles.chain.kept and tiles.chain.kept[v].fill is not None for v, _ in stage.results)
    own = instructions(name for name in inner if name != "scalar.cast")
    return own + _ROUND_INSTRUCTIONS + (_OUTSIDE_INSTRUCTIONS if outside else 0.0)


def _read_parameters(stage: Stage, anchor: Op) -> int:
    """Elements of other tensors that the maps behind an anchor read for each result."""
    own = {v for v, _ in stage.results}
    maps = [op for op, _ in stage.members if op is not anchor]
    return sum(v not in own for op in maps for v in op.operands)


def _window_bytes(tiles: TilesChain, stage: Stage) -> float:
    """Bytes of parameters that a block reads for a window, each once: they stay in the first cache."""
    return float(
        sum(
            prod(s.extent for s in read_box(stage.anchor, at, stage.domain)) * itemsize(v.tensor.dtype)
            for v, at in placed_reads(stage.anchor)
            if v not in tiles.chain.kept
        )
    )


def _window(tiles: TilesChain, stage: Stage, plan: ChainTilesParameters, hardware: GpuHardware) -> StageLoad:
    """A window on lanes: vectors that a thread reads for all its results, products, maps, stores."""
    op = stage.anchor
    extents = tuple(s.extent for s in stage.domain)
    runs = runs_of(extents, window_points(op), plan.threads)
    box = tuple(
        Span((), 0, n) for n in (*(1 for _ in extents[:-2]), runs.run, runs.channels)[-len(extents) :]
    )
    vectors = port_bytes = checks = 0.0
    for (v, at), fill in zip(placed_reads(op), fills(op), strict=True):
        elements = prod(s.extent for s in read_box(op, at, box))
        vectors += elements / runs.channels
        port_bytes += elements * itemsize(v.tensor.dtype)
        if fill is not None and v not in tiles.chain.kept:
            checks += elements / runs.channels * hardware.chain.read_instructions
    results = runs.run * runs.channels
    fma = window_points(op) * results
    # every element that is read is widened once
    read = vectors * (1.0 + runs.channels)
    tail = results * _applied(tiles, stage)
    per_unit = fma + read + checks + tail + hardware.window.start_instructions
    per_thread = runs.steps * per_unit
    issued = runs.units * per_unit / WARP
    port = runs.units * (port_bytes + results * itemsize(stage.results[-1][0].tensor.dtype))
    alone = per_thread * hardware.contract.clk_per_instruction + hardware.chain.read_clk + _wait(hardware)
    return StageLoad(0.0, port / hardware.smem_bytes_per_sm_per_clk, _issue(issued, hardware), alone)


def _registers(tiles: TilesChain, plan: ChainTilesParameters) -> int:
    """Registers of a thread: sums of the last product, beside them those of the stage that needs most."""
    last = len(tiles.chain.stages) - 1
    sums, most = 0.0, 0.0
    for i, stage in enumerate(tiles.chain.stages):
        if i in tiles.products:
            t = _warps(tiles.products[i], plan)
            fragments = t.tiles_m * _ROW_REGISTERS + t.tiles_n * _COLUMN_REGISTERS
            own = t.tiles * _SUM_REGISTERS
            sums = own if i == last else sums
            most = max(most, fragments + (0 if i == last else own))
        else:
            runs = runs_of(tuple(s.extent for s in stage.domain), window_points(stage.anchor), plan.threads)
            most = max(most, (runs.run + window_points(stage.anchor) / 2) * runs.channels)
    return int(_OTHER_REGISTERS + sums + most)


def resident_blocks(work: ChainTilesWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor; 0 where none does."""
    if work.shared_bytes > hardware.smem_per_block_max_bytes or work.threads > hardware.max_threads_per_block:
        return 0
    if work.registers > hardware.max_registers_per_thread:
        return 0
    return int(
        min(
            hardware.max_blocks_per_sm,
            hardware.max_threads_per_sm // work.threads,
            hardware.smem_per_sm_bytes // (work.shared_bytes + hardware.smem_reserved_per_block_bytes),
            hardware.registers_per_sm // (work.threads * work.registers),
        )
    )


def estimate_chain_tiles(work: ChainTilesWork, hardware: GpuHardware) -> float:
    """Estimated seconds; inf where a block cannot be resident."""
    fit, resident = hardware.matrix, resident_blocks(work, hardware)
    if not resident:
        return float("inf")
    per_sm = -(-work.blocks // hardware.sm_count)
    rounds, rest = divmod(per_sm, min(resident, per_sm))
    busy_clk = rounds * _round_clk(min(resident, per_sm), work, hardware)
    busy_clk += _round_clk(rest, work, hardware) if rest else 0.0
    # The start of the first blocks is part of the launch.
    busy_clk -= hardware.stream.block_start_clk
    busy_s = busy_clk / hardware.clock_hz
    dram_s = work.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    fetched = work.blocks * work.fetched_bytes
    l2_s = fetched / (hardware.l2_bytes_per_s * hardware.chain.l2_efficiency)
    moved_s = max(dram_s, l2_s)
    longest, shorter = max(busy_s, moved_s), min(busy_s, moved_s)
    exposed = fit.exposed_share + (fit.exposed_alone_share if resident == 1 and per_sm > 1 else 0.0)
    return float(hardware.contract.launch_s + longest + exposed * shorter)


def _round_clk(resident: int, work: ChainTilesWork, hardware: GpuHardware) -> float:
    """Cycles of so many blocks side by side on one multiprocessor, from start to end."""
    fit = hardware.matrix
    rows = resident * (work.row_bytes + work.weight_bytes) / fit.l2_bytes_per_sm_per_clk
    start = fit.block_clk + fit.fetch_clk + rows + sum(s.clk(resident) for s in work.before)
    step = sum(s.clk(resident) for s in work.each)
    if work.steps > 1:
        # weights of the next step are asked for when a stage has used those of this one
        around = fit.fetch_clk + resident * work.weight_bytes / fit.l2_bytes_per_sm_per_clk
        step = max(step, around)
    return float(start + work.steps * step + work.end.clk(resident))


def bound_chain_tiles(work: ChainTilesWork, hardware: GpuHardware) -> Bound:
    """The sound lower bound: all bytes once, products and windows at their peaks, the launch."""
    tensor_s = work.tensor_flops / (
        2.0 * hardware.tensor_fma_16bit_per_sm_per_clk * hardware.sm_count * hardware.clock_hz
    )
    lanes_s = work.lane_flops / hardware.peak_flops_per_s
    peak_s = max(tensor_s, lanes_s)
    terms = {
        "GM": work.compulsory_bytes / hardware.dram_bytes_per_s,
        "L2": work.compulsory_bytes / hardware.l2_bytes_per_s,
        PEAK: peak_s,
        LAUNCH: hardware.launch_floor_s,
    }
    warm = terms | {"GM": max(0.0, work.compulsory_bytes - hardware.l2_bytes) / hardware.dram_bytes_per_s}
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, peak_s / seconds), seconds, limit, max(warm.values()))
