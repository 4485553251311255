"""The implementation parameters of a chain kernel, read from its attributes and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import AttrRecord, Func, InputError, Sizes
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.chain.stages import stages_of
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of

MAX_LANES = 32


@dataclass(frozen=True)
class ChainParameters(AttrRecord):
    """Parameters of one chain kernel.

    block: tile of the final result per dimension; threads per block; lanes: threads that share one reduction
    through shuffles (1: each thread reduces alone); stage_bytes: most bytes of one operand staged at once.
    """

    block: Sizes
    threads: int
    lanes: int
    stage_bytes: int

    def check(self) -> None:
        """Raise InputError where threads or lanes are impossible."""
        check_threads(self.threads)
        if self.lanes & (self.lanes - 1) or self.lanes > MAX_LANES or self.threads % self.lanes:
            raise InputError(
                f"expected lanes to be a power of two up to {MAX_LANES} that divides the threads, "
                f"got {self.lanes} of {self.threads}"
            )


def chain_parameters(kernel: Func) -> ChainParameters:
    """The parameters of a kernel; raises InputError, which names the kernel, for what is impossible."""
    found = parameters_of(kernel, ChainParameters)
    par = dims(stages_of(kernel)[-1].anchor, "par")
    with faults_of(kernel):
        if set(found.block) != set(par):
            raise InputError(f"expected block in params to give a tile for each of {', '.join(par)}")
        found.check()
    return replace(found, block=Sizes({d: found.block[d] for d in par}))
