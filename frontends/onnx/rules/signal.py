"""ONNX operators of signals and matrices: Fourier transforms, mel filters, determinants, einsum."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.importing.emitter import Result, bounded
from tilewright.frontends.importing.movement import padded
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules, wrapped
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.einsum import explicit_equation
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

#: Determinants are sums of products without division, whose rounding errors grow with the order.
MAX_ORDER = 12


def _einsum(emit: FoldingEmitter, node: Node) -> Result:
    operands = node.tensors()
    equation = explicit_equation(node.text("equation"), [v.tensor.rank for v in operands])
    return emit.value("einsum", *operands, equation=equation)


def _parts(emit: FoldingEmitter, x: Value) -> tuple[Value, Value | None]:
    """Real and imaginary part along the last dimension."""
    shape = x.tensor.shape
    if not shape or shape[-1] not in (1, 2):
        raise InputError(f"expected a last dimension of extent 1 or 2, got {x.type}")
    parts = [emit.reshape(emit.cut(x, len(shape) - 1, k, 1), shape[:-1]) for k in range(shape[-1])]
    return parts[0], parts[1] if len(parts) == 2 else None


def _fitted(emit: FoldingEmitter, x: Value, length: int) -> Value:
    """The last dimension cut off or filled up with zeros."""
    last = x.tensor.rank - 1
    extent = x.tensor.shape[last]
    if extent >= length:
        return emit.cut(x, last, 0, length)
    return padded(emit, x, [*[(0, 0)] * last, (0, length - extent)])


def _product(emit: FoldingEmitter, x: Value, matrix: np.ndarray) -> Value:
    """x times a constant matrix along its last dimension."""
    shape = x.tensor.shape
    rows = emit.reshape(x, (int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]))
    out = emit.value("matmul", rows, emit.constant(matrix.astype(storage_dtype(x.tensor.dtype))))
    return emit.reshape(out, (*shape[:-1], matrix.shape[1]))


def _difference(emit: FoldingEmitter, a: Value, b: Value | None, sign: int) -> Value:
    return a if b is None else emit.value("add" if sign > 0 else "subtract", a, b)


def transformed(
    emit: FoldingEmitter, real: Value, imaginary: Value | None, length: int, count: int, inverse: bool
) -> Value:
    """The first `count` frequencies of the last dimension, real and imaginary part last."""
    bounded(length, count)
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(count)) % length) / length
    cos, sin = (f(angle) / (length if inverse else 1) for f in (np.cos, np.sin))
    sin = sin if inverse else -sin
    across, along = (None, None) if imaginary is None else (_product(emit, imaginary, m) for m in (sin, cos))
    parts = (
        _difference(emit, _product(emit, real, cos), across, -1),
        _difference(emit, _product(emit, real, sin), along, 1),
    )
    return emit.value("stack", *parts, axis=real.tensor.rank)


def _real_signal(emit: FoldingEmitter, real: Value, imaginary: Value | None, length: int) -> Value:
    """The real signal whose lower half of frequencies is given: the upper half mirrors it."""
    count = length // 2 + 1
    bounded(length, count)
    real = _fitted(emit, real, count)
    angle = 2 * np.pi * (np.outer(np.arange(count), np.arange(length)) % length) / length
    twice = np.full((count, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    out = _product(emit, real, twice * np.cos(angle) / length)
    if imaginary is not None:
        fitted = _fitted(emit, imaginary, count)
        out = emit.value("subtract", out, _product(emit, fitted, twice * np.sin(angle) / length))
    return emit.value("expand_dims", out, axis=out.tensor.rank)


def _dft(emit: FoldingEmitter, node: Node) -> Result:
    """The axis is an attribute before version 20 and an operand since."""
    x = node.tensor(0)
    rank = x.tensor.rank
    inverse, onesided = node.flag("inverse", False), node.flag("onesided", False)
    if node.opset < 20:
        axis = node.integer("axis", 1)
    else:
        axis = emit.integers(node.tensor(2), "the axis")[0] if node.has(2) else -2
    axis = wrapped(axis, rank)
    if axis == rank - 1:
        raise InputError("expected an axis before the last, which holds real and imaginary parts")
    order = [d for d in range(rank - 1) if d != axis] + [axis]
    real, imaginary = _parts(emit, x)
    real = emit.transpose(real, order)
    imaginary = None if imaginary is None else emit.transpose(imaginary, order)
    mirrored = inverse and onesided
    extent = x.tensor.shape[axis]
    length = 2 * (extent - 1) if mirrored else extent
    if node.has(1):
        length = emit.integers(node.tensor(1), "dft_length")[0]
    if length < 1:
        raise InputError(f"expected a transform of at least one element, got {length}")
    if mirrored:
        out = _real_signal(emit, real, imaginary, length)
    else:
        real = _fitted(emit, real, length)
        imaginary = None if imaginary is None else _fitted(emit, imaginary, length)
        out = transformed(emit, real, imaginary, length, length // 2 + 1 if onesided else length, inverse)
    back = [order.index(d) for d in range(rank - 1)]
    return emit.transpose(out, (*back, rank - 1))


def _stft(emit: FoldingEmitter, node: Node) -> Result:
    """Transforms of overlapping frames: [batch, frames, frequencies, 2]."""
    x, window = node.tensor(0), node.optional(2)
    (step,) = emit.integers(node.tensor(1), "frame_step")
    onesided = node.flag("onesided", True)
    real, imaginary = _parts(emit, x) if x.tensor.rank == 3 else (x, None)
    if node.has(3):
        (length,) = emit.integers(node.tensor(3), "frame_length")
    elif window is not None:
        length = window.tensor.size
    else:
        length = real.tensor.shape[1]
    frames = (real.tensor.shape[1] - length) // step + 1
    if frames < 1 or step < 1:
        raise InputError(f"expected frames of {length} elements in {x.type}, {step} apart")
    bounded(frames, length)
    places = emit.constant(step * np.arange(frames)[:, None] + np.arange(length))

    def framed(part: Value) -> Value:
        cut = emit.value("take", part, places, axis=1, mode="fast")
        return cut if window is None else emit.value("multiply", cut, window)

    count = length // 2 + 1 if onesided else length
    return transformed(
        emit, framed(real), None if imaginary is None else framed(imaginary), length, count, False
    )


def _mel_weights(emit: FoldingEmitter, node: Node) -> Result:
    """Triangular filters whose corners are evenly spaced on the mel scale 2595 log10(1 + f / 700)."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (
        emit.static(node.tensor(i), name).reshape(()).item() for i, name in enumerate(names)
    )
    dtype = node.element("output_datatype", "f32")
    bounded(int(bins), int(length))
    first, last = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mel = first + np.arange(bins + 2) * (last - first) / (bins + 2)
    corners = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate).astype(np.int64)
    out = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, middle, right = corners[i : i + 3]
        if middle == left:
            out[middle, i] = 1
        else:
            out[left : middle + 1, i] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            out[middle:right, i] = (right - np.arange(middle, right)) / (right - middle)
    return emit.constant(out.astype(storage_dtype(dtype)))


