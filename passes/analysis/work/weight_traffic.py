"""Weights of a network: whether a replay finds them in the L2, and when its kernels ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.ir.hardware_facts import LINE_BYTES
from tilewright.ir.nodes import Func, Module, Op, Value
from tilewright.ir.thread.launch_ops import PREFETCH, WAIT, constant_params
from tilewright.ir.thread.role_ops import ROLE, threads_of
from tilewright.ir.types import ScalarType, itemsize

#: weights of a network that stay in the L2 between two runs, as a share of it
RESIDENT_SHARE = 0.6


def weights_leave_l2(module: Module, hardware: Hardware, share: float = RESIDENT_SHARE) -> bool:
    """Return whether the constants of a network exceed this share of a GPU's L2, so that each run brings them
    anew.

    module: of any level above the plan.
    """
    constants = (op for op in module.main.body.ops if op.name.endswith(".constant"))
    total = sum(op.result.tensor.nbytes for op in constants)
    return isinstance(hardware, GpuHardware) and total > share * hardware.l2_bytes


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of the constants of a kernel, and those of them that it asks for only after its wait."""

    total: int
    exposed: int


def weight_bytes(func: Func) -> WeightBytes:
    """The weights of a kernel at the thread level that passed `overlap-launches`.

    Each constant counts once, with its whole size. The share of it that is fetched early is that of the bytes
    which a block asks for before the wait, masks taken as true; of a constant that is prefetched, whose lines
    blocks divide among them, what all blocks ask for together. A kernel that does not wait has its launch to
    wait for, so that all its weights are exposed.
    """
    total = exposed = 0
    for position in constant_params(func):
        v = func.params[position]
        early, late = _asked(func, v)
        if early + late == 0:
            continue
        total += v.tensor.nbytes
        # What was prefetched is asked for again, so what follows does not count.
        whole = v.tensor.nbytes / _blocks(func) if _prefetched(func, v) else early + late
        share = min(1.0, early / whole)
        exposed += round((1.0 - share) * v.tensor.nbytes)
    return WeightBytes(total, exposed)


def asked_only_late(func: Func, v: Value) -> bool:
    """Return whether the kernel asks for some of a constant, and for none of it before its wait."""
    early, late = _asked(func, v)
    return early == 0 and late > 0


def _blocks(func: Func) -> int:
    grid = func.get("grid", (1,))
    return prod(n for n in grid if isinstance(n, int)) if isinstance(grid, tuple) else 1


def _prefetched(func: Func, v: Value) -> bool:
    return any(_prefetches(op, v) for op in func.body.ops)


def _prefetches(op: Op, v: Value) -> bool:
    if op.name == PREFETCH:
        return op.operands[0] is v
    return op.body is not None and any(_prefetches(o, v) for o in op.body.ops)


def _asked(func: Func, v: Value) -> tuple[int, int]:
    """Bytes of `v` that a block asks for before and after the wait; all after it where there is none."""
    ops = func.body.ops
    wait = next((i for i, op in enumerate(ops) if op.name == WAIT), 0)
    block = func.get("block")
    threads = block if isinstance(block, int) else 1
    early = sum(_bytes(op, v, threads) for op in ops[:wait])
    return early, sum(_bytes(op, v, threads) for op in ops[wait:])


def _bytes(op: Op, v: Value, threads: int) -> int:
    if op.body is not None:
        turns = op.integer("extent") if op.name == "thread.loop" else 1
        inside = threads_of(op) if op.name == ROLE else threads
        return turns * sum(_bytes(o, v, inside) for o in op.body.ops)
    if not any(o is v for o in op.operands):
        return 0
    if op.name == PREFETCH:
        return LINE_BYTES * threads
    size = itemsize(v.tensor.dtype)
    if op.get("tile") is not None:  # one thread asks for the whole box
        return prod(op.integers("tile")) * size
    if op.get("lanes") is not None:
        lanes = op.integer("lanes")
    else:
        lanes = max((r.type.lanes for r in op.results if isinstance(r.type, ScalarType)), default=1)
    return lanes * size * threads
