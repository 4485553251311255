"""Relax operators that make tensors from shapes and numbers; they become constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Absent, Emitter, Result
from tilewright.frontends.relax.static import MAX_CONSTANT_BYTES, cast, filled, integers, number
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype


def _of_shape(value: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return filled(emit, integers(emit, args, 0, "the shape"), attrs.dtype("dtype") or "f32", value)

    return rule


def _of_shape_like(value: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        like = emit.tensor(args, 0).tensor
        return filled(emit, like.shape, attrs.dtype("dtype") or like.dtype, value)

    return rule


def _full(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return _spread(emit, emit.tensor(args, 1), integers(emit, args, 0, "the shape"), attrs.dtype("dtype"))


def _full_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    like, value = emit.tensors(args, 2)
    return _spread(emit, value, like.tensor.shape, attrs.dtype("dtype") or like.tensor.dtype)


def _spread(emit: Emitter, value: Value, shape: tuple[int, ...], dtype: str) -> Value:
    """One value everywhere, whether it is known now or not."""
    dtype = dtype or value.tensor.dtype
    known = emit.known(value)
    if known is not None and known.size == 1:
        return filled(emit, shape, dtype, known.reshape(()).item())
    return emit.value("broadcast_to", cast(emit, value, dtype), shape=shape)


def _eye(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    rows, columns, diagonal = (int(number(emit, args, i, "the size")) for i in range(3))
    return _identity(emit, rows, columns, diagonal, attrs.dtype("dtype") or "f32")


def _eye_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    like, diagonal = emit.tensor(args, 0).tensor, int(number(emit, args, 1, "the diagonal"))
    if like.rank != 2:
        raise InputError(f"expected a matrix, got {like}")
    rows, columns = like.shape
    return _identity(emit, rows, columns, diagonal, attrs.dtype("dtype") or like.dtype)


def _identity(emit: Emitter, rows: int, columns: int, diagonal: int, dtype: str) -> Value:
    if rows * columns > MAX_CONSTANT_BYTES:
        raise InputError(f"expected a matrix of at most {MAX_CONSTANT_BYTES} bytes, got {rows} x {columns}")
    return emit.constant(np.eye(rows, columns, diagonal).astype(storage_dtype(dtype)))


def _arange(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    start, stop, step = (number(emit, args, i, "the bounds of the range") for i in range(3))
    count = (stop - start) / step if step else float("inf")
    if not count * 8 <= MAX_CONSTANT_BYTES:
        raise InputError(
            f"expected a range of at most {MAX_CONSTANT_BYTES} bytes, got {start}, {stop}, {step}"
        )
    return emit.constant(np.arange(start, stop, step).astype(storage_dtype(attrs.dtype("dtype") or "f32")))


def _hamming_window(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """alpha - beta cos(2 pi i / n), where n is the size, less one unless periodic."""
    size, periodic = int(number(emit, args, 0, "the size")), bool(number(emit, args, 1, "periodic"))
    alpha, beta = number(emit, args, 2, "alpha"), number(emit, args, 3, "beta")
    period = max(size if periodic else size - 1, 1)
    window = alpha - beta * np.cos(2 * np.pi * np.arange(size) / period) if size > 1 else np.ones(size)
    return emit.constant(np.asarray(window).astype(storage_dtype(attrs.dtype("dtype") or "f32")))


def _triangle(lower: bool) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """What lies outside the triangle of each matrix becomes zero."""
        x = emit.tensor(args, 0)
        k = int(number(emit, args, 1, "the diagonal")) if len(args) > 1 else attrs.integer("k", 0)
        if x.tensor.rank < 2:
            raise InputError(f"expected matrices, got {x.type}")
        ones = np.ones(x.tensor.shape[-2:], np.bool_)
        kept = emit.constant(np.tril(ones, k) if lower else np.triu(ones, k))
        return emit.value("where", kept, x, filled(emit, (), x.tensor.dtype, 0))

    return rule


def _null_value(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return Absent("a value that is left out")


RULES: Mapping[str, Rule] = {
    "zeros": _of_shape(0),
    "ones": _of_shape(1),
    "zeros_like": _of_shape_like(0),
    "ones_like": _of_shape_like(1),
    "full": _full,
    "full_like": _full_like,
    "eye": _eye,
    "eye_like": _eye_like,
    "arange": _arange,
    "hamming_window": _hamming_window,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "null_value": _null_value,
}
