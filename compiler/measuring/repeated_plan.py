"""A program several times in a row, for timing: with the same weights each time, or with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.check import ALIGNMENT, validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, Launch

#: runs of a program in one timed replay: boundaries between kernels count, as they do in a network
RUNS = 10
#: bytes of all copies of the weights together, as a share of the L2: until one is read again, others have
#: taken its place
SPREAD = 1.5
#: runs at most; weights so small that these do not exceed the L2 stay warm
MOST_RUNS = 256
#: what the alignment of copies may take
PADDING = 4 << 20
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def copies_for(nbytes: int, hardware: Hardware) -> int:
    """The number of copies of these weights that exceed the L2; 1 where one does or too many would."""
    if not isinstance(hardware, GpuHardware) or nbytes <= 0:
        return 1
    copies = -int(-SPREAD * hardware.l2_bytes // nbytes)
    return copies if copies <= MOST_RUNS else 1


def streamed_bytes(operand: int, weights: int, hardware: Hardware) -> float:
    """Bytes of an operand that surely come from DRAM in every run, of a program with `weights` bytes of them.

    Of all copies at most the size of the L2 is there when a replay begins.
    """
    copies = copies_for(weights, hardware)
    if copies == 1 or not isinstance(hardware, GpuHardware):
        return 0.0
    return operand * max(0.0, 1.0 - hardware.l2_bytes / (copies * weights))


def weights_of(plan: ExecutionPlan) -> tuple[Buffer, ...]:
    """The constants of a plan of which copies with other numbers can take the place; no indices."""
    return tuple(b for b in plan.buffers if b.kind == "constant" and b.dtype in _FLOATS and b.nbytes)


def copies_in(plan: ExecutionPlan, hardware: Hardware) -> int:
    """The number of copies of its weights that a program needs to find them in DRAM."""
    return copies_for(sum(b.nbytes for b in weights_of(plan)), hardware)


def repeated(
    plan: ExecutionPlan, copies: int, hardware: Hardware
) -> tuple[ExecutionPlan, dict[str, np.ndarray], int]:
    """The launches of a program several times, each after the one before; further constants; how many runs.

    copies: of its weights, used in sequence; they are views of one constant per element type, the same array
    for all programs on a device.
    """
    runs = max(RUNS, copies)
    buffers, pools = plan.buffers, dict[str, np.ndarray]()
    named: list[dict[str, str]] = [{}]
    if copies > 1:
        assert isinstance(hardware, GpuHardware)
        size = (
            int(2 * SPREAD * hardware.l2_bytes) + PADDING
        )  # two copies, each a little smaller than the spread
        weights = weights_of(plan)
        buffers = tuple(b for b in plan.buffers if b not in weights)
        for dtype in dict.fromkeys(b.dtype for b in weights):
            array = pool_of(dtype, size)
            pool = Buffer(f"pool.{dtype}", dtype, array.shape, "constant", array.nbytes)
            buffers += (pool, *_views(pool, [b for b in weights if b.dtype == dtype], copies))
            pools[pool.name] = array
        named = [{b.name: _name(b, i) for b in weights} for i in range(copies)]
    launches: list[Launch] = []
    for i in range(runs):
        new = named[i % len(named)]
        for x in plan.launches:
            args = tuple(new.get(a, a) for a in x.args)
            launches.append(replace(x, args=args, deps=(len(launches) - 1,) if launches else ()))
    out = plan.replace(buffers=buffers, launches=tuple(launches))
    return validate(place_arena(out)), pools, runs


def _views(pool: Buffer, weights: Iterable[Buffer], copies: int) -> list[Buffer]:
    out: list[Buffer] = []
    offset = 0
    weights = list(weights)
    for i in range(copies):
        for b in weights:
            out.append(replace(b, name=_name(b, i), kind="alias", base=pool.name, offset=offset))
            offset += -(-b.nbytes // ALIGNMENT) * ALIGNMENT
    return out


def _name(b: Buffer, copy: int) -> str:
    return f"{b.name}@{copy}"


@lru_cache(maxsize=4)
def pool_of(dtype: str, nbytes: int) -> np.ndarray:
    """Normally distributed numbers, the same array for equal arguments; they repeat after a megabyte."""
    stored = np.dtype(DTYPES[dtype])
    block = np.random.default_rng(3).standard_normal((1 << 20) // stored.itemsize, np.float32)
    return np.resize(block.astype(stored), nbytes // stored.itemsize)
