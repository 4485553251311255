"""The implementation parameters of kernels of gates, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import LINE_BYTES, MMA_K_BYTES, MMA_M, MMA_N, SECTOR_BYTES, WARP
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.resident_tiles.view import TilesView


def depth_of(dtype: str) -> int:
    """Terms of a sum that one instruction adds."""
    return MMA_K_BYTES // itemsize(dtype)


def lies_in_swizzled_rows(elements: int, dtype: str) -> bool:
    """Return whether rows of shared memory of so many elements have an order without bank conflicts."""
    row_bytes = elements * itemsize(dtype)
    return row_bytes in (SECTOR_BYTES, 2 * SECTOR_BYTES) or row_bytes % LINE_BYTES == 0


@dataclass(frozen=True)
class GatedParameters(AttrRecord):
    """Parameters: rows and units of a block, and sets of warps, each of which adds a part of all sums.

    rows: whole tiles, or all rows of the batch, of which the last tile need not be full.
    """

    rows: int
    units: int
    sets: int

    def groups(self) -> int:
        """Groups of neighbouring units of a block; a warp of each set has one."""
        return self.units // MMA_N

    def threads(self) -> int:
        """Threads of a block."""
        return self.groups() * self.sets * WARP

    def tiles(self) -> int:
        """Tiles of rows of a block, all of which a warp multiplies; rows of the last one may be missing."""
        return -(-self.rows // MMA_M)

    def blocks(self, view: TilesView) -> int:
        """Blocks of the grid."""
        return view.rows // self.rows * (view.units // self.units)

    def steps(self, view: TilesView) -> int:
        """Instructions along the part of a sum that a set adds."""
        return view.length // self.sets // depth_of(view.dtype)

    def points(self) -> int:
        """Elements of a matrix of units that a thread finishes, at most."""
        return -(-self.rows * self.units // self.threads())

    def fetched_bytes(self, view: TilesView) -> tuple[int, int]:
        """Bytes of the state and of weights that a block brings to shared memory."""
        row_bytes = view.length * itemsize(view.dtype)
        return self.rows * row_bytes, self.units * len(view.gates) * row_bytes

    def held_bytes(self, view: TilesView) -> int:
        """Bytes of shared memory for them, with the rows that the last tile of the state misses."""
        missing = self.tiles() * MMA_M - self.rows
        return sum(self.fetched_bytes(view)) + missing * view.length * itemsize(view.dtype)

    def parts_bytes(self, view: TilesView) -> int:
        """Bytes of the parts of sums in shared memory."""
        return self.sets * self.tiles() * MMA_M * self.units * view.most_sums * 4

    def shared_bytes(self, view: TilesView) -> int:
        """Bytes of shared memory."""
        return self.held_bytes(view) + self.parts_bytes(view)

    def check(self, view: TilesView) -> None:
        """Raise InputError where rows, units or sums cannot be divided so."""
        whole = self.rows % MMA_M == 0 or self.rows == view.rows
        if self.rows < 1 or not whole or view.rows % self.rows:
            raise InputError(f"expected rows by {MMA_M} that divide {view.rows}, got {self.rows}")
        if self.units < 1 or self.units % MMA_N or view.units % self.units:
            raise InputError(f"expected units by {MMA_N} that divide {view.units}, got {self.units}")
        if self.units > MMA_N and not lies_in_swizzled_rows(self.units, view.dtype):
            raise InputError(f"expected units of 16, 32, 64 or a multiple of 128 bytes, got {self.units}")
        depth = depth_of(view.dtype)
        if self.sets < 1 or view.length % (self.sets * depth):
            raise InputError(f"expected sets that divide {view.length} terms by {depth}, got {self.sets}")
        check_threads(self.threads())


def gated_parameters(kernel: Func, view: TilesView) -> GatedParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, GatedParameters)
    with faults_of(kernel):
        parameters.check(view)
    return parameters
