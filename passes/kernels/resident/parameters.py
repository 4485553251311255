"""The implementation parameters of a resident kernel, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.resident.view import ResidentView

#: bytes of a float32, of which all arrays are
WORD_BYTES = 4


@dataclass(frozen=True)
class ResidentParameters(AttrRecord):
    """Parameters of a resident kernel: the blocks of its one cluster, and the lanes that share a unit."""

    blocks: int
    lanes: int

    def units(self, view: ResidentView) -> int:
        """Units of a block."""
        return view.units // self.blocks

    def threads(self, view: ResidentView) -> int:
        """Threads of a block."""
        return self.units(view) * self.lanes

    def neighbours(self, length: int) -> int:
        """Neighbouring terms of a sum that a lane takes at a time."""
        share = length // self.lanes
        return next(n for n in (VECTOR_BYTES // WORD_BYTES, 2, 1) if share % n == 0)

    def words(self, view: ResidentView) -> int:
        """Weights that each thread keeps in registers."""
        return sum(length // self.lanes for _, _, length in view.weights)

    def check(self, view: ResidentView) -> None:
        """Raise InputError where units cannot be divided so."""
        if view.units % self.blocks:
            raise InputError(f"expected blocks that divide {view.units} units, got {self.blocks}")
        if self.lanes > WARP or WARP % self.lanes:
            raise InputError(f"expected lanes that divide a warp, got {self.lanes}")
        if any(p.length % self.lanes for p in view.products):
            raise InputError(f"expected sums in multiples of {self.lanes} lanes")
        if self.threads(view) % WARP:
            raise InputError(f"expected whole warps, got {self.threads(view)} threads")
        check_threads(self.threads(view))


def resident_parameters(kernel: Func, view: ResidentView) -> ResidentParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    parameters = parameters_of(kernel, ResidentParameters)
    with faults_of(kernel):
        parameters.check(view)
    return parameters
