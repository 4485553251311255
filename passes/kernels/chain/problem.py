"""The work of a block of a chain kernel with given parameters, for the cost model; where it is illegal."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.costmodel.hardware.coefficients import ChainCoefficients
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Op, TensorType, Value
from tilewright.ir.hardware_facts import LINE_BYTES, SECTOR_BYTES, VECTOR_BYTES, WARP
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.index_sets import placed_reads, recompute_cost
from tilewright.passes.kernels.chain.block import contiguous, kept_shape
from tilewright.passes.kernels.chain.contract import (
    DEPTH,
    chunk_steps,
    deep_dim,
    is_staged,
    staged_region,
    staged_shape,
)
from tilewright.passes.kernels.chain.lowering import shared_lanes
from tilewright.passes.kernels.chain.parameters import ChainParameters
from tilewright.passes.kernels.chain.reduce import MAP_VECTOR, serial_items
from tilewright.passes.kernels.chain.regions import read_box
from tilewright.passes.kernels.chain.stages import Chain, Stage
from tilewright.passes.kernels.chain.tiles import contract_tiles
from tilewright.passes.kernels.chain.work import ChainStageWork, ChainWork
from tilewright.passes.kernels.kernel_problem import stride_of, traffic

#: registers beside accumulators and operands
_BASE_REGISTERS = 40


def chain_work(chain: Chain, plan: ChainParameters, hardware: GpuHardware) -> ChainWork:
    """The work of one chain kernel."""
    fit = hardware.chain
    shared = sum(
        _bytes(kept_shape(chain, v), v) for s in chain.stages for v, _ in s.results if v in chain.kept
    )
    stages, registers = [], _BASE_REGISTERS
    for stage in chain.stages:
        if stage.anchor.name == "tensor.contract" and not shared_lanes(stage, plan):
            shared += _staged_bytes(chain, stage, plan)
            tiles = contract_tiles(stage.anchor, stage.domain, plan.threads)
            registers = max(
                registers, _BASE_REGISTERS + tiles.accumulators + DEPTH * sum(tiles.tile.values())
            )
            stages.append(_contract_work(chain, stage, plan, fit))
        elif stage.anchor.name in REDUCING:
            stages.append(_reduce_work(chain, stage, plan, fit))
        else:
            stages.append(_map_work(chain, stage, plan, fit))
    flops = sum(2.0 * prod(dims(s.anchor, "par").values()) * reduced_length(s.anchor) for s in chain.stages)
    return ChainWork(
        prod(chain.blocks.values()),
        plan.threads,
        shared,
        registers,
        traffic(chain.kernel),
        flops,
        tuple(stages),
    )


def _bytes(shape: tuple[int, ...], v: Value) -> int:
    return prod(shape) * itemsize(v.tensor.dtype)


def reduced_length(op: Op) -> int:
    """Points of the reduced domain; 1 for a map."""
    return prod(dims(op, "red").values()) if op.name in REDUCING else 1


def _staged_bytes(chain: Chain, stage: Stage, plan: ChainParameters) -> int:
    step, total = chunk_steps(chain, stage, plan), 0
    for i in (0, 1):
        r = staged_region(stage, i, step) if is_staged(chain, stage, i) else None
        total += _bytes(staged_shape(stage, i, r), r.value) if r is not None else 0
    return total


def _contract_work(
    chain: Chain, stage: Stage, plan: ChainParameters, fit: ChainCoefficients
) -> ChainStageWork:
    op = stage.anchor
    tiles = contract_tiles(op, stage.domain, plan.threads)
    step = chunk_steps(chain, stage, plan)
    chunks = reduced_length(op) // prod(step.values())
    deep = deep_dim(stage, step)
    tr, tc = tiles.tile.get(tiles.row, 1), tiles.tile.get(tiles.column, 1)
    loads = 0.0
    for i, n in enumerate((tr, tc)):
        mine = (tiles.row, tiles.column)[i]
        wide = bool(deep) and contiguous(op, i, deep)
        wide |= n % 4 == 0 and bool(mine) and contiguous(op, i, mine)
        loads += n / 4 if wide else n
    instructions = tiles.waves * reduced_length(op) * (tr * tc + loads + 2.0 / (DEPTH if deep else 1))
    fetched, copies = 0.0, 0
    for i in (0, 1):
        r = staged_region(stage, i, step) if is_staged(chain, stage, i) else None
        if r is None:
            continue
        width = VECTOR_BYTES // itemsize(r.value.tensor.dtype) if r.extents[-1] % 4 == 0 else 1
        sources = _sources(chain, r.value)
        copies += -(-r.size // (width * plan.threads)) * sources
        fetched += chunks * _bytes(r.extents, r.value) * sources
    instructions += chunks * copies * fit.copy_instructions
    instructions += tiles.accumulators * (fit.point_instructions + _epilogue(stage))
    outputs = prod(s.extent for s in stage.domain)
    active = -(-min(plan.threads, tiles.units) // WARP)
    extra = 1.0 if _epilogue_reads(chain, stage) else 0.0
    return ChainStageWork(
        instructions,
        active,
        float(outputs * reduced_length(op)),
        fetched,
        (chunks if copies else 0) + extra,
        chunks,
    )


def _sources(chain: Chain, v: Value) -> int:
    """Elements of parameters that one element of a value computed in place reads."""
    if v in chain.kernel.params:
        return 1
    producer = next(op for op in chain.kernel.body.ops if v in op.results)
    return max(1, sum(_sources(chain, x) for x in producer.operands))


def _epilogue(stage: Stage) -> float:
    return float(sum(recompute_cost(op) for op, _ in stage.members if op is not stage.anchor))


def _epilogue_reads(chain: Chain, stage: Stage) -> bool:
    """Return whether the maps after the anchor read parameters."""
    own = {v for op, _ in stage.members for v in op.results}
    later = [v for op, _ in stage.members if op is not stage.anchor for v in op.operands]
    return any(v not in own and v not in chain.kept for v in later)


def _lines(chain: Chain, op: Op, stage: Stage, dim: str) -> float:
    """Lines of the cache that warps look up for what one block reads of global memory, each of an access
    whose lanes follow one another along a dimension.
    """
    total = 0.0
    for v, at in placed_reads(op):
        if v in chain.kept:
            continue
        apart = stride_of(chain.kernel, op, v, at, dim) or itemsize(v.tensor.dtype)
        points = prod(s.extent for s in stage.domain) * reduced_length(op)
        total += _sources(chain, v) * points / max(1, LINE_BYTES // apart)
    return total


def _global_reads(chain: Chain, op: Op, stage: Stage) -> tuple[int, float]:
    """Elements of global memory that one point of an op reads, and the bytes that one block moves for them:
    whole sectors, of which it may need a part.
    """
    count, total = 0, 0.0
    for v, at in placed_reads(op):
        if v in chain.kept:
            continue
        sources = _sources(chain, v)
        count += sources
        box = read_box(op, at, stage.domain)
        sizes = [min(s.extent, n) for s, n in zip(box, v.tensor.shape, strict=True)]
        total += sources * _sector_bytes(sizes, v.tensor)
    return count, total


def _sector_bytes(sizes: Sequence[int], t: TensorType) -> int:
    """Bytes of the sectors that a box of a dense tensor touches, each run of neighbours by itself."""
    run = 1
    for n, extent in zip(sizes[::-1], t.shape[::-1], strict=True):
        run *= n
        if n < extent:
            break
    width = run * itemsize(t.dtype)
    return prod(sizes) // max(1, run) * -(-width // SECTOR_BYTES) * SECTOR_BYTES


def _reduce_work(chain: Chain, stage: Stage, plan: ChainParameters, fit: ChainCoefficients) -> ChainStageWork:
    op = stage.anchor
    lanes = plan.lanes if shared_lanes(stage, plan) else 1
    items = 1 if lanes > 1 else serial_items(stage)
    points = prod(s.extent for s in stage.domain)
    steps = -(-points // (items * (plan.threads // lanes)))
    count, read = _global_reads(chain, op, stage)
    share = -(-reduced_length(op) // lanes) * items
    kept = sum(v in chain.kept for v in op.operands)
    inner = share * (
        1.0 + 3.0 * kept + (fit.read_instructions if lanes == 1 else fit.neighbour_read_instructions) * count
    )
    inner += fit.shuffle_instructions * (lanes.bit_length() - 1)
    instructions = steps * (inner + items * (fit.point_instructions + _epilogue(stage)))
    active = -(-min(plan.threads, -(-points // items) * lanes) // WARP)
    trips = steps * (1.0 if count else 0.0)
    along = list(dims(op, "red") if lanes > 1 else dims(op, "par"))
    lines = _lines(chain, op, stage, along[-1]) if count and along else 0.0
    return ChainStageWork(
        instructions, active, float(points * reduced_length(op)), read, trips, 1, lines=lines
    )


def _map_work(chain: Chain, stage: Stage, plan: ChainParameters, fit: ChainCoefficients) -> ChainStageWork:
    extents = [s.extent for s in stage.domain]
    vec = MAP_VECTOR if extents and extents[-1] % MAP_VECTOR == 0 else 1
    total = prod(extents) // vec
    steps = -(-total // plan.threads)
    count, read = 0, 0.0
    for op, _ in stage.members:
        more, nbytes = _global_reads(chain, op, stage) if op is stage.anchor else (0, 0.0)
        count, read = count + more, read + nbytes
    cost = recompute_cost(stage.anchor) + _epilogue(stage) + fit.neighbour_read_instructions * count
    instructions = steps * (fit.point_instructions + vec * (cost + 2.0))
    active = -(-min(plan.threads, total) // WARP)
    trips = -(-steps // 4) if count else 0
    return ChainStageWork(instructions, active, 0.0, read, float(trips), 1)
