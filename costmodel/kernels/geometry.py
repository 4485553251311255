"""Per-point quantities the bound and the estimator share: blocks, threads, loads, staged bytes, occupancy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.hardware.coefficients import ContractCoefficients
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import (
    FloatArray,
    IntArray,
    clipped_rows,
    distinct_rows,
    staged_rows,
)
from tilewright.ir.hardware_facts import REGISTER_UNIT, VECTOR_BYTES, WARP

ADDRESS_REGISTERS = 30
#: copies of one thread that are unrolled at most, and how many of a longer copy are unrolled together
MAX_UNROLLED_FETCH, ROLLED_FETCH = 16, 4


@dataclass(frozen=True, eq=False)
class Geometry:
    """Derived quantities, one entry per point of a contract space.

    `c_padded` is ceil(C / C_input) C_input. `fma` counts multiply-adds and `load_words` the distinct operand
    words of one thread over the whole reduction. `fill_words_average` is what a block fetches over the whole
    reduction averaged over all blocks and clipped to the image; `fill_words_least` is that of the block that
    fetches least.
    """

    blocks: IntArray
    threads: IntArray
    warps: IntArray
    accumulators: IntArray
    iterations: IntArray
    c_padded: IntArray
    fma: IntArray
    load_words: IntArray
    fill_words_average: FloatArray
    fill_words_least: FloatArray


def vector_width(k_t: IntArray, widest: int) -> IntArray:
    """Elements of one vector along k: the greatest power of two up to `widest` that divides the thread tile.

    widest: the SIMD lanes of a CPU; on a GPU the elements of one 16-byte load of weights.
    """
    return np.asarray(np.minimum(k_t & -k_t, widest), dtype=np.int64)


def ceil_div(a: IntArray | int, b: IntArray | int) -> IntArray:
    """ceil(a / b) of positive integers."""
    return -(-np.asarray(a, dtype=np.int64) // b)


def contract_geometry(problem: ContractProblem, space: ContractSpace) -> Geometry:
    """The derived quantities of every point of `space`."""
    rows, rows_least = clipped_rows(space.h_b, problem.axis_h)
    cols, cols_least = clipped_rows(space.w_b, problem.axis_w)
    n_blocks, k_blocks = ceil_div(problem.n, space.n_b), ceil_div(problem.k, space.k_b)
    spatial = ceil_div(problem.h, space.h_b) * ceil_div(problem.w, space.w_b)
    n_least = problem.n - (n_blocks - 1) * space.n_b
    k_least = problem.k - (k_blocks - 1) * space.k_b
    average = problem.n / n_blocks * (rows * cols) + problem.k / k_blocks * problem.taps
    least = n_least * (rows_least * cols_least) + k_least * problem.taps
    threads = space.threads
    accumulators = space.accumulators
    iterations = ceil_div(problem.c, space.c_step)
    c_padded = iterations * space.c_step
    thread_rows = distinct_rows(space.h_t, problem.axis_h) * distinct_rows(space.w_t, problem.axis_w)
    operands = space.n_t * thread_rows + space.k_t * problem.taps
    return Geometry(
        blocks=problem.groups * n_blocks * k_blocks * spatial,
        threads=threads,
        warps=ceil_div(threads, WARP),
        accumulators=accumulators,
        iterations=iterations,
        c_padded=c_padded,
        fma=accumulators * c_padded * problem.taps,
        load_words=np.asarray(c_padded * operands, dtype=np.int64),
        fill_words_average=problem.c * average,
        fill_words_least=problem.c * least,
    )


def least_shared_bytes(problem: ContractProblem, space: ContractSpace, *, double_buffered: bool) -> IntArray:
    """Shared memory a block cannot do without: distinct rows, never more than the image, and the weight tile.

    With two stages the tiles exist twice if `double_buffered`, else registers hold the next step.
    """
    rows = np.minimum(distinct_rows(space.h_b, problem.axis_h), problem.h_in)
    cols = np.minimum(distinct_rows(space.w_b, problem.axis_w), problem.w_in)
    words = space.n_b * rows * cols + space.k_b * problem.taps
    buffers = space.stages if double_buffered else 1
    return np.asarray(problem.element_bytes * buffers * space.c_step * words, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class StepCopies:
    """Copies to shared memory of one iteration: words, and vector copies per thread, by operand."""

    input_words: IntArray
    weight_words: IntArray
    input_steps: IntArray
    weight_steps: IntArray
    input_width: IntArray
    held_words: IntArray

    @property
    def words(self) -> IntArray:
        """Words of both tiles."""
        return self.input_words + self.weight_words

    @property
    def steps(self) -> IntArray:
        """Vector copies of one thread for both tiles."""
        return self.input_steps + self.weight_steps


def contract_fetch(problem: ContractProblem, space: ContractSpace) -> StepCopies:
    """The cooperative copy of one iteration as the kernel makes it: windows with halo, rows padded by
    `smem_pad`.

    A row is copied in 16-byte vectors where row length, block tile and pitch allow it in every block, else in
    words; where channels lie innermost, vectors run along them. `input_width` is the width of input vectors
    in words; `held_words` are the registers one thread needs to hold its share.
    """
    wide = VECTOR_BYTES // problem.element_bytes
    cols = staged_rows(space.w_b, problem.axis_w)
    images = space.n_b * space.c_step * staged_rows(space.h_b, problem.axis_h)
    aligned_rows = problem.w_in % wide == 0 and problem.f_w == problem.stride_w == 1 and problem.pad[1] == 0
    if problem.rows_inner:
        input_vec = np.where((cols % wide == 0) & (space.smem_pad % wide == 0) & aligned_rows, wide, 1)
    else:
        input_vec = np.where((space.c_step % wide == 0) & (problem.c % wide == 0), wide, 1)
    weight_vec = np.where((space.k_b % wide == 0) & (problem.k % wide == 0), wide, 1)
    weight_words = space.c_step * (space.k_b * problem.taps)
    input_steps = ceil_div(images * cols // input_vec, space.threads)
    weight_steps = ceil_div(weight_words // weight_vec, space.threads)
    return StepCopies(
        input_words=images * (cols + space.smem_pad),
        weight_words=weight_words,
        input_steps=input_steps,
        weight_steps=weight_steps,
        input_width=input_vec,
        held_words=input_steps * input_vec + weight_steps * weight_vec,
    )


def estimated_registers(space: ContractSpace, fetch: StepCopies) -> IntArray:
    """Registers per thread: accumulators, one reduction index of both operands, the prefetched words,
    addresses.
    """
    operands = space.k_t + space.n_t * space.h_t * space.w_t
    prefetched = np.where(space.stages > 1, fetch.held_words, 0)
    return np.asarray(space.accumulators + operands + prefetched + ADDRESS_REGISTERS, dtype=np.int64)


def likely_registers(
    problem: ContractProblem, space: ContractSpace, fetch: StepCopies, fit: ContractCoefficients
) -> IntArray:
    """Registers per thread as the compiler usually grants them.

    With one stage the loads of an unrolled copy are in flight together; windows keep addresses of their taps.
    """
    prefetched = fit.registers_per_prefetched_word * np.where(space.stages > 1, fetch.held_words, 0)
    together = np.where(fetch.input_steps <= MAX_UNROLLED_FETCH, fetch.input_steps, ROLLED_FETCH)
    flight = fit.registers_per_word_in_flight * np.where(space.stages > 1, 0, together * fetch.input_width)
    likely = fit.base_registers + fit.registers_per_accumulator * space.accumulators + prefetched + flight
    likely = likely + (fit.window_registers if problem.taps > 1 else 0.0)
    granted = ceil_div(likely.astype(np.int64), REGISTER_UNIT) * REGISTER_UNIT
    return np.asarray(granted.clip(32, 255 // REGISTER_UNIT * REGISTER_UNIT), dtype=np.int64)


def resident_blocks(
    hardware: GpuHardware, warps: IntArray, shared_bytes: IntArray, registers_per_thread: IntArray
) -> IntArray:
    """Blocks one multiprocessor can hold; 0 where not even one block fits."""
    by_shared = hardware.smem_per_sm_bytes // (shared_bytes + hardware.smem_reserved_per_block_bytes).clip(1)
    by_warps = (hardware.max_threads_per_sm // WARP) // warps
    by_registers = hardware.registers_per_sm // (WARP * warps * registers_per_thread)
    resident = np.minimum(np.minimum(by_shared, by_warps), by_registers)
    return np.asarray(resident.clip(0, hardware.max_blocks_per_sm), dtype=np.int64)
