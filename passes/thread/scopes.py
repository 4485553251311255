"""Facts about the symbols of a thread-level kernel, and its index attributes by kind."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tilewright.ir.expr import Expr, symbols
from tilewright.ir.nodes import Attr, Func, Op
from tilewright.ir.opdef import op_def
from tilewright.ir.simplify import Ranges, interval, simplify
from tilewright.ir.thread.role_ops import ROLE, threads_of
from tilewright.ir.thread.tensor_maps import RANK, cluster_of

#: conjunction of (expression, low, high): low <= expression < high
Mask = tuple[tuple[Expr, Expr, Expr], ...]


def launch_ranges(func: Func) -> dict[str, tuple[int, int]]:
    """Inclusive ranges of `tid` and `bid.x/y/z` in a kernel, and of `rank` where it has clusters."""
    grid: Any = func["grid"]
    block: Any = func["block"]
    places = {f"bid.{axis}": (0, n - 1) for axis, n in zip("xyz", grid, strict=True)}
    blocks = prod(cluster_of(func))
    return {"tid": (0, block - 1), **places} | ({RANK: (0, blocks - 1)} if blocks > 1 else {})


def loop_ranges(op: Op, ranges: Ranges) -> dict[str, tuple[int, int]]:
    """Ranges inside the body of a `thread.loop`."""
    return {**ranges, loop_variable(op): (0, extent_of(op) - 1)}


def body_ranges(op: Op, ranges: Ranges) -> Ranges:
    """Ranges inside the body of a loop, a role or a condition."""
    if op.name == "thread.loop":
        return loop_ranges(op, ranges)
    return {**ranges, "tid": (0, threads_of(op) - 1)} if op.name == ROLE else ranges


def loop_variable(op: Op) -> str:
    """Name of the variable of a `thread.loop`."""
    var: Any = op["var"]
    return str(var.name)


def extent_of(op: Op) -> int:
    """Extent of a `thread.loop`."""
    extent: Any = op["extent"]
    return int(extent)


def mask_of(op: Op) -> Mask:
    """The mask of an op; empty where it has none."""
    mask: Any = op.get("mask") or ()
    return tuple(mask)


def map_indices(op: Op, fn: Callable[[Expr], Expr]) -> Op:
    """The op with `fn` applied to each of its index expressions; the same op when none changes."""
    changes: dict[str, Attr] = {}
    for key, depth in op_def(op.name).index_depths:
        old: Any = op[key]
        new = _mapped(old, fn, depth)
        if new != old:
            changes[key] = new
    return op.with_attrs(**changes) if changes else op


def _mapped(value: Any, fn: Callable[[Expr], Expr], depth: int) -> Any:
    return fn(value) if depth == 0 else tuple(_mapped(v, fn, depth - 1) for v in value)


def always(component: tuple[Expr, Expr, Expr], ranges: Ranges) -> bool:
    """True when low <= expression < high is proven for all symbols within their ranges."""
    e, low, high = component
    return _difference(e, low, ranges)[0] >= 0 and _difference(e, high, ranges)[1] < 0


def never(component: tuple[Expr, Expr, Expr], ranges: Ranges) -> bool:
    """True when the component is proven false for all symbols within their ranges."""
    e, low, high = component
    return _difference(e, low, ranges)[1] < 0 or _difference(e, high, ranges)[0] >= 0


def _difference(a: Expr, b: Expr, ranges: Ranges) -> tuple[float, float]:

    return interval(simplify(a - b, ranges), ranges)


def mentions(e: Expr, name: str) -> bool:
    """True when symbol `name` occurs in `e`."""
    return name in symbols(e)
