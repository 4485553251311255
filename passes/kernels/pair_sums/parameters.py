"""The implementation parameters of a kernel of sums over pairs, and the tiles that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import MMA_M, WARP
from tilewright.passes.kernels.attention.parameters import KEY_STEP
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.matrix.parameters import MAX_STAGES
from tilewright.passes.kernels.pair_sums.view import PairView


@dataclass(frozen=True)
class PairParameters(AttrRecord):
    """Parameters of one kernel of sums over pairs.

    rows: own rows of a block, shared by `warps` in tiles of 16; tile: others of a tile; stages: tiles of
    others in shared memory; held: whether factors of own rows stay in registers, else each tile reads them
    again from shared memory; resident: blocks per multiprocessor that registers leave room for.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    held: bool = False
    resident: int = 1

    @property
    def sets(self) -> int:
        """Sets of warps: all share the rows, none the others."""
        return 1

    @property
    def threads(self) -> int:
        return WARP * self.warps

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 rows of one warp."""
        return self.rows // self.warps // MMA_M

    def tiles(self, view: PairView) -> int:
        """Tiles of others."""
        return -(-view.others // self.tile)

    def slots(self, view: PairView) -> int:
        """Tiles of others that shared memory holds at once."""
        return min(self.stages, self.tiles(view))

    def check(self) -> None:
        """Raise InputError where tiles, warps or stages are impossible."""
        if self.rows % (MMA_M * self.warps):
            raise InputError(
                f"expected rows in multiples of {MMA_M} per warp, got {self.rows} of {self.warps}"
            )
        if self.tile % KEY_STEP:
            raise InputError(f"expected tiles in multiples of {KEY_STEP}, got {self.tile}")
        check_threads(self.threads)
        if self.stages > MAX_STAGES:
            raise InputError(f"expected at most {MAX_STAGES} stages, got {self.stages}")


def pair_parameters(kernel: Func) -> PairParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, PairParameters)
    with faults_of(kernel):
        parameters.check()
    return parameters
