"""Where a kernel's phases end, by structure: its first data are at hand, its main loop is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.nodes import Block, Func, Op, walk
from tilewright.ir.opdef import op_def
from tilewright.ir.thread.channel_ops import RECEIVE
from tilewright.ir.thread.launch_ops import WAIT
from tilewright.ir.thread.role_ops import ROLE, first_threads


@dataclass(frozen=True)
class PhaseMarks:
    """Two points of a kernel, and the thread of a block that passes both; None where there is no such point.

    data: behind this op, in the first turn of the loops `around` it, the block's first data have arrived.
    loop: behind this op the main loop is done, each time that a block passes here.
    """

    data: Op | None = None
    around: tuple[Op, ...] = ()
    loop: Op | None = None
    thread: int = 0


@dataclass(frozen=True)
class _Place:
    """An op with the ops around it, outermost first, and what follows it in the same body."""

    op: Op
    around: tuple[Op, ...]
    following: tuple[Op, ...]


def phase_marks(func: Func) -> PhaseMarks:
    """The marks of a kernel.

    First data: the first op behind the wait for other launches at which all threads wait for what was read
    of global memory, a barrier after a read or the receipt of an item. The main loop: the innermost loop
    around it, unless that one stores results (it walks over tiles then) or there is none; then the longest
    loop that follows it in the same body. Kernels whose threads keep to themselves have no marks.
    """
    place = _first_data(func)
    if place is None:
        return PhaseMarks()
    loops = tuple(op for op in place.around if op.name == "thread.loop")
    roles = [op for op in place.around if op.name == ROLE]
    thread = first_threads(func)[roles[0]] if roles else 0
    return PhaseMarks(place.op, loops, _main_loop(loops, place.following), thread)


def _main_loop(around: Sequence[Op], following: Sequence[Op]) -> Op | None:
    if around and not _stores_results(around[-1]):
        return around[-1]
    loops = [op for op in following if op.name == "thread.loop"]
    return max(loops, key=_executed, default=None)


def _first_data(func: Func) -> _Place | None:
    ops = func.body.ops
    start = next((i for i, op in enumerate(ops) if op.name == WAIT), 0)
    before = any(_reads_global(o) for op in ops[:start] for o in _inside(op))
    found, _ = _search(func.body.with_ops(ops[start:]), (), before)
    return found


def _search(body: Block, around: tuple[Op, ...], has_read: bool) -> tuple[_Place | None, bool]:
    """The first such op of a body, and whether global memory was read until its end."""
    for i, op in enumerate(body.ops):
        if op.name == RECEIVE or (op.name == "thread.barrier" and has_read):
            return _Place(op, around, tuple(body.ops[i + 1 :])), has_read
        if op.body is not None:
            found, has_read = _search(op.body, (*around, op), has_read)
            if found is not None:
                return found, has_read
        has_read = has_read or _reads_global(op)
    return None, has_read


def _reads_global(op: Op) -> bool:
    """Return whether the first operand is a buffer of global memory from which the op takes something."""
    first = op.operands[0].type if op.operands else None
    return getattr(first, "space", "") == "global" and bool(op_def(op.name).effects & {"read", "async"})


def _stores_results(loop: Op) -> bool:
    return any(
        getattr(v.type, "space", "") == "global" and "write" in op_def(op.name).effects
        for op in _inside(loop)
        for v in op.operands[1:]
    )


def _inside(op: Op) -> list[Op]:
    return [op, *walk(op.body)] if op.body is not None else [op]


def _executed(op: Op) -> int:
    """Ops that one thread runs, those of loops in every turn."""
    turns = op.integer("extent") if op.name == "thread.loop" else 1
    return 1 + turns * (sum(map(_executed, op.body.ops)) if op.body is not None else 0)
