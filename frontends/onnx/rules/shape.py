"""ONNX operators that move, join, cut and make tensors without computing on their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.importing.movement import padded
from tilewright.frontends.importing.rules import Reader, direct, integer, text
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules, wrapped
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import axes_of, broadcast_shapes
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS, TensorType, storage_dtype

#: Tensors made from nothing become constants up to this size.
MAX_CONSTANT_BYTES = 1 << 30


def _reshape(emit: FoldingEmitter, node: Node) -> Result:
    """0 copies an extent (unless allowzero), -1 is inferred."""
    x, codes = node.tensor(0), emit.integers(node.tensor(1), "the shape")
    shape = x.tensor.shape
    copy = not node.flag("allowzero", False)
    if copy and any(c == 0 and d >= len(shape) for d, c in enumerate(codes)):
        raise InputError(f"expected dimensions of {x.type} to copy, got shape {codes}")
    extents = [shape[d] if c == 0 and copy else c for d, c in enumerate(codes)]
    if extents.count(-1) > 1 or any(n < -1 for n in extents):
        raise InputError(f"expected a shape with at most one -1, got {codes}")
    if -1 in extents:
        rest = prod(n for n in extents if n != -1)
        extents[extents.index(-1)] = x.tensor.size // rest if rest else 0
    return emit.reshape(x, extents)


def _flatten(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    shape = x.tensor.shape
    axis = node.axis(x.tensor.rank, 1, end=True)
    return emit.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))


def axes_given(emit: FoldingEmitter, node: Node, since: int, index: int = 1) -> tuple[int, ...] | None:
    """Axes as the operators name them: an attribute before version `since`, operand `index` from it on."""
    if node.opset < since:
        listed: tuple[int, ...] | None = node.integers("axes", None)
        return listed
    axes = node.optional(index)
    return None if axes is None else emit.integers(axes, "axes")


def _squeeze(emit: FoldingEmitter, node: Node) -> Result:
    x, axes = node.tensor(0), axes_given(emit, node, 13)
    shape = x.tensor.shape
    dropped = (
        [d for d, n in enumerate(shape) if n == 1] if axes is None else axes_of(axes, len(shape), "axes")
    )
    if any(shape[d] != 1 for d in dropped):
        raise InputError(f"expected extents of 1 on axes {axes} of {x.type}")
    return emit.reshape(x, [n for d, n in enumerate(shape) if d not in dropped])


def _unsqueeze(emit: FoldingEmitter, node: Node) -> Result:
    x, axes = node.tensor(0), axes_given(emit, node, 13)
    if axes is None:
        raise InputError("expected axes, got none")
    rank = x.tensor.rank + len(axes)
    new = axes_of(axes, rank, "axes")
    old = iter(x.tensor.shape)
    return emit.reshape(x, [1 if d in new else next(old) for d in range(rank)])


def _transpose(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    axes = node.integers("perm", tuple(reversed(range(x.tensor.rank))))
    if sorted(axes) != list(range(x.tensor.rank)):
        raise InputError(f"expected perm to order the axes of {x.type}, got {axes}")
    return emit.transpose(x, axes)


def _expand(emit: FoldingEmitter, node: Node) -> Result:
    x, shape = node.tensor(0), emit.integers(node.tensor(1), "the shape")
    return emit.broadcast(x, broadcast_shapes([x.tensor.shape, shape], "shape"))


def _tile(emit: FoldingEmitter, node: Node) -> Result:
    x, reps = node.tensor(0), emit.integers(node.tensor(1), "repeats")
    if len(reps) != x.tensor.rank:
        raise InputError(f"expected one repetition per axis of {x.type}, got {reps}")
    return x if set(reps) <= {1} else emit.value("tile", x, reps=reps)


def _concat(emit: FoldingEmitter, node: Node) -> Result:
    parts = node.tensors()
    return emit.join(parts, node.axis(node.tensor(0).tensor.rank))


def _split(emit: FoldingEmitter, node: Node) -> Result:
    """Into given extents, else into as many parts as asked for, the last of which may be smaller."""
    x = node.tensor(0)
    axis = node.axis(x.tensor.rank, 0)
    extent = x.tensor.shape[axis]
    sizes = node.integers("split", None) if node.opset < 13 else None
    if node.opset >= 13 and node.has(1):
        sizes = emit.integers(node.tensor(1), "split")
    parts = node.integer("num_outputs", None) or len(node.wanted)
    if sizes is None:
        each = -(-extent // parts)
        sizes = [min(each, max(0, extent - k * each)) for k in range(parts)]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise InputError(f"expected parts of {extent} entries together, got {tuple(sizes)}")
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    return emit.values("split", (x,), indices=cuts, axis=axis) if cuts else (x,)


def _slice(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    if node.opset < 10:
        starts, ends = node.integers("starts"), node.integers("ends")
        axes, steps = node.integers("axes", None), None
    else:
        starts, ends = (emit.integers(node.tensor(i), n) for i, n in ((1, "starts"), (2, "ends")))
        axes, steps = (
            emit.integers(node.tensor(i), n) if node.has(i) else None for i, n in ((3, "axes"), (4, "steps"))
        )
    return sliced(emit, x, starts, ends, axes, steps)


def sliced(
    emit: FoldingEmitter,
    x: Value,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Value:
    """`x[start:end:step]` along each of `axes` (all in order by default), clamped as Python clamps slices."""
    shape = x.tensor.shape
    where = tuple(range(len(starts))) if axes is None else axes_of(axes, len(shape), "axes")
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(where) == len(steps) or 0 in steps or len(where) > len(shape):
        raise InputError(
            f"expected as many starts, ends, axes and steps (not 0), got {starts}, {ends}, {where}, {steps}"
        )
    begin, size, stride = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, first, last, step in zip(where, starts, ends, steps, strict=True):
        # a negative end below every index means "past the first entry"
        bounds = range(shape[axis])[slice(first, last, step)]
        begin[axis], size[axis], stride[axis] = (bounds.start if len(bounds) else 0), len(bounds), step
    if tuple(size) == shape and set(stride) <= {1}:
        return x
    return emit.value("strided_slice", x, begin=tuple(begin), size=tuple(size), strides=tuple(stride))


def _pad(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    rank = x.tensor.rank
    mode = node.text("mode", "constant")
    value: Value | None = None
    axes: Sequence[int] = range(rank)
    if node.opset < 11:
        pads, fill = node.integers("pads"), node.real("value", 0.0)
    else:
        pads, fill = emit.integers(node.tensor(1), "pads"), 0.0
        value = node.optional(2)
        if node.has(3):
            axes = axes_of(emit.integers(node.tensor(3), "axes"), rank, "axes")
    if len(pads) != 2 * len(axes):
        raise InputError(f"expected {2 * len(axes)} pads for {x.type}, got {pads}")
    widths = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        widths[axis] = (pads[k], pads[len(axes) + k])
    return padded(emit, x, widths, fill if value is None else value, mode)


def _shape(emit: FoldingEmitter, node: Node) -> Result:
    shape = node.tensor(0).tensor.shape
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return emit.constant(np.array(shape[slice(start, end)], np.int64))


def _size(emit: FoldingEmitter, node: Node) -> Result:
    return emit.constant(np.array(node.tensor(0).tensor.size, np.int64))


def _constant(emit: FoldingEmitter, node: Node) -> Result:
    for name, dtype in (("float", "f32"), ("int", "i64"), ("floats", "f32"), ("ints", "i64")):
        numbers = node.take(f"value_{name}", None)
        if numbers is not None:
            return emit.constant(np.array(numbers, storage_dtype(dtype)))
    name = "value" if node.sets("value") else "sparse_value"
    return emit.constant(node.array(name))


def _checked(kind: TensorType) -> TensorType:
    if kind.nbytes > MAX_CONSTANT_BYTES:
        raise InputError(f"expected a constant of at most {MAX_CONSTANT_BYTES} bytes, got {kind}")
    return kind


def _constant_of_shape(emit: FoldingEmitter, node: Node) -> Result:
    shape = emit.integers(node.tensor(0), "the shape")
    value = node.array("value") if node.sets("value") else np.zeros(1, np.float32)
    scalar = emit.constant(value.reshape(()))
    _checked(TensorType(scalar.tensor.dtype, shape))
    return emit.broadcast(scalar, shape)


def _range(emit: FoldingEmitter, node: Node) -> Result:
    start, limit, step = (emit.static(node.tensor(i), n) for i, n in enumerate(("start", "limit", "delta")))
    count = max(0, int(np.ceil((limit.astype(np.float64) - start) / step).reshape(()))) if step.any() else -1
    if count < 0:
        raise InputError("expected a delta other than zero")
    dtype = node.tensor(0).tensor.dtype
    _checked(TensorType(dtype, (count,)))
    wide = np.dtype(np.float64 if dtype in FLOATS else np.int64)
    first, delta = (v.astype(wide).reshape(1) for v in (start, step))
    return emit.constant((first + np.arange(count).astype(wide) * delta).astype(start.dtype))


def _eye_like(emit: FoldingEmitter, node: Node) -> Result:
    t = node.tensor(0).tensor
    dtype = node.element("dtype", t.dtype)
    if t.rank != 2:
        raise InputError(f"expected a matrix, got {t}")
    kind = _checked(TensorType(dtype, t.shape))
    rows, columns = kind.shape
    return emit.constant(np.eye(rows, columns, node.integer("k", 0)).astype(storage_dtype(dtype)))


def _trilu(emit: FoldingEmitter, node: Node) -> Result:
    """The upper or lower triangle; everything else is zero."""
    x, upper = node.tensor(0), node.flag("upper", True)
    k = emit.integers(node.tensor(1), "k")[0] if node.has(1) else 0
    if x.tensor.rank < 2:
        raise InputError(f"expected matrices, got {x.type}")
    return emit.value("trilu", x, k=k, upper=upper)


def _center_crop_pad(emit: FoldingEmitter, node: Node) -> Result:
    """Along each axis the middle of x, or x with zeros on both sides."""
    x, sizes = node.tensor(0), emit.integers(node.tensor(1), "the shape")
    axes = node.integers("axes", tuple(range(x.tensor.rank)))
    if len(axes) != len(sizes):
        raise InputError(f"expected one extent per axis of {axes}, got {sizes}")
    widths = [(0, 0)] * x.tensor.rank
    for axis, size in zip(axes, sizes, strict=True):
        at = wrapped(axis, x.tensor.rank)
        extra = size - x.tensor.shape[at]
        before = extra // 2 if extra >= 0 else -(-extra // 2)
        widths[at] = (before, extra - before)
    return padded(emit, x, widths)


_BLOCKS: Mapping[str, Reader] = {"block_size": integer(name="blocksize"), "mode": text("DCR")}
RULES: Rules = {
    "CenterCropPad": _center_crop_pad,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": direct("depth_to_space", layout="NCHW", **_BLOCKS),
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": direct("space_to_depth", layout="NCHW", **_BLOCKS),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
