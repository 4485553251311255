"""How one warp of a contract kernel reads its rows from shared memory: runs, lanes, bank conflicts."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.bank_conflicts import BANKS, wavefront_count
from tilewright.costmodel.parameters import ContractSpace
from tilewright.costmodel.problem import ContractProblem
from tilewright.costmodel.windows import FloatArray, IntArray, staged_rows

#: indices that a thread reads and owns together where no window moves along a row
ROW_RUN = 4
#: lanes along rows and along columns where a warp is two-dimensional: 8 lanes read 8 runs, 128 bytes, at once
ROW_LANES, COLUMN_LANES = 8, 4


def read_runs(problem: ContractProblem, space: ContractSpace) -> IntArray:
    """Rows that one shared-memory load reads: runs of four where no window moves along them."""
    return np.where((problem.f_w == 1) & (space.w_t % ROW_RUN == 0), ROW_RUN, 1)


def row_wavefronts(problem: ContractProblem, space: ContractSpace) -> FloatArray:
    """Wavefronts of one load of rows by a warp, as the skeleton lays threads out."""
    across, along = space.w_b // space.w_t, space.k_b // space.k_t
    square = (across % ROW_LANES == 0) & (along % COLUMN_LANES == 0)
    wide = np.where(square, 1.0, np.clip(across / ROW_LANES, 1.0, ROW_RUN))
    return np.where(read_runs(problem, space) > 1, wide, _scalar_wavefronts(problem, space))


def _scalar_wavefronts(problem: ContractProblem, space: ContractSpace) -> FloatArray:
    """The same for lanes that read one word each, rows of the tile fastest; equal layouts counted once."""
    shapes = np.stack(
        [
            space.w_b // space.w_t,
            space.h_b // space.h_t,
            space.n_b // space.n_t,
            staged_rows(space.w_b, problem.axis_w) + space.smem_pad,
            staged_rows(space.h_b, problem.axis_h),
        ]
    )
    distinct, which = np.unique(shapes, axis=1, return_inverse=True)
    across, down, images, columns, rows = (x[:, None] for x in distinct)
    lane = np.arange(BANKS)[None, :]
    w, h, n = lane % across, lane // across % down, lane // (across * down) % images
    # a window keeps all columns between two outputs; without one only those that are read are staged
    step_w = problem.stride_w if problem.f_w > 1 else 1
    step_h = problem.stride_h if problem.f_h > 1 else 1
    waves = wavefront_count((n * rows + h * step_h) * columns + w * step_w)
    return waves[which.reshape(-1)].astype(np.float64)
