"""Thread-level ops on the order of launches: a kernel may start before those it depends on have finished.

They change when a kernel runs, never what it computes: where every kernel starts after the ones it depends on
have finished (OpenCL, older GPUs, the interpreters), the first two do nothing, and nowhere need a prefetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.opdef import AttrDef, Attrs, define, no_results
from tilewright.ir.thread.ops import MASK, element
from tilewright.ir.types import Type

WAIT, RELEASE = "thread.wait_for_launches", "thread.release_dependents"
PREFETCH = "thread.prefetch"
#: attribute of a thread-level function: positions of the parameters that no launch writes which may still run
#: when this one starts
CONSTANT_PARAMS = "constant_params"
#: attribute of a thread-level function, true where it asks for what settled launches wrote before it waits
#: for others, and leaves room beside its blocks for those of the launches that depend on it
EARLY_FACTORS = "early_factors"
#: attribute of a thread-level function that releases: so many blocks more are launched, which compute nothing
#: and stay for so many cycles after the release
HOLDERS = "holders"
#: the attribute of a kernel with pairs (read, written) of parameters that callers may give as one buffer
OVERWRITES = "overwrites"
#: the attribute of a kernel with pairs (read, written) of parameters that callers must give as one buffer
IN_PLACE = "in_place"

define(
    WAIT,
    (),
    "Wait until the launches this one depends on have finished and what they wrote is visible. Before "
    "it, a kernel touches no global memory but the parameters listed in its `constant_params`.",
    results=0,
    infer=no_results,
    effects=frozenset({"launch"}),
)
define(
    RELEASE,
    (),
    "Launches that depend on this one may start from here on (once all blocks got here or ended); what "
    "they wait for is still the end of this one.",
    results=0,
    infer=no_results,
    effects=frozenset({"launch"}),
)


def _infer_prefetch(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    element(types[0], a["at"], "global")
    return []


define(
    PREFETCH,
    ("buffer",),
    "Start bringing the cache line of an element to the last-level cache, where the mask is true.",
    attrs={
        "at": AttrDef("exprs"),
        "mask": MASK,
        "early": AttrDef("bool", False, "it pays only in a kernel that starts while the one before runs"),
    },
    results=0,
    infer=_infer_prefetch,
    effects=frozenset({"prefetch"}),
)


def waits_for_launches(func: Func) -> bool:
    """Return whether the kernel waits for the launches it depends on, so that it may start early."""
    return any(op.name == WAIT for op in func.body.ops)


def releases_dependents(func: Func) -> bool:
    """Return whether the kernel lets dependent launches start before it ends."""
    return any(op.name == RELEASE for op in func.body.ops)


def holders_of(func: Func) -> tuple[int, int]:
    """Blocks of the kernel that only hold places, and for how many cycles; (0, 0) where it has none."""
    held = func.get(HOLDERS, (0, 0))
    assert isinstance(held, tuple)
    blocks, cycles = held
    assert isinstance(blocks, int)
    assert isinstance(cycles, int)
    return blocks, cycles


def without_release(func: Func) -> Func:
    """The kernel with the end of its last block as the release of what follows; nothing holds places then."""
    body = func.body.with_ops(tuple(op for op in func.body.ops if op.name != RELEASE))
    return func.without_attr(HOLDERS).with_body(body)


def holder_axis(grid: Sequence[int]) -> tuple[int, int]:
    """The last axis of a grid that has more than one block, and the blocks of one of its slices.

    Blocks that hold places are whole slices behind those of the grid.
    """
    axis = max((i for i, extent in enumerate(grid) if extent > 1), default=0)
    return axis, prod(grid[:axis])


def launched_grid(func: Func, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The grid of a kernel's launches: that of what it computes and the blocks that hold places."""
    axis, slice_blocks = holder_axis(grid)
    more = list(grid)
    more[axis] += holders_of(func)[0] // slice_blocks
    return more[0], more[1], more[2]


def holder_faults(func: Func) -> Iterator[str]:
    """Yield what is wrong with the blocks of a kernel that hold places."""
    held, grid = func.get(HOLDERS), func.get("grid")
    if held is None:
        return
    if not (isinstance(held, tuple) and len(held) == 2 and all(type(n) is int and n >= 0 for n in held)):
        yield f"expected {HOLDERS} = [blocks, cycles], got {held!r}"
    elif not releases_dependents(func):
        yield f"expected no {HOLDERS} in a kernel that releases nothing"
    elif isinstance(grid, tuple) and all(type(n) is int for n in grid):
        _, slice_blocks = holder_axis(grid)  # type: ignore[arg-type]
        if holders_of(func)[0] % slice_blocks:
            yield f"expected {HOLDERS} in whole slices of {slice_blocks} blocks, got {held[0]}"


def constant_params(func: Func) -> tuple[int, ...]:
    """Positions of the parameters that no launch writes any more, as `constant_params` lists them."""
    listed = func.get(CONSTANT_PARAMS, ())
    return tuple(i for i in listed if type(i) is int) if isinstance(listed, tuple) else ()


def late_params(func: Func) -> frozenset[Value]:
    """Parameters that may be used after the wait only; none where the kernel does not wait."""
    if not waits_for_launches(func):
        return frozenset()
    constants = constant_params(func)
    return frozenset(v for i, v in enumerate(func.params) if i not in constants)


def overwrites(func: Func) -> tuple[tuple[int, int], ...]:
    """Pairs (read, written) of parameters that callers may give as one buffer, as `overwrites` lists them,
    and those that they must.
    """
    listed = func.get(OVERWRITES, ())
    return (*in_place(func), *(listed if isinstance(listed, tuple) else ()))  # type: ignore[arg-type]


def in_place(func: Func) -> tuple[tuple[int, int], ...]:
    """Pairs (read, written) of parameters that callers must give as one buffer: the kernel writes some
    elements of it and reads no others.
    """
    listed = func.get(IN_PLACE, ())
    return listed if isinstance(listed, tuple) else ()  # type: ignore[return-value]


def launch_order_faults(func: Func) -> Iterator[tuple[int, str]]:
    """Faults in the use of both ops as (index of the op in the function's body, clause)."""
    ops = func.body.ops
    wait_at = next((i for i, op in enumerate(ops) if op.name == WAIT), None)
    early = {v for i, v in enumerate(func.params) if i not in constant_params(func)}
    seen: set[str] = set()
    for i, op in enumerate(ops):
        if op.name in (WAIT, RELEASE):
            if op.name in seen:
                yield i, f"expected one {op.name} per kernel, this is another"
            seen.add(op.name)
        inside = [op, *walk(op.body)] if op.body is not None else [op]
        nested = next((o for o in inside[1:] if o.name in (WAIT, RELEASE)), None)
        if nested is not None:
            yield i, f"expected {nested.name} at the top of a kernel, outside of loops and conditions"
        if wait_at is not None and i < wait_at and _touches(inside, early):
            yield i, f"touches memory that other launches write, before {WAIT}"


def _touches(ops: Sequence[Op], buffers: Set[Value]) -> bool:
    return any(v in buffers for op in ops for v in op.operands)
