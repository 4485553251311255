"""Draws ops that move elements: shapes, slices, padding, joining, splitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.types import FLOATS
from tilewright.tools.fuzz.program import DrawnValue, RandomGraph, Rejected

RANKS = (1, 2, 3, 4)


def _factored(p: RandomGraph, size: int) -> tuple[int, ...]:
    """`size` as a product of up to four extents."""
    out = []
    for _ in range(p.integer(0, 3)):
        f = p.choose([f for f in range(1, min(size, 16) + 1) if size % f == 0])
        out.append(f)
        size //= f
    out.insert(p.integer(0, len(out)), size)
    return tuple(out)


def _reshape(p: RandomGraph) -> None:
    x = p.pick("any")
    p.emit("reshape", x, newshape=_factored(p, x.native.size))


def _expand_dims(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(0, 1, 2, 3))
    p.emit("expand_dims", x, axis=p.integer(0, x.rank), num_newaxis=p.integer(1, 2))


def _squeeze(p: RandomGraph) -> None:
    x = p.pick("any", test=lambda e: 1 in e.shape)
    axes = tuple(d for d, n in enumerate(x.shape) if n == 1 and p.chance(0.6))
    p.emit("squeeze", x, axis=axes or None)


def _alike(p: RandomGraph, x: DrawnValue, axis: int) -> DrawnValue:
    matches = [
        e
        for e in p.entries
        if e.dtype == x.dtype and e.rank == x.rank
        and all(d == axis or a == b for d, (a, b) in enumerate(zip(e.shape, x.shape, strict=True)))
    ]  # fmt: skip
    if matches and p.chance(0.6):
        return p.choose(matches)
    shape = list(x.shape)
    shape[axis] = p.integer(1, 6)
    return p.fresh(shape, x.dtype)


def _concatenate(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    axis = p.integer(0, x.rank - 1)
    parts = [x, *(_alike(p, x, axis) for _ in range(p.integer(1, 3)))]
    p.emit("concatenate", *(parts[i] for i in p.rng.permutation(len(parts))), axis=axis)


def _stack(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(0, 1, 2, 3))
    parts = [x, *(p.fresh(x.shape, x.dtype) for _ in range(p.integer(0, 2)))]
    p.emit("stack", *parts, axis=p.integer(0, x.rank))


def _split(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    axis = p.integer(0, x.rank - 1)
    places = [i for i in range(1, x.shape[axis]) if p.chance(0.4)][:3]
    p.emit("split", x, indices=tuple(places), axis=axis)


def _transpose(p: RandomGraph) -> None:
    x = p.pick("any")
    p.emit("transpose", x, axes=tuple(int(a) for a in p.rng.permutation(x.rank)))


def _broadcast_to(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(0, 1, 2, 3))
    shape = [p.integer(1, 5) if n == 1 else n for n in x.shape]
    p.emit("broadcast_to", x, shape=(*(p.integer(1, 4) for _ in range(p.integer(0, 1))), *shape))


def _slice(p: RandomGraph, shape: tuple[int, ...]) -> dict[str, Any]:
    """A slice of at least one element in every dimension, some of them backwards."""
    begin, size, strides = [], [], []
    for n in shape:
        step = p.choose([1, 1, 1, 2, 3, -1, -2])
        first = p.integer(0, n - 1)
        room = (n - 1 - first) // step if step > 0 else first // -step
        begin.append(first)
        size.append(p.integer(1, room + 1))
        strides.append(step)
    return {"begin": tuple(begin), "size": tuple(size), "strides": tuple(strides)}


def _strided_slice(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    p.emit("strided_slice", x, **_slice(p, x.shape))


def _strided_set(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    attrs = _slice(p, x.shape)
    v = p.fresh(attrs.pop("size"), x.dtype)
    p.emit("strided_set", x, v, **attrs)


def _reverse(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    p.emit("reverse", x, axis=p.integer(0, x.rank - 1))


def _tile(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(0, 1, 2, 3))
    p.emit("tile", x, reps=tuple(p.integer(1, 3) for _ in range(x.rank + p.integer(0, 1))))


def _repeat(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    p.emit("repeat", x, repeats=p.integer(1, 3), axis=p.integer(0, x.rank - 1))


def _pad(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    mode = p.choose(["constant", "constant", "edge", "reflect", "symmetric"])
    most = [n - 1 if mode == "reflect" else min(n, 3) for n in x.shape]
    before, after = (tuple(p.integer(0, min(m, 3)) for m in most) for _ in range(2))
    value = p.integer(0, 3) if x.dtype != "bool" else 0
    p.emit("pad", x, pad_before=before, pad_after=after, pad_mode=mode, pad_value=value)


def _blocks(name: str, p: RandomGraph) -> None:
    layout, block = p.choose(["NCHW", "NHWC"]), p.integer(2, 3)
    deep = name == "depth_to_space"
    sizes = {"N": p.integer(1, 2), "C": p.integer(1, 3), "H": p.integer(1, 4), "W": p.integer(1, 4)}
    scale = {"C": block * block} if deep else {"H": block, "W": block}
    x = p.fresh([sizes[c] * scale.get(c, 1) for c in layout], p.dtype("any"))
    p.emit(name, x, block_size=block, layout=layout, mode=p.choose(["DCR", "CRD"]) if deep else "DCR")


def _sliding_window(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3))
    axis = p.integer(0, x.rank - 1)
    taps = tuple(p.integer(1, min(3, n)) for n in x.shape[axis:])
    p.emit("sliding_window", x, axis=axis, window_shape=taps, strides=tuple(p.integer(1, 2) for _ in taps))


def _trilu(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3, 4))
    p.emit("trilu", x, k=p.integer(-2, 2), upper=p.chance(0.5))


def _set_diagonal(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3), test=lambda e: min(e.shape[-2:]) > 1)
    low = p.integer(-1, 1)
    high = p.integer(low, 1)
    lengths = [min(x.shape[-2] + min(k, 0), x.shape[-1] - max(k, 0)) for k in range(low, high + 1)]
    count = (len(lengths),) if low < high else ()
    p.emit("matrix_set_diag", x, p.fresh((*x.shape[:-2], *count, max(lengths)), x.dtype), k1=low, k2=high)


def _arange(p: RandomGraph) -> None:
    dtype = p.choose(["f32", "i32", "i64", "f64"])
    step = p.choose([1, 2, -1]) if dtype not in FLOATS else p.choose([0.5, 1.0, -2.0])
    start = p.integer(-3, 3)
    p.emit("arange", start=start, stop=start + step * p.integer(1, 20), step=step, dtype=dtype)


def _random_bits(p: RandomGraph) -> None:
    _drawn(p, "random_bits", bits=p.choose([8, 16, 32]))


def _random_mask(p: RandomGraph) -> None:
    bits = p.integer(1, 17)
    _drawn(p, "random_mask", bits=bits, kept=p.integer(1, 1 << bits))


def _drawn(p: RandomGraph, name: str, **more: int) -> None:
    shape = p.shape()
    origin: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    if shape and p.chance(0.4):
        origin = tuple(p.integer(0, 3) for _ in shape)
        whole = tuple(o + n + p.integer(0, 2) for o, n in zip(origin, shape, strict=True))
    words = p.rng.integers(0, 1 << 32, 3).astype(np.uint32)
    seed, step = p.given(words[:2], "u32", constant=False), p.given(words[2], "u32", constant=False)
    p.emit(name, seed, step, shape=shape, stream=p.integer(0, 5), whole=whole, origin=origin, **more)


def _sequence_mask(p: RandomGraph) -> None:
    x = p.pick("number", ranks=(2, 3))
    axis = p.integer(0, 1)
    lengths = p.fresh((x.shape[1 - axis],), p.choose(["i32", "i64"]), 0, x.shape[axis])
    p.emit("sequence_mask", x, lengths, axis=axis, mask_value=p.choose([0.0, 1.0]))


def _reverse_sequence(p: RandomGraph) -> None:
    x = p.pick("any", ranks=(2, 3))
    seq = p.integer(0, 1)
    lengths = p.fresh((x.shape[1 - seq],), "i32", 1, x.shape[seq])
    p.emit("reverse_sequence", x, lengths, seq_axis=seq, batch_axis=1 - seq)


def _compact(p: RandomGraph) -> None:
    x = p.pick("number", ranks=(2, 3))
    p.emit("compact", x, p.fresh(x.shape[:2], "bool"), value=-1 if x.dtype != "u8" else 0)


def _flatten(p: RandomGraph) -> None:
    x = p.pick("any", ranks=RANKS)
    if not np.prod(x.shape):
        raise Rejected("nothing to flatten")
    p.emit("batch_flatten", x)


DRAWERS: dict[str, Callable[[RandomGraph], object]] = {
    "reshape": _reshape,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "batch_flatten": _flatten,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "strided_slice": _strided_slice,
    "strided_set": _strided_set,
    "reverse": _reverse,
    "tile": _tile,
    "repeat": _repeat,
    "pad": _pad,
    "depth_to_space": lambda p: _blocks("depth_to_space", p),
    "space_to_depth": lambda p: _blocks("space_to_depth", p),
    "sliding_window": _sliding_window,
    "trilu": _trilu,
    "matrix_set_diag": _set_diagonal,
    "arange": _arange,
    "random_bits": _random_bits,
    "random_mask": _random_mask,
    "sequence_mask": _sequence_mask,
    "reverse_sequence": _reverse_sequence,
    "compact": _compact,
}
