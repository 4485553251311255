"""Relay operators that move, join and make tensors without computing on their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.joining import split_points
from tilewright.ir.graph_ops.sequences import range_count, range_values
from tilewright.ir.graph_ops.shaping import resolve_reshape
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.types import TensorType, itemsize, storage_dtype

#: Tensors that Relay makes from nothing become constants up to this size, above it ops that make them.
MAX_CONSTANT_BYTES = 1 << 20


def _reshape(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    codes, allowzero = attrs.integers("newshape"), attrs.flag("allowzero", False)
    shape = resolve_reshape(data.tensor.shape, codes, allowzero=allowzero)
    return emit.value("reshape", data, newshape=shape)


def _reverse_reshape(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """As reshape, but the codes are read from the right."""
    (data,) = emit.tensors(args, 1)
    codes, allowzero = attrs.integers("newshape"), attrs.flag("allowzero", False)
    shape = resolve_reshape(data.tensor.shape[::-1], codes[::-1], allowzero=allowzero)[::-1]
    return emit.value("reshape", data, newshape=shape)


def _expand_dims(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    axis, count = attrs.integer("axis"), attrs.integer("num_newaxis", 1)
    return emit.value("expand_dims", *emit.tensors(args, 1), axis=axis, num_newaxis=count)


def _squeeze(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("squeeze", *emit.tensors(args, 1), axis=attrs.integers("axis", None))


def _batch_flatten(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("batch_flatten", *emit.tensors(args, 1))


def _joined(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        if len(args) != 1:
            raise InputError(f"expected one tuple of tensors, got {len(args)} arguments")
        return emit.value(name, *emit.fields(args), axis=attrs.integer("axis", 0))

    return rule


def _split(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    axis, rank = attrs.integer("axis", 0), data.tensor.rank
    if not -rank <= axis < rank:
        raise InputError(f"expected an axis of {data.type}, got {axis}")
    parts = attrs.take("indices_or_sections")
    if type(parts) is not int and not (isinstance(parts, tuple) and all(type(p) is int for p in parts)):
        raise InputError(f"expected indices_or_sections to be integers, got {parts!r}")
    indices = split_points(data.tensor.shape[axis], parts)
    return emit.values("split", (data,), indices=indices, axis=axis % rank)


def _filled(value: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        emit.tensors(args, 0)
        return _constant(emit, attrs.integers("shape"), attrs.dtype("dtype") or "f32", value)

    return rule


def _filled_like(value: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (like,) = emit.tensors(args, 1)
        return _constant(emit, like.tensor.shape, like.tensor.dtype, value)

    return rule


def _full(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (value,) = emit.tensors(args, 1)
    return _spread(emit, value, attrs.integers("shape"), attrs.dtype("dtype") or value.tensor.dtype)


def _full_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    like, value = emit.tensors(args, 2)
    return _spread(emit, value, like.tensor.shape, like.tensor.dtype)


def _spread(emit: Emitter, value: Value, shape: tuple[int, ...], dtype: str) -> Result:
    """One element as every element of a tensor."""
    if value.tensor.size != 1:
        raise InputError(f"expected one element to fill with, got {value.type}")
    known = emit.known(value)
    if known is not None:
        return _constant(emit, shape, dtype, known.reshape(()).item())
    if value.tensor.shape:
        value = emit.value("reshape", value, newshape=())
    if value.tensor.dtype != dtype:
        value = emit.value("cast", value, dtype=dtype)
    return emit.value("broadcast_to", value, shape=shape)


def _constant(emit: Emitter, shape: tuple[int, ...], dtype: str, value: float | int) -> Result:
    """A constant while it is small; a large one is one element, broadcast where it is read."""
    kind, one = TensorType(dtype, tuple(shape)), np.asarray(value).astype(storage_dtype(dtype))
    if kind.nbytes > MAX_CONSTANT_BYTES:
        return emit.value("broadcast_to", emit.constant(one), shape=kind.shape)
    return emit.constant(np.full(kind.shape, one))


def _arange(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The bounds come as attributes, and as operands in some versions; both are constants."""
    start, stop, step = (attrs.scalar(name) for name in ("start", "stop", "step"))
    dtype = attrs.dtype("dtype") or "f32"
    given: dict[str, Attr] = {"start": start, "stop": stop, "step": step, "dtype": dtype}
    if range_count(start, stop, step) * itemsize(dtype) > MAX_CONSTANT_BYTES:
        return emit.value("arange", **given)
    return emit.constant(range_values(start, stop, step, dtype))


def _shape_of(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    dtype = attrs.dtype("dtype") or "i32"
    return emit.constant(_extents(data.tensor.shape, dtype))


def _ndarray_size(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    dtype = attrs.dtype("dtype") or "i32"
    return emit.constant(_extents(data.tensor.size, dtype))


def _extents(values: tuple[int, ...] | int, dtype: str) -> np.ndarray:
    """Extents as an array; raises InputError where the type cannot hold one."""
    exact = np.asarray(values, np.int64)
    array = exact.astype(storage_dtype(dtype))
    if not np.array_equal(array.astype(np.int64), exact):
        raise InputError(f"expected a type that holds {exact.max()}, got {dtype}")
    return array


RULES: Mapping[str, Rule] = {
    "reshape": _reshape,
    "contrib_reverse_reshape": _reverse_reshape,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "nn.batch_flatten": _batch_flatten,
    "concatenate": _joined("concatenate"),
    "stack": _joined("stack"),
    "split": _split,
    "zeros": _filled(0),
    "ones": _filled(1),
    "full": _full,
    "full_like": _full_like,
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "arange": _arange,
    "shape_of": _shape_of,
    "ndarray_size": _ndarray_size,
}
