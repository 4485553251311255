"""Implementation parameters of a kernel: one frozen dataclass per skeleton and its struct-of-arrays form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.kernels.windows import IntArray

Staging = Literal["shared", "direct"]


@dataclass(frozen=True)
class ContractParameters:
    """How one contract kernel is cut.

    `x_b` and `x_t` are the block and the thread tile of output dimension x; `c_step` input channels are
    consumed per iteration; `stages` = 2 fetches the next iteration into registers while computing. With
    `staging` "shared" the block copies its input and weight tiles to shared memory, each input row padded by
    `smem_pad` elements; with "direct" every work-item reads global memory itself. The width of vectors along
    k follows from `k_t` and the device (`tilewright.costmodel.kernels.geometry.vector_width`).
    """

    n_b: int
    k_b: int
    h_b: int
    w_b: int
    n_t: int
    k_t: int
    h_t: int
    w_t: int
    c_step: int
    stages: int = 1
    staging: Staging = "shared"
    smem_pad: int = 0

    @property
    def threads(self) -> int:
        """Threads (work-items) per block: product of block tile over thread tile."""
        return (
            (self.n_b // self.n_t) * (self.k_b // self.k_t) * (self.h_b // self.h_t) * (self.w_b // self.w_t)
        )

    @property
    def accumulators(self) -> int:
        """Outputs per thread."""
        return self.n_t * self.k_t * self.h_t * self.w_t


CONTRACT_COLUMNS = tuple(f.name for f in fields(ContractParameters) if f.name != "staging")


@dataclass(frozen=True, eq=False)
class ContractSpace:
    """Many `ContractParameters` as equally long int64 arrays; one `staging` for all."""

    n_b: IntArray
    k_b: IntArray
    h_b: IntArray
    w_b: IntArray
    n_t: IntArray
    k_t: IntArray
    h_t: IntArray
    w_t: IntArray
    c_step: IntArray
    stages: IntArray
    smem_pad: IntArray
    staging: Staging = "shared"

    def __len__(self) -> int:
        return len(self.n_b)

    @cached_property
    def threads(self) -> IntArray:
        """Threads per block."""
        threads = (self.n_b // self.n_t) * (self.k_b // self.k_t)
        return threads * ((self.h_b // self.h_t) * (self.w_b // self.w_t))

    @cached_property
    def accumulators(self) -> IntArray:
        """Outputs per thread."""
        return self.n_t * self.k_t * self.h_t * self.w_t

    def at(self, index: int) -> ContractParameters:
        """The parameters at `index`."""
        values = {name: int(getattr(self, name)[index]) for name in CONTRACT_COLUMNS}
        return ContractParameters(staging=self.staging, **values)

    def take(self, chosen: IntArray | npt.NDArray[np.bool_]) -> ContractSpace:
        """The sub-space selected by an index array or a mask."""
        columns = {name: getattr(self, name)[chosen] for name in CONTRACT_COLUMNS}
        return ContractSpace(staging=self.staging, **columns)


def contract_space(parameters: Sequence[ContractParameters]) -> ContractSpace:
    """The struct-of-arrays form of `parameters`, which must agree in `staging` (ValueError otherwise)."""
    stagings = {p.staging for p in parameters}
    if len(stagings) != 1:
        raise ValueError(f"expected parameters of one staging, got {sorted(stagings)}")
    columns = {
        name: np.array([getattr(p, name) for p in parameters], dtype=np.int64) for name in CONTRACT_COLUMNS
    }
    return ContractSpace(staging=stagings.pop(), **columns)


@dataclass(frozen=True)
class WindowParameters:
    """Pooling and depthwise kernels: threads per block, outputs along w and h per thread, words per store."""

    threads: int
    outputs_per_thread: int
    vec: int
    rows_per_thread: int = 1


@dataclass(frozen=True)
class MapParameters:
    """Elementwise kernels: threads per block, vector width in elements, vectors per thread."""

    threads: int
    vec: int
    items_per_thread: int


@dataclass(frozen=True)
class RowReduceParameters:
    """Row reductions: threads that share one row, rows per block, vector width of the loads in elements."""

    threads_per_row: int
    rows_per_block: int
    vec: int


@dataclass(frozen=True)
class LineParameters:
    """Kernels of ordered steps: threads per block, and threads that share the elements of one line."""

    threads: int
    owners: int


@dataclass(frozen=True)
class MatrixParameters:
    """How one tensor-core kernel is cut.

    A block computes an m x n tile of the product with warps_m x warps_n warps, k of the reduced channel at a
    time, through a ring of `stages` buffers. There are warps_k such sets of warps: each multiplies its part
    of every chunk, and the parts' sums are added at the end. groups: 1 where groups of four warps along m
    multiply tiles in shared memory (wgmma), 0 where every warp multiplies fragments (mma.sync).
    """

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int
    warps_k: int = 1
    groups: int = 0

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k


Parameters = (
    LineParameters
    | ContractParameters
    | MatrixParameters
    | WindowParameters
    | MapParameters
    | RowReduceParameters
)
