"""The implementation parameters of a contraction kernel, read from its attributes and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.ir import Func, InputError, Op, Pairs
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.writing.kernel_params import reading_params, whole

STAGINGS = ("shared", "direct")
MAX_THREADS = 1024


@dataclass(frozen=True)
class ContractPlan:
    """Parameters of one contraction kernel.

    block, thread: tile per parallel dimension; step: chunk per reduced dimension (others whole); stages 1 or
    2; staging `shared` or `direct`; pad: elements added to each row of the first staged operand. Optional:
    run: consecutive indices a thread owns together, per dimension (columns: all its indices, others 1);
    lanes: threads of one warp per dimension (by default the first dimensions fill the warp).
    """

    block: Mapping[str, int]
    thread: Mapping[str, int]
    step: Mapping[str, int]
    stages: int
    staging: str
    pad: int
    run: Mapping[str, int]
    lanes: Mapping[str, int]

    @classmethod
    def of(cls, kernel: Func, op: Op) -> ContractPlan:
        """The plan in `params` of a kernel around `op`; raises InputError with what does not fit."""
        with reading_params(kernel) as p:
            plan = cls(
                _tiles(p, "block", dims(op, "par")),
                _tiles(p, "thread", dims(op, "par")),
                _steps(p, dims(op, "red")),
                _whole(p, "stages", 1),
                str(p["staging"]),
                _whole(p, "pad", 0),
                _some(p, "run", dims(op, "par")),
                _some(p, "lanes", dims(op, "par")),
            )
            plan.check()
        return plan

    def check(self) -> None:
        """Raise InputError where tiles, threads, stages or staging are impossible."""
        uneven = [d for d, n in self.thread.items() if self.block[d] % n]
        if uneven:
            raise InputError(
                f"expected block tiles that are multiples of thread tiles, not so for {', '.join(uneven)}"
            )
        uneven = [d for d, n in self.run.items() if self.thread[d] % n]
        if uneven:
            raise InputError(
                f"expected thread tiles that are multiples of runs, not so for {', '.join(uneven)}"
            )
        uneven = [d for d, n in self.lanes.items() if self.block[d] // self.thread[d] % n]
        if uneven:
            raise InputError(f"expected threads that are multiples of lanes, not so for {', '.join(uneven)}")
        threads = prod(self.block[d] // n for d, n in self.thread.items())
        if threads > MAX_THREADS:
            raise InputError(f"expected at most {MAX_THREADS} threads per block, got {threads}")
        if self.stages > 2:
            raise InputError(f"expected stages of 1 or 2, got {self.stages}")
        if self.staging not in STAGINGS:
            raise InputError(f"expected staging among {', '.join(STAGINGS)}, got {self.staging!r}")


def _whole(p: Pairs, name: str, least: int) -> int:
    return whole(p[name], name, least)


def _tiles(p: Pairs, name: str, wanted: Mapping[str, int]) -> dict[str, int]:
    given = p[name]
    if not isinstance(given, Pairs) or set(given.as_dict()) != set(wanted):
        raise InputError(f"expected {name} in params to give a tile for each of {', '.join(wanted)}")
    return {d: whole(n, f"{name}.{d}", 1) for d, n in given.items}


def _some(p: Pairs, name: str, known: Mapping[str, int]) -> dict[str, int]:
    """An optional mapping of some of the `known` dimensions."""
    given = p.as_dict().get(name, Pairs(()))
    if not isinstance(given, Pairs) or not set(given.as_dict()) <= set(known):
        raise InputError(f"expected {name} in params to name some of {', '.join(known)}")
    return {d: whole(n, f"{name}.{d}", 1) for d, n in given.items}


def _steps(p: Pairs, reduced: Mapping[str, int]) -> dict[str, int]:
    given = p["step"]
    if not isinstance(given, Pairs) or not set(given.as_dict()) <= set(reduced):
        raise InputError(f"expected step in params to give chunks of {', '.join(reduced)}")
    steps = {d: whole(n, f"step.{d}", 1) for d, n in given.items}
    uneven = [d for d, n in steps.items() if n < reduced[d] and reduced[d] % n]
    if uneven:
        raise InputError(f"expected steps that divide the reduced dimensions, not so for {', '.join(uneven)}")
    return steps
