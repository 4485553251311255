"""The implementation parameters of a contraction kernel, read from its decision and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from tilewright.costmodel import ContractParameters
from tilewright.ir import Func, InputError, Op
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of


def contract_parameters(kernel: Func, op: Op) -> ContractParameters:
    """The parameters of a kernel around `op`; raises InputError, which names it, for what is impossible."""
    p = parameters_of(kernel, ContractParameters)
    par, red = dims(op, "par"), dims(op, "red")
    with faults_of(kernel):
        for name, tiles in (("block", p.block), ("thread", p.thread)):
            if set(tiles) != set(par):
                raise InputError(f"expected {name} in params to give a tile for each of {', '.join(par)}")
        if not set(p.step) <= set(red):
            raise InputError(f"expected step in params to give chunks of {', '.join(red)}")
        for name, tiles in (("run", p.run), ("lanes", p.lanes)):
            if not set(tiles) <= set(par):
                raise InputError(f"expected {name} in params to name some of {', '.join(par)}")
        _check_tiles(p, red)
    return p


def _check_tiles(p: ContractParameters, red: Mapping[str, int]) -> None:
    """Raise InputError where tiles, threads or stages are impossible."""
    threads = {d: p.block[d] // n for d, n in p.thread.items()}
    _even(
        "steps that divide the reduced dimensions",
        [d for d, n in p.step.items() if n < red[d] and red[d] % n],
    )
    _even(
        "block tiles that are multiples of thread tiles", [d for d, n in p.thread.items() if p.block[d] % n]
    )
    _even("thread tiles that are multiples of runs", [d for d, n in p.run.items() if p.thread[d] % n])
    _even("threads that are multiples of lanes", [d for d, n in p.lanes.items() if threads[d] % n])
    check_threads(prod(threads.values()))
    if p.stages > 2:
        raise InputError(f"expected stages of 1 or 2, got {p.stages}")


def _even(expected: str, uneven: Collection[str]) -> None:
    if uneven:
        raise InputError(f"expected {expected}, not so for {', '.join(uneven)}")
