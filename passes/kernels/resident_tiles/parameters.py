"""The implementation parameters of resident kernels on tensor cores, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.ir.thread.tensor_maps import MAX_CLUSTER
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.resident_tiles.view import TilesView

#: terms of a sum that one instruction adds, of 16-bit factors
MMA_K = 16
#: registers of a lane for a tile of weights
WEIGHT_REGISTERS = 2
#: sums of a tile of 16 x 8 in a lane
LANE_SUMS = MMA_M * MMA_N // WARP
#: buffers that hold the state in turn
TURNS = 2


@dataclass(frozen=True)
class TilesParameters(AttrRecord):
    """Parameters: clusters, which share the rows, their blocks, and sets of warps that add parts of sums."""

    clusters: int
    blocks: int
    sets: int

    def rows(self, view: TilesView) -> int:
        """Rows of a cluster."""
        return view.rows // self.clusters

    def tiles(self, view: TilesView) -> int:
        """Tiles of rows of a cluster."""
        return self.rows(view) // MMA_M

    def halves(self, view: TilesView) -> bool:
        """Whether two sets finish half a tile each."""
        return self.sets == 2 * self.tiles(view)

    def units(self, view: TilesView) -> int:
        """Units of a block."""
        return view.units // self.blocks

    def groups(self, view: TilesView) -> int:
        """Groups of neighbouring units of a block; a warp of each set has one."""
        return self.units(view) // MMA_N

    def threads(self, view: TilesView) -> int:
        """Threads of a block."""
        return self.groups(view) * self.sets * WARP

    def own_tiles(self, view: TilesView) -> int:
        """Tiles of rows of which a warp finishes the sums, or half of the sums."""
        return max(1, self.tiles(view) // self.sets)

    def lane_points(self, view: TilesView) -> int:
        """Elements of the state that a lane has."""
        return self.own_tiles(view) * LANE_SUMS // (2 if self.halves(view) else 1)

    def steps(self, view: TilesView) -> int:
        """Instructions along the part of a sum that a set adds."""
        return view.length // self.sets // MMA_K

    def weight_registers(self, view: TilesView) -> int:
        """Registers of a thread that keep weights."""
        return self.steps(view) * len(view.gates) * WEIGHT_REGISTERS

    def slice_bytes(self, view: TilesView) -> int:
        """Bytes of the state that a block's units are."""
        return self.rows(view) * self.units(view) * itemsize(view.dtype)

    def weight_bytes(self, view: TilesView) -> int:
        """Bytes of weights of a block's units, which pass through shared memory once."""
        return self.units(view) * len(view.gates) * view.length * itemsize(view.dtype)

    def exchanged_words(self, view: TilesView) -> int:
        """Parts of sums that each warp leaves to those of the other sets."""
        return (self.sets - 1) * self.lane_points(view) * view.most_sums

    def shared_bytes(self, view: TilesView) -> int:
        """Bytes of shared memory: the state in turns, parts of sums, weights until they are in registers."""
        state = TURNS * self.rows(view) * view.length * itemsize(view.dtype)
        return state + self.threads(view) * self.exchanged_words(view) * 4 + self.weight_bytes(view)

    def _finished(self, view: TilesView) -> bool:
        return self.tiles(view) % self.sets == 0 or (self.tiles(view) == 1 and self.halves(view))

    def check(self, view: TilesView) -> None:
        """Raise InputError where units, rows or sums cannot be divided so."""
        if not 0 < self.blocks <= MAX_CLUSTER or view.units % (self.blocks * MMA_N):
            raise InputError(f"expected blocks that divide {view.units} units by {MMA_N}, got {self.blocks}")
        if self.clusters < 1 or view.rows % (self.clusters * MMA_M):
            raise InputError(
                f"expected clusters that divide {view.rows} rows by {MMA_M}, got {self.clusters}"
            )
        if self.sets < 1 or view.length % (self.sets * MMA_K) or not self._finished(view):
            raise InputError(
                f"expected sets that divide {view.length} terms and {self.tiles(view)} tiles of rows, or the "
                f"halves of one, got {self.sets}"
            )
        check_threads(self.threads(view))


def tiles_parameters(kernel: Func, view: TilesView) -> TilesParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, TilesParameters)
    with faults_of(kernel):
        parameters.check(view)
    return parameters
