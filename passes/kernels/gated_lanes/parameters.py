"""The implementation parameters of kernels of gates on lanes, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.resident_tiles.view import TilesView

#: bytes of a float32, and neighbours along a sum that a thread loads as one vector
WORD_BYTES = itemsize("f32")
VECTOR = VECTOR_BYTES // WORD_BYTES


@dataclass(frozen=True)
class GatedLanesParameters(AttrRecord):
    """Parameters: rows and units of a block, rows of a thread, and sets of threads.

    A thread has one unit with all its gates, `tile` rows, and of every sum the vectors of its set: each set
    has every so many of them.
    """

    rows: int
    units: int
    tile: int
    sets: int

    def row_groups(self) -> int:
        """Threads that share the rows of a block; each has every so many of them."""
        return self.rows // self.tile

    def threads(self) -> int:
        """Threads of a block."""
        return self.units * self.row_groups() * self.sets

    def blocks(self, view: TilesView) -> int:
        """Blocks of the grid."""
        return view.rows // self.rows * (view.units // self.units)

    def steps(self, view: TilesView) -> int:
        """Vectors of every sum that a thread adds up, at most."""
        return -(-view.length // VECTOR // self.sets)

    def points(self) -> int:
        """Elements of a matrix of units that a thread finishes, at most."""
        return -(-self.rows * self.units // self.threads())

    def totals(self, view: TilesView) -> int:
        """Sums of a block."""
        return self.rows * self.units * view.most_sums

    def pitch(self) -> int:
        """Words from the parts of one sum to those of the next: an odd number, for the sake of banks."""
        return self.sets | 1

    def fetched_bytes(self, view: TilesView) -> tuple[int, int]:
        """Bytes of the state and of weights that a block brings to shared memory."""
        row_bytes = view.length * WORD_BYTES
        return self.rows * row_bytes, self.units * len(view.gates) * row_bytes

    def parts_bytes(self, view: TilesView) -> int:
        """Bytes of the parts of sums in shared memory, and of the sums."""
        return (self.pitch() + (self.sets > 1)) * self.totals(view) * WORD_BYTES

    def shared_bytes(self, view: TilesView) -> int:
        """Bytes of shared memory."""
        return sum(self.fetched_bytes(view)) + self.parts_bytes(view)

    def check(self, view: TilesView) -> None:
        """Raise InputError where rows, units or sums cannot be divided so."""
        if self.rows < 1 or view.rows % self.rows:
            raise InputError(f"expected rows that divide {view.rows}, got {self.rows}")
        if self.units < 1 or self.units % VECTOR or view.units % self.units:
            raise InputError(f"expected units by {VECTOR} that divide {view.units}, got {self.units}")
        if self.tile < 1 or self.rows % self.tile:
            raise InputError(f"expected rows of a thread that divide {self.rows}, got {self.tile}")
        if not 1 <= self.sets <= view.length // VECTOR:
            raise InputError(f"expected sets among 1 to {view.length // VECTOR}, got {self.sets}")
        if self.threads() % WARP:
            raise InputError(f"expected whole warps of threads, got {self.threads()}")
        check_threads(self.threads())


def gated_lanes_parameters(kernel: Func, view: TilesView) -> GatedLanesParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, GatedLanesParameters)
    with faults_of(kernel):
        parameters.check(view)
    return parameters
