"""The implementation parameters of a chain kernel, read from its attributes and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir import Func, InputError, Pairs
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.chain.stages import stages_of
from tilewright.passes.kernels.writing.contraction_plan import MAX_THREADS
from tilewright.passes.kernels.writing.kernel_params import reading_params, whole

MAX_LANES = 32


@dataclass(frozen=True)
class ChainPlan:
    """Parameters of one chain kernel.

    block: tile of the final result per dimension; threads per block; lanes: threads that share one reduction
    through shuffles (1: each thread reduces alone); stage_bytes: most bytes of one operand staged at once.
    """

    block: Mapping[str, int]
    threads: int
    lanes: int
    stage_bytes: int

    @classmethod
    def of(cls, kernel: Func) -> ChainPlan:
        """The plan in `params` of a kernel; raises InputError with what does not fit."""
        with reading_params(kernel) as p:
            plan = cls(_block(p, kernel), *(whole(p[n], n, 1) for n in ("threads", "lanes", "stage_bytes")))
            plan.check()
        return plan

    def check(self) -> None:
        """Raise InputError where threads or lanes are impossible."""
        if self.threads > MAX_THREADS:
            raise InputError(f"expected at most {MAX_THREADS} threads per block, got {self.threads}")
        if self.lanes & (self.lanes - 1) or self.lanes > MAX_LANES or self.threads % self.lanes:
            raise InputError(
                f"expected lanes to be a power of two up to {MAX_LANES} that divides the threads, "
                f"got {self.lanes} of {self.threads}"
            )


def _block(p: Pairs, kernel: Func) -> dict[str, int]:
    given = p["block"]
    wanted = dims(stages_of(kernel)[-1].anchor, "par")
    if not isinstance(given, Pairs) or set(given.as_dict()) != set(wanted):
        raise InputError(f"expected block in params to give a tile for each of {', '.join(wanted)}")
    return {d: whole(given[d], f"block.{d}", 1) for d in wanted}