def _determinant(emit: FoldingEmitter, node: Node) -> Result:
    """Without division (Bird, "A simple division-free algorithm for computing determinants", 2011)."""
    x = node.tensor(0)
    shape, dtype = x.tensor.shape, x.tensor.dtype
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise InputError(f"expected square matrices, got {x.type}")
    n = shape[-1]
    if not 1 <= n <= MAX_ORDER:
        raise UnsupportedError(f"expected matrices of order 1 to {MAX_ORDER}, got {x.type}")
    last = len(shape) - 1
    above, diagonal = emit.constant(np.triu(np.ones((n, n), bool), 1)), emit.constant(np.eye(n, dtype=bool))
    below = emit.constant(np.tril(np.ones((n, n)), -1).astype(storage_dtype(dtype)))
    zero, out = emit.full(0, dtype), x
    for _ in range(n - 1):
        own = emit.value("sum", emit.value("where", diagonal, out, zero), axis=(last,), keepdims=False)
        # entry i: minus the sum of the diagonal behind i
        rest = emit.value("negative", emit.value("matmul", emit.reshape(own, (*shape[:-2], 1, n)), below))
        spread = emit.value("where", diagonal, rest, zero)
        upper = emit.value("where", above, out, zero)
        out = emit.value("matmul", emit.value("add", upper, spread), x)
    corner = emit.reshape(emit.cut(emit.cut(out, last, 0, 1), last - 1, 0, 1), shape[:-2])
    return corner if n % 2 else emit.value("negative", corner)


RULES: Rules = {
    "DFT": _dft,
    "Det": _determinant,
    "Einsum": _einsum,
    "MelWeightMatrix": _mel_weights,
    "STFT": _stft,
}
