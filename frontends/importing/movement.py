"""Padding, cropping and indices, as importers of every format build them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.importing.emitter import Emitter, bounded
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Value

#: Widths before and after each dimension.
Pairs = Sequence[tuple[int, int]]


def cropped(emit: Emitter, data: Value, crops: Pairs) -> Value:
    """`data` without so many elements at both ends of each dimension."""
    if not any(map(any, crops)):
        return data
    x = data.tensor
    size = tuple(n - lo - hi for n, (lo, hi) in zip(x.shape, crops, strict=True))
    if min(size) < 0:
        raise InputError(f"expected to crop at most all elements of {x}, got {tuple(crops)}")
    begin = tuple(lo for lo, _ in crops)
    return emit.value("strided_slice", data, begin=begin, size=size, strides=(1,) * x.rank)


def padded(
    emit: Emitter, data: Value, widths: Pairs, value: Value | float = 0.0, mode: str = "constant"
) -> Value:
    """`data` padded by `widths` per dimension; negative ones crop what is padded at the other end.

    value: a number, or a tensor of one element, which may not be known. mode: constant, edge, reflect,
    symmetric, or wrap, which repeats the tensor.
    """
    known = emit.known(value)
    if known is not None and known.size == 1:
        value = known.reshape(()).item()
    if len(widths) != data.tensor.rank:
        raise InputError(f"expected {data.tensor.rank} pairs of widths for {data.type}, got {len(widths)}")
    before = tuple(max(0, lo) for lo, _ in widths)
    after = tuple(max(0, hi) for _, hi in widths)
    if mode == "wrap":
        for axis, extent in enumerate(data.tensor.shape):
            if before[axis] or after[axis]:
                bounded(before[axis] + after[axis])
                places = np.arange(-before[axis], extent + after[axis]) % max(1, extent)
                data = emit.value("take", data, emit.constant(places), axis=axis, mode="fast")
    elif any(before + after):
        attrs: dict[str, Attr] = {"pad_before": before, "pad_after": after, "pad_mode": mode}
        if mode != "constant":
            data = emit.value("pad", data, **attrs)
        elif isinstance(value, Value):
            data = emit.value("pad", data, emit.cast(emit.reshape(value, ()), data.tensor.dtype), **attrs)
        else:
            number = bool(value) if data.tensor.dtype == "bool" else value
            data = emit.value("pad", data, pad_value=number, **attrs)
    return cropped(emit, data, [(max(0, -lo), max(0, -hi)) for lo, hi in widths])


def coordinates_first(emit: Emitter, indices: Value) -> Value:
    """Indices that hold the coordinates of a place last; graph ops have them first."""
    rank = indices.tensor.rank
    if rank == 0:
        raise InputError(f"expected indices of rank 1 or more, got {indices.type}")
    return emit.transpose(indices, (rank - 1, *range(rank - 1)))
