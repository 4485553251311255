"""The implementation parameters of chained products, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import MMA_M
from tilewright.ir.thread.warpgroup_ops import GROUP_M, MOST_N
from tilewright.passes.kernels.chained.view import ChainedView
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.matrix.parameters import (
    ENGINE,
    MAX_STAGES,
    MatrixParameters,
    MatrixTile,
    Warps,
)
from tilewright.passes.kernels.matrix.space import ROLE_COPIERS

#: elements along the channel of a chunk, rows of 128 bytes of 16-bit elements
CHUNK = 64
#: columns of the first product that are multiplied together: one step of an instruction
STEP = 16


@dataclass(frozen=True)
class ChainedParameters(AttrRecord):
    """Parameters of two chained products.

    rows: of a block, 64 of each warpgroup. columns: of a tile of the first product, which the second one sums
    over; width: columns of a tile of the second product. Either one tile holds all columns of the first
    product, which is then kept for every tile of the second, or one tile holds all of the second, whose sums
    are kept for every tile of the first. stages, second_stages: slots of chunks of the factors of the first
    product, and of the second factor of the second one. blocks: of a grid that stays, each of which takes
    rows after rows; 0 for a block per tile of rows. resident: blocks of a multiprocessor, among which its
    registers are divided. read_stages: slots of tiles of further tensors that results are computed from, such
    as residuals, which the copy engine brings; 0 where threads read them.
    """

    rows: int
    columns: int
    width: int
    stages: int
    second_stages: int
    blocks: int = field(default=0, metadata={"least": 0})
    resident: int = 1
    read_stages: int = field(default=0, metadata={"least": 0})

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.rows // MMA_M

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.first("").threads

    @property
    def chunks(self) -> int:
        """Chunks of the second product that a tile of columns of the first one is."""
        return -(-self.columns // CHUNK)

    def column_tiles(self, view: ChainedView) -> int:
        """Tiles of columns of the first product."""
        return -(-view.columns // self.columns)

    def width_tiles(self, view: ChainedView) -> int:
        """Tiles of columns of the second product."""
        return -(-view.width // self.width)

    def row_tiles(self, view: ChainedView) -> int:
        """Tiles of rows."""
        return -(-view.rows // self.rows)

    def grid(self, view: ChainedView) -> int:
        """Blocks of the grid."""
        tiles = self.row_tiles(view)
        return min(self.blocks or tiles, tiles)

    def first(self, channel: str) -> MatrixParameters:
        """The parameters of the first product by roles, as one of its own would have them."""
        return self._product(self.columns, self.stages, channel)

    def second(self, channel: str) -> MatrixParameters:
        """The same of the second product."""
        return self._product(self.width, self.second_stages, channel)

    def _product(self, columns: int, stages: int, channel: str) -> MatrixParameters:
        return MatrixParameters(
            MatrixTile(self.rows, columns, CHUNK),
            Warps(self.warps, 1),
            stages,
            channel,
            1,
            "wgmma",
            copiers=ROLE_COPIERS,
            blocks=self.blocks,
            transport=ENGINE,
            stores=ENGINE,
            resident=self.resident,
        )

    def check(self, view: ChainedView) -> None:
        """Raise InputError where tiles or stages are impossible."""
        if self.rows % GROUP_M or self.columns % STEP or self.width % STEP:
            raise InputError(
                f"expected rows in multiples of {GROUP_M} and columns in multiples of {STEP}, got "
                f"{self.rows}, {self.columns} and {self.width}"
            )
        if max(self.columns, self.width) > MOST_N:
            raise InputError(f"expected tiles of at most {MOST_N} columns, got {self.columns}, {self.width}")
        check_threads(self.threads)
        stages = (self.stages, self.second_stages, self.read_stages)
        if max(stages) > MAX_STAGES:
            raise InputError(f"expected at most {MAX_STAGES} stages, got {' and '.join(map(str, stages))}")
        if self.second_stages < self.chunks:
            raise InputError(
                f"expected slots for the {self.chunks} chunks of second weights that a tile of "
                f"{self.columns} columns is multiplied with, got {self.second_stages}"
            )
        tiles, others = self.column_tiles(view), self.width_tiles(view)
        if tiles > 1 and others > 1:
            raise InputError(f"expected one tile of columns of either product, got {tiles} and {others}")
        if tiles > 1 and self.columns % CHUNK:
            raise InputError(f"expected tiles of whole chunks of {CHUNK} columns, got {self.columns}")


def chained_parameters(kernel: Func, view: ChainedView) -> ChainedParameters:
    """The parameters of a kernel; raises InputError with what does not fit, named by the kernel."""
    found = parameters_of(kernel, ChainedParameters)
    with faults_of(kernel):
        found.check(view)
    return found
