"""Draws products, convolutions, windows and norms, in all layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.ir.graph_ops.layouts import SPATIAL, data_layouts, kernel_layouts, windows
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.tools.fuzz.program import DrawnValue, RandomGraph, Rejected


def image(
    p: RandomGraph, spatial: int, layout: str, channels: int | None = None, most: int = 12
) -> DrawnValue:
    """Data in `layout`: an older value of the right rank, or a fresh one."""
    rank = spatial + 2
    if channels is None and p.chance(0.6):
        return p.pick(ranks=(rank,))
    extents = {"N": p.integer(1, 2), "C": channels or p.integer(1, 8)}
    sides = {3: 5, 2: most, 1: 24}[spatial]
    return p.fresh([extents.get(c, p.integer(3, sides)) for c in layout], p.dtype())


def _extents(layout: str, x: DrawnValue) -> dict[str, int]:
    return dict(zip(layout, x.shape, strict=True))


def _windows(p: RandomGraph, n: int, *, dilated: bool = True) -> dict[str, Any]:
    return {
        "strides": tuple(p.choose([1, 1, 2, 3]) for _ in range(n)),
        "padding": tuple(p.choose([0, 0, 1, 2]) for _ in range(2 * n)),
        "dilation": tuple(p.choose([1, 1, 2]) if dilated else 1 for _ in range(n)),
    }


def _conv(n: int, p: RandomGraph) -> None:
    layout, kernel = p.choose(data_layouts(n)[:2]), p.choose(kernel_layouts(n)[:3])
    x = image(p, n, layout)
    channels = _extents(layout, x)["C"]
    groups = p.choose([g for g in range(1, channels + 1) if channels % g == 0] + [1] * 3)
    sizes = {"O": groups * p.integer(1, 4), "I": channels // groups}
    w = p.fresh([sizes.get(c, p.choose([1, 2, 3, 3])) for c in kernel], x.dtype, -1, 1)
    attrs = _windows(p, n)
    p.emit(f"conv{n}d", x, w, groups=groups, data_layout=layout, kernel_layout=kernel, **attrs)


def _winograd(p: RandomGraph) -> None:
    x = p.fresh((1, p.integer(1, 4), p.integer(4, 12), p.integer(4, 12)), "f32")
    w = p.fresh((p.integer(1, 4), x.shape[1], 3, 3), "f32", -1, 1)
    padding = tuple(p.integer(0, 1) for _ in range(4))
    p.emit("conv2d", x, w, padding=padding, algorithm=p.choose(["winograd2", "winograd4", "fft"]))


def _transposed(n: int, p: RandomGraph) -> None:
    layout, kernel = f"NC{SPATIAL[n]}", f"IO{SPATIAL[n]}"
    x = image(p, n, layout, most=6)
    channels = x.shape[1]
    groups = p.choose([g for g in range(1, channels + 1) if channels % g == 0])
    w = p.fresh((channels, p.integer(1, 3), *(p.integer(1, 3) for _ in range(n))), x.dtype, -1, 1)
    attrs = _windows(p, n)
    extra = tuple(p.integer(0, s - 1) for s in attrs["strides"])
    p.emit(f"conv{n}d_transpose", x, w, groups=groups, output_padding=extra, kernel_layout=kernel, **attrs)


def _weight_gradient(n: int, p: RandomGraph) -> None:
    layout, kernel = p.choose(data_layouts(n)[:2]), p.choose(kernel_layouts(n))
    x = image(p, n, layout)
    extents = _extents(layout, x)
    groups = p.choose([g for g in range(1, extents["C"] + 1) if extents["C"] % g == 0] + [1] * 3)
    attrs = _windows(p, n)
    sizes = [extents[d] for d in SPATIAL[n]]
    taps = tuple(p.choose([1, 2, 3, 3]) for _ in range(n))
    along = windows(sizes, taps, attrs["strides"], attrs["padding"], attrs["dilation"])
    counts = dict(zip(SPATIAL[n], (w.count for w in along), strict=True))
    extents |= {"C": groups * p.integer(1, 4), **counts}
    g = p.fresh([extents[d] for d in layout], x.dtype, -1, 1)
    attrs |= {"kernel_size": taps, "groups": groups, "data_layout": layout, "kernel_layout": kernel}
    p.emit(f"conv{n}d_weight_grad", g, x, **attrs)


def _pool(kind: str, n: int, p: RandomGraph) -> None:
    x, attrs = _pooled(n, p)
    if kind == "avg":
        attrs["count_include_pad"] = p.chance(0.5)
    p.emit(f"{kind}_pool{n}d", x, **attrs)


def _position(n: int, p: RandomGraph) -> None:
    x, attrs = _pooled(n, p)
    if not x.exact:
        raise Rejected("rounding would decide which tap is the largest")
    p.emit(f"max_pool{n}d_position", x, **attrs)


def _pool_gradient(kind: str, n: int, p: RandomGraph) -> None:
    x, attrs = _pooled(n, p)
    layout = attrs["layout"]
    extents = _extents(layout, x)
    sizes = tuple(extents[d] for d in SPATIAL[n])
    size, strides, padding, dilation = (attrs[k] for k in ("pool_size", "strides", "padding", "dilation"))
    along = windows(sizes, size, strides, padding, dilation, attrs["ceil_mode"])
    counts = dict(zip(SPATIAL[n], (w.count for w in along), strict=True))
    g = p.fresh([(extents | counts)[d] for d in layout], x.dtype)
    if kind == "avg":
        p.emit(f"avg_pool{n}d_grad", g, image=sizes, count_include_pad=p.chance(0.5), **attrs)
        return
    position = p.fresh(g.shape, "u8", 0, math.prod(size) - 1)
    p.emit(f"max_pool{n}d_grad", g, position, image=sizes, **attrs)


def _pooled(n: int, p: RandomGraph) -> tuple[DrawnValue, dict[str, Any]]:
    """Data to pool, and windows over it."""
    layout = p.choose(data_layouts(n)[:2])
    size = tuple(p.integer(1, 3) for _ in range(n))
    attrs = _windows(p, n)
    attrs["padding"] = tuple(min(v, size[i % n] // 2) for i, v in enumerate(attrs["padding"]))
    return image(p, n, layout), {**attrs, "pool_size": size, "layout": layout, "ceil_mode": p.chance(0.4)}


def _adaptive(kind: str, n: int, p: RandomGraph) -> None:
    layout = p.choose(data_layouts(n)[:2])
    size = tuple(p.integer(1, 5) for _ in range(n))
    p.emit(f"adaptive_{kind}_pool{n}d", image(p, n, layout), output_size=size, layout=layout)


def _global(kind: str, n: int, p: RandomGraph) -> None:
    layout = p.choose(data_layouts(n)[:2])
    p.emit(f"global_{kind}_pool{n}d", image(p, n, layout), layout=layout)


def _shift(p: RandomGraph) -> None:
    layout = p.choose(["NCHW", "NHWC"])
    x = image(p, 2, layout)
    p.emit("shift", x, p.fresh((_extents(layout, x)["C"], 2), "i32", -2, 2), data_layout=layout)


def _octave(p: RandomGraph) -> None:
    h, w, high, low, out = (p.integer(1, 4) for _ in range(5))
    maps = p.fresh((1, high, 2 * h, 2 * w), "f32"), p.fresh((1, low, h, w), "f32")
    kernels = [p.fresh((out, c, 1, 1), "f32") for c in (high, high, low, low)]
    p.emit("octave_conv2d", *maps, *kernels)


def _deformable(p: RandomGraph) -> None:
    x = image(p, 2, "NCHW", most=6)
    w = p.fresh((p.integer(1, 3), x.shape[1], 2, 2), x.dtype, -1, 1)
    rows, columns = x.shape[2] - 1, x.shape[3] - 1
    # no offset near an integer: the gradient of bilinear sampling jumps there, its value does not
    offset = p.fresh((x.shape[0], 8, rows, columns), x.dtype, 0.1, 0.9)
    p.emit("deformable_conv2d", x, offset, w)


def _dilation(p: RandomGraph) -> None:
    layout = p.choose(["NCHW", "NHWC"])
    x = image(p, 2, layout)
    c = _extents(layout, x)["C"]
    w = p.fresh((c, 2, 3) if layout == "NCHW" else (2, 3, c), x.dtype)
    p.emit("dilation2d", x, w, data_layout=layout, **_windows(p, 2))


def _correlation(p: RandomGraph) -> None:
    a = p.fresh((1, p.integer(1, 3), 8, 9), "f32")
    b = p.fresh(a.shape, "f32")
    attrs: dict[str, Any] = {"kernel_size": p.choose([1, 3]), "max_displacement": p.integer(1, 2)}
    pad = attrs["max_displacement"]
    p.emit("correlation", a, b, padding=(pad,) * 4, is_multiply=p.chance(0.5), **attrs)


def _matrix(
    p: RandomGraph, x: DrawnValue, rows: int, columns: int, swapped: bool, batch: tuple[int, ...] = ()
) -> DrawnValue:
    return p.fresh((*batch, *((columns, rows) if swapped else (rows, columns))), x.dtype)


def _dense(p: RandomGraph) -> None:
    x = p.pick(ranks=(2, 3))
    p.emit("dense", x, p.fresh((p.integer(1, 20), x.shape[-1]), x.dtype))


def _matmul(name: str, p: RandomGraph) -> None:
    x = p.pick(ranks=(2,) if name == "matmul" else (3,))
    ta, tb = p.chance(0.4), p.chance(0.4)
    inner = x.shape[-2 if ta else -1]
    batch = (p.choose([1, x.shape[0]]),) if name == "batch_matmul" else ()
    sides = (inner, p.integer(1, 12))
    b = p.fresh((*batch, *(sides[::-1] if tb else sides)), x.dtype)
    p.emit(name, x, b, transpose_a=ta, transpose_b=tb)


def _einsum(p: RandomGraph) -> None:
    x = p.pick(ranks=(3,))
    b, _, k = x.shape
    equation, shape = p.choose(
        [("bmk,kn->bmn", (k, 3)), ("bmk,bk->bm", (b, k)), ("bmk,bmk->b", x.shape), ("bmk,nk->nmb", (2, k))]
    )
    p.emit("einsum", x, p.fresh(shape, x.dtype), equation=equation)


def _vector(p: RandomGraph, x: DrawnValue, axis: int, low: float = -1.0, high: float = 1.0) -> DrawnValue:
    return p.fresh((x.shape[axis],), x.dtype, low, high)


def _bias(p: RandomGraph) -> None:
    x = p.pick(ranks=(1, 2, 3, 4))
    axis = p.integer(0, x.rank - 1)
    p.emit("bias_add", x, _vector(p, x, axis), axis=axis)


def _batch_norm(p: RandomGraph) -> None:
    x = p.pick(ranks=(2, 3, 4))
    axis = p.integer(0, x.rank - 1)
    statistics = [_vector(p, x, axis, *r) for r in ((0.5, 1.5), (-1, 1), (-1, 1), (0.5, 2.0))]
    p.emit("batch_norm", x, *statistics, axis=axis, scale=p.chance(0.8), center=p.chance(0.8))


def _batch_norm_training(p: RandomGraph) -> None:
    x = p.pick(ranks=(2, 3, 4))
    axis = p.integer(0, x.rank - 1)
    vectors = _vector(p, x, axis, 0.5, 1.5), _vector(p, x, axis)
    p.emit(
        "batch_norm_training", x, *vectors, axis=axis, epsilon=1e-3, scale=p.chance(0.8), center=p.chance(0.8)
    )


def _norm(name: str, p: RandomGraph) -> None:
    x = p.pick(ranks=(3, 4))
    axis = x.rank - 1 if name == "layer_norm" else 1
    attrs: dict[str, Any] = {"axis": axis, "epsilon": 1e-3}
    if name == "group_norm":
        attrs["num_groups"] = p.choose([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    p.emit(name, x, _vector(p, x, axis, 0.5, 1.5), _vector(p, x, axis), **attrs)


def _softmax(name: str, p: RandomGraph) -> None:
    x = p.pick(ranks=(1, 2, 3, 4))
    p.emit(name, x, axis=p.integer(0, x.rank - 1))


def _attention(p: RandomGraph, *, backward: bool = False) -> None:
    dtype = p.dtype()
    lead = tuple(p.integer(1, 3) for _ in range(p.integer(0, 2)))
    queries, keys, channels, width = (p.integer(1, 9) for _ in range(4))
    shared = tuple(1 if p.chance(0.3) else n for n in lead)
    q = p.fresh((*lead, queries, channels), dtype, -1, 1)
    k = p.fresh((*shared, keys, channels), dtype, -1, 1)
    v = p.fresh((*shared, keys, width), dtype)
    names = [n for n in ("bias", "seen", "kept") if p.chance(0.4)]
    others = []
    for name in names:
        shape = [1 if p.chance(0.2) else n for n in (*lead, queries, keys)]
        others.append(p.fresh(shape[p.integer(0, len(shape)) :], dtype if name == "bias" else "bool", -1, 1))
    attrs: dict[str, Any] = {"scale": p.choose([1.0, 0.5]), "kept_scale": 1.25, "hidden": -4.0}
    if not backward:
        p.emit("attention", q, k, v, *others, others=tuple(names), **attrs)
        return
    rows = (*lead, queries)
    out, g = (p.fresh((*rows, width), dtype, -1, 1) for _ in range(2))
    lse = p.fresh(rows, accumulator_dtype(dtype), 0, 2)
    if p.chance(0.3):
        names.append("lse_cotangent")
        others.append(p.fresh(rows, lse.dtype, -1, 1))
    p.emit("attention_backward", q, k, v, out, lse, g, *others, others=tuple(names), **attrs)


def _prelu(p: RandomGraph) -> None:
    x = p.pick(ranks=(2, 3, 4))
    axis = p.integer(0, x.rank - 1)
    p.emit("prelu", x, _vector(p, x, axis), axis=axis)


def _l2(p: RandomGraph) -> None:
    x = p.pick(ranks=(1, 2, 3, 4))
    axes = tuple(d for d in range(x.rank) if p.chance(0.5)) or (x.rank - 1,)
    p.emit("l2_normalize", x, eps=1e-3, axis=axes)


def _lrn(p: RandomGraph) -> None:
    x = p.pick(ranks=(4,))
    if x.dtype in ("f16", "bf16"):
        raise Rejected("16-bit squares lose what is compared")
    p.emit("lrn", x, size=p.choose([1, 3, 5]), axis=p.choose([1, 3]), alpha=0.1, bias=1.0)


DRAWERS: dict[str, Callable[[RandomGraph], object]] = {
    **{f"conv{n}d": partial(_conv, n) for n in (1, 2, 3)},
    "conv2d algorithms": _winograd,
    **{f"conv{n}d_transpose": partial(_transposed, n) for n in (1, 2, 3)},
    **{f"conv{n}d_weight_grad": partial(_weight_gradient, n) for n in (1, 2, 3)},
    **{f"{k}_pool{n}d": partial(_pool, k, n) for k in ("max", "avg") for n in (1, 2, 3)},
    **{f"max_pool{n}d_position": partial(_position, n) for n in (1, 2, 3)},
    **{f"{k}_pool{n}d_grad": partial(_pool_gradient, k, n) for k in ("max", "avg") for n in (1, 2, 3)},
    **{f"adaptive_{k}_pool{n}d": partial(_adaptive, k, n) for k in ("max", "avg") for n in (1, 2, 3)},
    **{f"global_{k}_pool{n}d": partial(_global, k, n) for k in ("max", "avg") for n in (1, 2, 3)},
    **{n: partial(_matmul, n) for n in ("matmul", "batch_matmul")},
    **{n: partial(_norm, n) for n in ("layer_norm", "group_norm", "instance_norm")},
    **{n: partial(_softmax, n) for n in ("softmax", "log_softmax")},
    "attention": _attention,
    "attention_backward": partial(_attention, backward=True),
    "shift": _shift,
    "octave_conv2d": _octave,
    "deformable_conv2d": _deformable,
    "dilation2d": _dilation,
    "correlation": _correlation,
    "dense": _dense,
    "einsum": _einsum,
    "bias_add": _bias,
    "batch_norm": _batch_norm,
    "batch_norm_training": _batch_norm_training,
    "prelu": _prelu,
    "l2_normalize": _l2,
    "lrn": _lrn,
}
