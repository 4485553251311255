"""The implementation parameters of a kernel of sums over pairs, and the tiles that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import (
    MMA_M,
    MOST_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.thread.warpgroup_ops import MOST_N
from tilewright.passes.kernels.attention.parameters import KEY_STEP
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.matrix.parameters import MAX_STAGES
from tilewright.passes.kernels.pair_sums.view import PairView, band

#: warps of the role that copies
COPIERS = 4
#: registers of its threads
COPIER_REGISTERS = 24


@dataclass(frozen=True)
class PairParameters(AttrRecord):
    """Parameters of one kernel of sums over pairs.

    rows: own rows of a block, shared by `warps` in tiles of 16; tile: others of a tile; stages: tiles of
    others in shared memory; held: whether factors of own rows stay in registers, else each tile reads them
    again from shared memory; resident: blocks per multiprocessor that registers leave room for. engine:
    `wgmma` has roles: `warps` in fours multiply 16 rows each, four more copy; ahead: the last products of a
    tile end while those of the next one are multiplied; spread: blocks of all batches start in the order of
    their tiles, those with most first, instead of batch by batch.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    held: bool = False
    resident: int = 1
    engine: Literal["mma", "wgmma"] = "mma"
    ahead: bool = False
    spread: bool = False

    @property
    def sets(self) -> int:
        """Sets of warps: all share the rows, none the others."""
        return 1

    @property
    def by_roles(self) -> bool:
        """True where some warps copy and warpgroups multiply."""
        return self.engine == "wgmma"

    @property
    def threads(self) -> int:
        return WARP * (self.warps + (COPIERS if self.by_roles else 0))

    @property
    def registers(self) -> int:
        """Of a thread that multiplies by roles: what the copying role leaves of its block's; 0: no limit."""
        share = REGISTERS_PER_SM // (self.threads * self.resident) // REGISTER_UNIT * REGISTER_UNIT
        if share >= MOST_REGISTERS:
            return 0
        copiers = WARP * COPIERS
        left = (share * self.threads - COPIER_REGISTERS * copiers) // (self.threads - copiers)
        return min(MOST_REGISTERS, left) // REGISTER_UNIT * REGISTER_UNIT

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

    def band(self, view: PairView) -> tuple[int, int] | None:
        """The band of a view, where blocks and tiles lie within runs of the last dimension of their side."""
        return block_band(view, self, band(view))

    def check(self) -> None:
        """Raise InputError where tiles, warps or stages are impossible."""
        if self.rows % (MMA_M * self.warps):
            raise InputError(
                f"expected rows in multiples of {MMA_M} per warp, got {self.rows} of {self.warps}"
            )
        if self.by_roles and (self.warps % WARPGROUP_WARPS or self.row_tiles != 1 or self.tile > MOST_N):
            raise InputError(
                f"expected {MMA_M} rows for each warp of whole warpgroups and at most {MOST_N} others, "
                f"got {self.rows} of {self.warps} and {self.tile}"
            )
        if self.held and self.by_roles:
            raise InputError("expected own rows in shared memory where warpgroups multiply")
        if self.ahead and (not self.by_roles or self.stages < 2):
            raise InputError("expected products ahead of roles with at least 2 stages")
        if self.spread and not self.by_roles:
            raise InputError("expected blocks that are spread to have roles")
        if self.tile % KEY_STEP:
            raise InputError(f"expected tiles in multiples of {KEY_STEP}, got {self.tile}")
        check_threads(self.threads)
        if self.stages > MAX_STAGES:
            raise InputError(f"expected at most {MAX_STAGES} stages, got {self.stages}")


def block_band(
    view: PairView, plan: PairParameters, limits: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The band of a view, where blocks and tiles lie within one run of the last dimension of their side."""
    rows, others = view.sizes[view.rows[-1]], view.sizes[view.other[-1]]
    if (rows != view.own and rows % plan.rows) or (others != view.others and others % plan.tile):
        return None
    return limits


def pair_parameters(kernel: Func) -> PairParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, PairParameters)
    with faults_of(kernel):
        parameters.check()
    return parameters
