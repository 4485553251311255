"""Draws gathers, scatters, reductions, orders and running folds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright.tools.fuzz.program import DrawnValue, RandomGraph

RANKS = (1, 2, 3, 4)
INDEX = ("i32", "i64")


def _indices(p: RandomGraph, shape: tuple[int, ...], extent: int, *, negative: bool = True) -> DrawnValue:
    return p.fresh(shape, p.choose(INDEX), -extent if negative and p.chance(0.3) else 0, extent - 1)


def _take(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    axis = p.choose([None, *range(x.rank)])
    extent = x.native.size if axis is None else x.shape[axis]
    mode = p.choose(["clip", "wrap", "fast"])
    low, high = (0, extent - 1) if mode == "fast" else (-extent - 2, extent + 2)
    indices = p.fresh(p.shape(p.integer(0, 2), 6), p.choose(INDEX), low, high)
    p.emit("take", x, indices, axis=axis, mode=mode)


def _gather(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    axis = p.integer(0, x.rank - 1)
    shape = tuple(p.integer(1, 6) if d == axis else n for d, n in enumerate(x.shape))
    p.emit("gather", x, _indices(p, shape, x.shape[axis]), axis=axis)


def _gather_nd(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3))
    depth = p.integer(1, x.rank)
    columns = [p.rng.integers(0, n, 5) for n in x.shape[:depth]]
    rows = p.given(np.stack(columns).astype(np.int32), "i32", constant=p.chance(0.5))
    p.emit("gather_nd", x, rows)


def _adv_index(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3))
    count = p.integer(1, 2)
    p.emit("adv_index", x, *(_indices(p, (p.choose([1, 4]),), n) for n in x.shape[:count]))


def _one_hot(p: RandomGraph) -> None:
    dtype, depth = p.choose(["f32", "i32", "f16"]), p.integer(1, 6)
    indices = p.fresh(p.shape(p.integer(1, 2)), "i32", 0, depth)
    on, off = p.fresh((), dtype), p.fresh((), dtype)
    p.emit("one_hot", indices, on, off, depth=depth, axis=p.choose([-1, 0]), dtype=dtype)


def _scatter_elements(p: RandomGraph) -> None:
    x = p.pick("number", ranks=RANKS)
    axis = p.integer(0, x.rank - 1)
    shape = tuple(p.integer(1, n) for n in x.shape)
    indices = _indices(p, shape, x.shape[axis])
    mode = p.choose(["update", "add", "mul", "min", "max", "mean"])
    if mode == "mean" and x.dtype not in ("f32", "f64"):
        mode = "add"
    p.emit("scatter_elements", x, indices, p.fresh(shape, x.dtype), axis=axis, reduction=mode)


def _scatter_nd(p: RandomGraph) -> None:
    x = p.pick("number", ranks=(1, 2, 3))
    indices = p.fresh((1, p.integer(1, 6)), "i32", 0, x.shape[0] - 1)
    updates = p.fresh((indices.shape[1], *x.shape[1:]), x.dtype)
    p.emit("scatter_nd", x, indices, updates, mode=p.choose(["update", "add", "mul", "min", "max"]))


def _sparse_to_dense(p: RandomGraph) -> None:
    n = p.integer(1, 5)
    values = p.fresh((n,), "f32")
    p.emit("sparse_to_dense", p.fresh((n, 2), "i32", 0, 4), values, p.fresh((), "f32"), output_shape=(5, 6))


def _unravel(p: RandomGraph) -> None:
    shape = p.given(p.rng.integers(1, 6, 3).astype("int32"), "i32", constant=p.chance(0.5))
    p.emit("unravel_index", p.fresh((p.integer(1, 8),), "i32", 0, int(shape.native.prod()) - 1), shape)


def _sparse_reshape(p: RandomGraph) -> None:
    rows = p.fresh((p.integer(1, 6), 2), "i64", 0, 3)
    before = p.given(p.rng.permutation([4, 6]).astype("int64"), "i64", constant=True)
    after = p.given(np.array(p.choose([[2, -1], [3, 8], [24, 1]])), "i64", constant=True)
    p.emit("sparse_reshape", rows, before, after)


def _searchsorted(p: RandomGraph) -> None:
    x = p.pick(ranks=(1,), exact=True)
    (ordered,) = p.emit("sort", x, axis=0)
    p.emit("searchsorted", ordered, p.fresh((p.integer(1, 6),), x.dtype), right=p.chance(0.5))


def _axes(p: RandomGraph, x: DrawnValue) -> dict[str, Any]:
    axes = tuple(d for d in range(x.rank) if p.chance(0.5))
    return {"axis": axes or tuple(range(x.rank)), "keepdims": p.chance(0.5)}


def _reduce(name: str, p: RandomGraph) -> None:
    x = p.pick("bool" if name in ("all", "any") else "number", ranks=RANKS)
    p.emit(name, x, **_axes(p, x))


def _mean(p: RandomGraph) -> None:
    x = p.pick(ranks=RANKS)
    p.emit("mean", x, **_axes(p, x))


def _variance(p: RandomGraph) -> None:
    x = p.pick(ranks=RANKS)
    axes = _axes(p, x)
    (mean,) = p.emit("mean", x, **{**axes, "keepdims": True})
    p.emit("variance", x, mean, **axes, unbiased=False)


def _position(name: str, p: RandomGraph) -> None:
    x = p.pick("number", ranks=RANKS, exact=True)
    p.emit(name, x, **_axes(p, x), select_last_index=p.chance(0.3))


def _running(name: str, p: RandomGraph) -> None:
    x = p.pick("number", ranks=RANKS)
    p.emit(name, x, axis=p.integer(0, x.rank - 1), exclusive=p.chance(0.4))


def _order(name: str, p: RandomGraph) -> None:
    x = p.pick("number", ranks=RANKS, exact=True)
    axis = p.integer(0, x.rank - 1)
    attrs: dict[str, Any] = {"axis": axis, "is_ascend": p.chance(0.5)}
    if name == "topk":
        attrs["k"] = p.integer(1, x.shape[axis])
    if name != "sort":
        attrs["dtype"] = p.choose(INDEX)
    p.emit(name, x, **attrs)


def _unique(p: RandomGraph) -> None:
    p.emit("unique", p.fresh((p.integer(1, 12),), p.choose(INDEX), 0, 5), return_counts=p.chance(0.5))


def _keep(p: RandomGraph) -> None:
    b, n = p.integer(1, 2), p.integer(1, 8)
    p.emit("greedy_keep", p.fresh((b, n), "bool"), p.fresh((b, n, n), "bool"))


DRAWERS: dict[str, Callable[[RandomGraph], object]] = {
    **{n: partial(_reduce, n) for n in ("sum", "max", "min", "prod", "all", "any")},
    **{n: partial(_position, n) for n in ("argmax", "argmin")},
    **{n: partial(_running, n) for n in ("cumsum", "cumprod")},
    **{n: partial(_order, n) for n in ("sort", "argsort", "topk")},
    "mean": _mean,
    "variance": _variance,
    "take": _take,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "adv_index": _adv_index,
    "one_hot": _one_hot,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "sparse_to_dense": _sparse_to_dense,
    "unravel_index": _unravel,
    "sparse_reshape": _sparse_reshape,
    "searchsorted": _searchsorted,
    "unique": _unique,
    "greedy_keep": _keep,
}
