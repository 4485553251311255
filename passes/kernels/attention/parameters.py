"""The implementation parameters of an attention kernel, and the tiles that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import MMA_K_BYTES, MMA_M, MMA_N, WARP
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.attention.view import AttentionView
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.matrix.parameters import MAX_STAGES

#: keys that a set of warps takes of a tile are a multiple of this
KEY_STEP = 16
#: engines that multiply: fragments of each warp, or warpgroups on what a role of their block copies
MMA, WARPGROUPS = "mma", "wgmma"
#: rows of queries of a warpgroup
GROUP_ROWS = 64
#: warps of the role that copies
COPIER_WARPS = 4
#: most sums of an instruction of a warpgroup
MOST_COLUMNS = 256
#: bytes of a swizzled row, or multiples of the last one
_PITCHES = (32, 64, 128)


class BlockShape(Protocol):
    """What an epilogue asks of a plan: queries of a block, warps that share them, sets of such warps."""

    @property
    def rows(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def sets(self) -> int: ...
    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class AttentionParameters(AttrRecord):
    """Parameters of one attention kernel.

    rows: queries of a block, shared by `warps` in tiles of 16; keys: of a tile; stages: tiles of keys and
    values in shared memory; resident: blocks per multiprocessor that registers leave room for; sets: of
    `warps` warps each, that share the keys of every tile.

    engine: mma, or wgmma, where a role of four more warps copies, and each four of `warps` have 64 queries.
    blocks: of the grid, each of which takes tile after tile of queries; 0: one for each tile. teams: roles
    among which the warps are divided, which start their products in turn.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    resident: int = 1
    sets: int = 1
    engine: str = MMA
    blocks: int = 0
    teams: int = 1

    @property
    def by_roles(self) -> bool:
        """Whether a role copies and others multiply."""
        return self.engine == WARPGROUPS

    @property
    def threads(self) -> int:
        return WARP * (self.warps * self.sets + COPIER_WARPS * self.by_roles)

    @property
    def part(self) -> int:
        """Keys of a tile that one set of warps takes."""
        return self.keys // self.sets

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 queries of one warp."""
        return self.rows // self.warps // MMA_M

    def tiles(self, view: AttentionView) -> int:
        """Tiles of keys."""
        return -(-view.keys // self.keys)

    def slots(self, view: AttentionView) -> int:
        """Tiles of keys that shared memory holds at once."""
        return min(self.stages, self.tiles(view))

    def check(self) -> None:
        """Raise InputError where tiles, warps or stages are impossible."""
        if self.rows % (MMA_M * self.warps):
            raise InputError(
                f"expected rows in multiples of {MMA_M} per warp, got {self.rows} of {self.warps}"
            )
        if self.keys % (KEY_STEP * self.sets):
            raise InputError(
                f"expected keys in multiples of {KEY_STEP} per set, got {self.keys} of {self.sets}"
            )
        check_threads(self.threads)
        if self.stages > MAX_STAGES:
            raise InputError(f"expected at most {MAX_STAGES} stages, got {self.stages}")
        if self.engine not in (MMA, WARPGROUPS):
            raise InputError(f"expected engine '{MMA}' or '{WARPGROUPS}', got '{self.engine}'")
        if self.by_roles:
            self._check_roles()
        elif self.blocks or self.teams != 1:
            raise InputError(f"expected engine '{WARPGROUPS}' for blocks of several tiles and for teams")

    def _check_roles(self) -> None:
        if self.rows % GROUP_ROWS or self.row_tiles != 1 or self.sets != 1:
            raise InputError(
                f"expected {GROUP_ROWS} rows per four warps, one set, got {self.rows} of {self.warps} warps"
            )
        if self.keys > MOST_COLUMNS or self.stages < 2 or self.blocks < 0:
            raise InputError(
                f"expected at most {MOST_COLUMNS} keys, 2 stages or more, and no negative number of blocks, "
                f"got {self.keys}, {self.stages} and {self.blocks}"
            )
        if self.teams not in (1, self.rows // GROUP_ROWS):
            raise InputError(f"expected 1 or {self.rows // GROUP_ROWS} teams, got {self.teams}")


def attention_parameters(kernel: Func) -> AttentionParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, AttentionParameters)
    with faults_of(kernel):
        parameters.check()
    return parameters


def padded(extent: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-extent // step) * step


def depth_of(dtype: str) -> int:
    """Factors along the summed dimension that one instruction multiplies."""
    return MMA_K_BYTES // itemsize(dtype)


def pitch(extent: int, size: int) -> int:
    """Elements of the swizzled row that holds `extent` elements of `size` bytes."""
    nbytes = extent * size
    return next((p for p in _PITCHES if nbytes <= p), padded(nbytes, _PITCHES[-1])) // size


def width_tiles(view: AttentionView) -> int:
    """Tiles of 8 columns of the values."""
    return -(-view.size(view.width) // MMA_N)
