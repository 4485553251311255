"""The production search space of contract kernels: the points worth estimating, small enough for one
compilation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.geometry import contract_fetch, estimated_registers
from tilewright.costmodel.kernels.parameters import ContractSpace, Staging
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import IntArray
from tilewright.ir.errors import InputError
from tilewright.ir.hardware_facts import WARP

_MAX_THREADS_PER_AXIS = 64
_PIXELS_WORTH_BATCHING = 256
_MAX_BLOCKS_OF_ODD_SIZE = 4
_MAX_STEPS = 4
_MAX_CHANNEL_STEP = 64
_MAX_STEP_TAPS = 288
_MIN_STEP_TAPS = 4
_CPU_WORK_ITEMS = (1, 2, 4, 8)


@dataclass(frozen=True)
class SpaceLimits:
    """Limits of the code generator: bounds on the production space.

    `max_accumulators` and `max_registers` (an estimate) keep a thread within its registers; with two stages a
    thread may hold at most `max_prefetch_steps` copies per operand, since a longer fetch loop is not unrolled
    and would put them in local memory. `smem_limit_bytes` is the static limit unless the launcher opts in to
    more; it counts the tiles as the kernel declares them, halo and row padding included.
    """

    max_accumulators: int = 64
    max_thread_tile: int = 8
    min_threads: int = 32
    max_threads: int = 512
    max_registers: int = 168
    max_prefetch_steps: int = 16
    smem_limit_bytes: int = 49152
    stages: tuple[int, ...] = (1, 2)
    smem_pads: tuple[int, ...] = (0,)


def production_space(problem: ContractProblem, hardware: Hardware, limits: SpaceLimits) -> ContractSpace:
    """Return all production points within `limits`, at least one. Raises InputError where the limits admit
    none.
    """
    if isinstance(hardware, CpuHardware):
        return _cpu_space(problem, hardware, limits)
    # windows that reach far leave room for few channels at a time: short steps are a last resort
    for steps in (_channel_steps(problem), _short_steps(problem)):
        for multiple in (WARP, 1):
            least = limits.min_threads if multiple == WARP else 1
            space = _gpu_space(problem, hardware, limits, least, multiple, steps)
            if len(space):
                return space
    raise InputError(f"no implementation parameters of {problem} fit {hardware.name} within {limits}")


def _gpu_space(
    problem: ContractProblem,
    hardware: GpuHardware,
    limits: SpaceLimits,
    least: int,
    multiple: int,
    steps: list[int],
) -> ContractSpace:
    most = min(limits.max_threads, hardware.max_threads_per_block)
    crowded = problem.h * problem.w > _PIXELS_WORTH_BATCHING
    outer = _powers(min(4, limits.max_thread_tile))  # of rows of images; of samples where those are one row
    tables = [
        _pairs(problem.n, outer, 16)
        if problem.h == 1
        else _pairs(problem.n, [1] if crowded else [1, 2], 1 if crowded else 8),
        _pairs(problem.k, _powers(limits.max_thread_tile), _MAX_THREADS_PER_AXIS),
        _pairs(problem.h, outer, 16),
        _pairs(problem.w, _row_tiles(problem, limits), _MAX_THREADS_PER_AXIS),
    ]
    index = _cross(tables, most, limits.max_accumulators)
    threads = np.ones(len(index[0]), dtype=np.int64)
    for table, chosen in zip(tables, index, strict=True):
        threads *= (table[:, 1] // table[:, 0])[chosen]
    keep = (threads >= least) & (threads % multiple == 0)
    space = _with_tails(problem, tables, [i[keep] for i in index], limits, "shared", steps)
    fetch = contract_fetch(problem, space)
    limit = min(limits.smem_limit_bytes, hardware.smem_per_block_max_bytes)
    fits = problem.element_bytes * fetch.words <= limit
    unrolled = np.maximum(fetch.input_steps, fetch.weight_steps) <= limits.max_prefetch_steps
    registers = estimated_registers(space, fetch)
    granted = np.minimum(limits.max_registers, hardware.registers_per_sm // space.threads)
    return space.take(fits & (unrolled | (space.stages == 1)) & (registers <= granted))


def _cpu_space(problem: ContractProblem, hardware: CpuHardware, limits: SpaceLimits) -> ContractSpace:
    """Register tiles of a few SIMD vectors along k times pixels; a work-group is a few neighbouring tiles."""
    lanes = hardware.simd_lanes
    vectors = [v for v in _powers(lanes) if v <= problem.k] or [1]
    k_tiles = sorted({v * m for v in (vectors[-1], *_dividing(vectors, problem.k)) for m in (1, 2, 4)})
    pixels = [1, 2, 3, 4, 5, 6, 7, 8, 14]
    tables = [
        _pairs(problem.n, pixels[:4] if problem.h == 1 else [1], 1),
        _pairs(problem.k, [t for t in k_tiles if t <= max(problem.k, vectors[-1])], 1),
        _pairs(problem.h, pixels[:4], 1),
        _pairs(problem.w, pixels, max(_CPU_WORK_ITEMS)),
    ]
    index = _cross(tables, max(_CPU_WORK_ITEMS), limits.max_accumulators * lanes)
    return _with_tails(problem, tables, index, SpaceLimits(stages=(1,)), "direct", [problem.c])


def _with_tails(
    problem: ContractProblem,
    tables: list[IntArray],
    index: list[IntArray],
    limits: SpaceLimits,
    staging: Staging,
    steps: list[int],
) -> ContractSpace:
    """Attach every channel step, stage count and row padding to the tile combinations at `index`."""
    tails = np.array(
        [
            (c, s, p)
            for c in steps
            for s in limits.stages
            if s == 1 or c < problem.c
            for p in limits.smem_pads
        ],
        dtype=np.int64,
    ).reshape(-1, 3)
    columns = [np.repeat(table[i], len(tails), axis=0) for table, i in zip(tables, index, strict=True)]
    tail = np.tile(tails, (len(index[0]), 1))
    (n, k, h, w) = columns
    return ContractSpace(
        n_t=n[:, 0], n_b=n[:, 1], k_t=k[:, 0], k_b=k[:, 1],
        h_t=h[:, 0], h_b=h[:, 1], w_t=w[:, 0], w_b=w[:, 1],
        c_step=tail[:, 0], stages=tail[:, 1], smem_pad=tail[:, 2], staging=staging,
    )  # fmt: skip


def _channel_steps(problem: ContractProblem) -> list[int]:
    """Divisors of the channel count that give an iteration a sensible length, the longest few."""
    divisors = _dividing(list(range(1, min(problem.c, _MAX_CHANNEL_STEP) + 1)), problem.c)
    sized = [c for c in divisors if _MIN_STEP_TAPS <= c * problem.taps <= _MAX_STEP_TAPS]
    even = [c for c in sized if c & (c - 1) == 0]
    return (even if len(even) >= 2 else sized or divisors[:1])[-_MAX_STEPS:]


def _short_steps(problem: ContractProblem) -> list[int]:
    """Divisors of the channel count below the sensible lengths."""
    least = _channel_steps(problem)[0]
    return _dividing(list(range(1, least)), problem.c)


def _pairs(extent: int, thread_tiles: list[int], most_threads: int) -> IntArray:
    """(thread tile, block tile) rows with up to `most_threads` threads along the dimension."""
    pairs: list[tuple[int, int]] = []
    for tile in thread_tiles:
        tiles = -(-extent // tile)
        if tile > 1 and tile >= 2 * extent:
            continue
        pairs += [(tile, tile * count) for count in _thread_counts(tiles, most_threads)]
    return np.array(pairs or [(1, 1)], dtype=np.int64)


def _thread_counts(tiles: int, most: int) -> list[int]:
    """Threads along a dimension of `tiles` thread tiles: powers of two, and exact fits of a few blocks."""
    powers = [p for p in _powers(most) if p <= tiles]
    fits = [
        tiles // b for b in range(1, _MAX_BLOCKS_OF_ODD_SIZE + 1) if tiles % b == 0 and tiles // b <= most
    ]
    return sorted({*powers, *fits})


def _cross(tables: list[IntArray], most_threads: int, most_accumulators: int) -> list[IntArray]:
    """Index arrays of all combinations of table rows within both limits, pruned dimension by dimension."""
    index: list[IntArray] = []
    threads = np.ones(1, dtype=np.int64)
    accumulators = np.ones(1, dtype=np.int64)
    for table in tables:
        all_threads = threads[:, None] * (table[:, 1] // table[:, 0])[None, :]
        all_accumulators = accumulators[:, None] * table[:, 0][None, :]
        old, new = np.nonzero((all_threads <= most_threads) & (all_accumulators <= most_accumulators))
        threads, accumulators = all_threads[old, new], all_accumulators[old, new]
        index = [column[old] for column in index] + [new]
    return index


def _row_tiles(problem: ContractProblem, limits: SpaceLimits) -> list[int]:
    """Outputs of a thread along a row: powers of two, and where a window slides along it odd numbers, which
    taps share what they read for.
    """
    odd = [3, 5, 7] if problem.f_w > 1 else []
    return sorted({*_powers(limits.max_thread_tile), *(t for t in odd if t <= limits.max_thread_tile)})


def _powers(most: int) -> list[int]:
    return [1 << e for e in range(most.bit_length()) if 1 << e <= most]


def _dividing(values: list[int], extent: int) -> list[int]:
    return [v for v in values if extent % v == 0]
