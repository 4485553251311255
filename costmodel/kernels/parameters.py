"""Implementation parameters of kernels: one record per family for the search, the IR and the lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.kernels.windows import IntArray
from tilewright.ir.typed_attributes import AttrRecord, Sizes

Staging = Literal["shared", "direct"]


@dataclass(frozen=True)
class ContractParameters(AttrRecord):
    """The tiles of one contraction kernel.

    block, thread: tile per parallel dimension; step: chunk per reduced dimension (others whole); stages: 2
    fetches the next step into registers while computing. With `staging` "shared" the block copies its input
    and weight tiles to shared memory, each input row padded by `pad` elements; with "direct" every work-item
    reads global memory itself. The width of vectors along the columns follows from their thread tile and the
    device (`tilewright.costmodel.kernels.geometry.vector_width`). run: consecutive indices that a thread owns
    together, per dimension (columns: all its indices, others 1); lanes: threads of one warp per dimension (by
    default the first dimensions fill the warp).

    The model names the dimensions by their roles in its problem: n, k (the columns), h and w, and c, which is
    reduced. A kernel's parameters name the kernel's own.
    """

    block: Sizes
    thread: Sizes
    step: Sizes
    stages: int
    staging: Staging
    pad: int = field(metadata={"least": 0})
    run: Sizes = field(default_factory=Sizes)
    lanes: Sizes = field(default_factory=Sizes)

    @property
    def threads(self) -> int:
        """Threads (work-items) per block: product of block tile over thread tile."""
        return prod(self.block[d] // n for d, n in self.thread.items())


CONTRACT_COLUMNS = ("n_b", "k_b", "h_b", "w_b", "n_t", "k_t", "h_t", "w_t", "c_step", "stages", "smem_pad")


def contract_point(
    n_b: int, k_b: int, h_b: int, w_b: int, n_t: int, k_t: int, h_t: int, w_t: int, c_step: int,
    stages: int = 1, staging: Staging = "shared", smem_pad: int = 0,
) -> ContractParameters:  # fmt: skip
    """A point of the model's space: `x_b` and `x_t` are the block and the thread tile of dimension x."""
    block, thread = {"n": n_b, "k": k_b, "h": h_b, "w": w_b}, {"n": n_t, "k": k_t, "h": h_t, "w": w_t}
    return ContractParameters(Sizes(block), Sizes(thread), Sizes({"c": c_step}), stages, staging, smem_pad)


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
        return contract_point(**self.named(index))  # type: ignore[arg-type]

    def named(self, index: int) -> dict[str, int | str]:
        """The point at `index` by the names of its columns, as records of measurements have it."""
        columns = {name: int(getattr(self, name)[index]) for name in CONTRACT_COLUMNS}
        return {**columns, "staging": self.staging}

    def take(self, chosen: IntArray | npt.NDArray[np.bool_]) -> ContractSpace:
        """The sub-space selected by an index array or a mask."""
        columns = {name: getattr(self, name)[chosen] for name in CONTRACT_COLUMNS}
        return ContractSpace(staging=self.staging, **columns)


def contract_space(parameters: Sequence[ContractParameters]) -> ContractSpace:
    """The struct-of-arrays form of `parameters`, which must agree in `staging` (ValueError otherwise)."""
    stagings = {p.staging for p in parameters}
    if len(stagings) != 1:
        raise ValueError(f"expected parameters of one staging, got {sorted(stagings)}")
    tiles = [(*p.block.values(), *p.thread.values(), p.step["c"], p.stages, p.pad) for p in parameters]
    columns = dict(zip(CONTRACT_COLUMNS, np.array(tiles, dtype=np.int64).T.copy(), strict=True))
    return ContractSpace(staging=stagings.pop(), **columns)


@dataclass(frozen=True)
class WindowParameters(AttrRecord):
    """Window reductions: threads per block, and outputs of a thread.

    outputs: a number along the last dimension, or one per dimension. The model names dimensions by their
    roles: `rows`, `columns` and `inner`, the last one.
    """

    threads: int
    outputs: int | Sizes


@dataclass(frozen=True)
class MapParameters(AttrRecord):
    """Elementwise kernels: threads per block, vector width in elements, vectors per thread."""

    threads: int
    vec: int
    items: int


@dataclass(frozen=True)
class RowReduceParameters(AttrRecord):
    """Row reductions: threads that share one row, rows per block, vector width of the loads in elements."""

    threads_per_row: int
    rows_per_block: int
    vec: int
