"""Reads of one warp of a contract kernel from shared memory: runs, lanes, bank conflicts."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.kernels.bank_conflicts import most_of_a_bank
from tilewright.costmodel.kernels.geometry import vector_width
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import FloatArray, IntArray, distinct_rows, staged_rows
from tilewright.ir.hardware_facts import BANKS, VECTOR_BYTES, WARP

#: indices that a thread reads and owns together where no window moves along a row
ROW_RUN = 4
#: lanes along rows and along columns where a warp is two-dimensional: 8 lanes read 8 runs, 128 bytes, at once
ROW_LANES, COLUMN_LANES = 8, 4
#: multiply-adds and loads in one unrolled loop body at most: keeps code within the instruction cache, and the
#: compiler from moving more loads ahead than there are registers
CONTRACT_UNROLL_BUDGET = 768
#: reduction points in one unrolled body at most
UNROLL_POINTS = 32
_LARGEST_KEY = 1 << 63


def owned_together(outputs: int, *, along_row: bool) -> bool:
    """Return whether a thread's outputs along an axis that a window moves lie side by side."""
    return outputs > 1 and (outputs % 2 == 1 or not along_row)


def input_loads(problem: ContractProblem, space: ContractSpace) -> FloatArray:
    """Loads of the first operand per thread and reduced channel: taps in one unrolled body share them."""
    work = space.accumulators + space.k_t + space.n_t * space.h_t * space.w_t
    room = np.minimum(CONTRACT_UNROLL_BUDGET // work, UNROLL_POINTS).clip(1)
    rows, columns = space.h_t * problem.f_h, space.w_t * problem.f_w
    shared_rows, shared_columns = (
        distinct_rows(space.h_t, problem.axis_h),
        distinct_rows(space.w_t, problem.axis_w),
    )
    odd = (space.w_t % 2 == 1) & (problem.f_w <= room)
    rows = np.where(problem.taps <= room, shared_rows, rows)
    columns = np.where(odd, shared_columns, columns)
    return np.asarray(space.n_t * rows * columns / read_runs(problem, space), dtype=np.float64)


def read_runs(problem: ContractProblem, space: ContractSpace) -> IntArray:
    """Rows that one shared-memory load reads: runs of four where no window moves along them."""
    return np.where((problem.f_w == 1) & (space.w_t % ROW_RUN == 0), ROW_RUN, 1)


def read_wavefronts(problem: ContractProblem, space: ContractSpace) -> tuple[FloatArray, FloatArray]:
    """Wavefronts of one load of rows and of one load of columns by a warp, as the kernel lays threads out.

    Lanes that take turns together and read the same word share it; a bank delivers one word per wavefront.
    """
    runs = read_runs(problem, space)
    pad = 0 if problem.rows_inner else VECTOR_BYTES // problem.element_bytes
    shapes = np.stack(
        [
            space.w_b // space.w_t,
            space.h_b // space.h_t,
            space.n_b // space.n_t,
            staged_rows(space.w_b, problem.axis_w) + space.smem_pad + pad,
            staged_rows(space.h_b, problem.axis_h),
            space.k_b // space.k_t,
            space.k_t,
            runs,
            np.where(problem.f_h > 1, space.h_t, 1),
            np.where((problem.f_w > 1) & (space.w_t % 2 == 1), space.w_t, runs),
        ]
    )
    distinct, which = distinct_columns(shapes)
    across, down, images, columns, rows, along, k_t, run, beside_h, beside_w = (x[:, None] for x in distinct)
    w, h, n, k = _lanes(across, down, images, along, run)
    # a window keeps all columns between two outputs; without one only those that are read are staged
    step_w = problem.stride_w if problem.f_w > 1 else 1
    step_h = problem.stride_h if problem.f_h > 1 else 1
    row_words = (n * rows + h * step_h * beside_h) * columns + w * step_w * beside_w
    vector = vector_width(k_t, VECTOR_BYTES // problem.element_bytes)
    wavefronts = _wavefronts(row_words, run), _wavefronts(k * k_t, vector)
    first, second = (f[which].astype(np.float64) for f in wavefronts)
    return first, second


def distinct_columns(rows: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct columns of integers from 0 on, and which of them each column is.

    Each column is packed into one integer: sorting those is many times faster than sorting columns.
    """
    key, values = np.zeros(rows.shape[1], dtype=np.int64), 1
    for row in rows:
        size = int(row.max()) + 1
        if values * size >= _LARGEST_KEY:
            packed, key = np.unique(key, return_inverse=True)
            values = len(packed)
        key, values = key * size + row, values * size
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return rows[:, first], which


def _lanes(
    across: IntArray, down: IntArray, images: IntArray, along: IntArray, run: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Thread indices along w, h, n and k of the lanes of the first warp; arguments are threads, (points, 1).

    Runs let a warp be 8 threads of rows and samples by 4 of columns; else rows fill the warp first.
    """
    lane = np.arange(WARP)[None, :]
    beside = np.gcd(across, ROW_LANES)
    square = (
        (run > 1) & (beside * np.gcd(images, ROW_LANES // beside) == ROW_LANES) & (along % COLUMN_LANES == 0)
    )
    wide, tall = np.where(square, beside, across), np.where(square, 1, down)
    deep = np.where(square, ROW_LANES // beside, images)
    rest = lane // (wide * tall * deep)
    return lane % wide, lane // wide % tall, lane // (wide * tall) % deep, rest % along


def _wavefronts(words: IntArray, width: IntArray) -> IntArray:
    """Wavefronts of accesses of `width` words, (points, 1), at `words`, (points, lanes), multiples of it.

    Shared memory returns a word to every lane per wavefront, so that lanes of wider accesses take turns.
    """
    out = np.ones(len(words), dtype=np.int64)
    for size in map(int, np.unique(width)):
        chosen = width[:, 0] == size
        turns = (words[chosen] // size).reshape(-1, size, WARP // size)
        out[chosen] = most_of_a_bank(turns, BANKS // size).sum(axis=1)
    return out
