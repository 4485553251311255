"""Pass integer-products: products of numbers that were quantised multiply the integers they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import BYTES, TensorType, itemsize, storage_dtype
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: the range of signed bytes, of which tensor cores sum products exactly
_LEAST, _MOST = -128, 127
#: the largest difference of a byte and a zero point of its type
_WIDEST = 255
_SUMS = 1 << 31
#: elements of scales and zero points that are computed at compile time, at most
_SMALL = 1 << 16
#: ops that move elements: integers are moved as the numbers that they stand for
_MOVES = ("graph.reshape", "graph.transpose")


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def integer_products(module: Module, ctx: PassContext, *, always: bool = False) -> Module:
    """Multiply and add the integers of dequantised factors in 32 bits, and scale the sums.

    rewrite:  graph.dense(sx * (%x - zx), sw * (w - zw))
        -->   (sx sw) * float(graph.dense(%x, w - zw, out_dtype = "i32") - zx * rowsum(w - zw))

    Factors that are centred in 32 bits, %x - zx and w - zw themselves, are multiplied so too.

    Both are the same real number, since scale and zero point of the data are one number each, and scales of
    the constant weights differ by output channel at most. The integer sums are exact, so that three roundings
    take the place of one per product. Factors must be bytes, signed or not, and weights less their zero
    points signed ones. Padding stands for zero. Where the zero point is another number, that times the sum of
    the weights whose taps lie inside of the image leaves each result, or images are stored with it around
    them, whichever takes less time by the model. Sums that could leave 32 bits, and convolutions in groups,
    stay as they are. always: also on devices whose tensor cores multiply no bytes.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if not always and not (isinstance(hardware, GpuHardware) and hardware.tensor_fma_8bit_per_sm_per_clk):
        return module
    names = frozenset({"graph.dense", "graph.matmul", "graph.conv2d"})
    judge = hardware if isinstance(hardware, GpuHardware) else None
    pattern = Pattern("integers", names, lambda op, rewriter: _of_integers(op, rewriter, judge))
    return rewrite_module(module, [pattern], level="graph")


@dataclass(frozen=True)
class _Dequantised:
    """scale * (integers - zero), moved as `moves` say, the last one first."""

    integers: Value
    scale: np.ndarray
    zero: np.ndarray
    moves: tuple[Op, ...]


def _of_integers(op: Op, rewriter: Rewriter, hardware: GpuHardware | None) -> Sequence[Value] | None:
    kind = op.result.tensor.dtype
    if kind not in ("f32", "i32") or op.get("groups", 1) != 1:
        return None
    read = _dequantised if kind == "f32" else _centred
    data, weight = (read(v, rewriter) for v in op.operands)
    if data is None or weight is None or weight.moves or data.scale.size != 1 or data.zero.size != 1:
        return None
    array = rewriter.constant(weight.integers)
    if array is None or data.integers.tensor.dtype not in BYTES:
        return None
    outputs, summed = _axes(op)
    centred = array.astype(np.int64) - weight.zero
    scales = np.broadcast_to(weight.scale, array.shape) if _per_output(weight.scale, array, outputs) else None
    terms = int(np.prod([array.shape[d] for d in summed]))
    if scales is None or centred.min(initial=0) < _LEAST or centred.max(initial=0) > _MOST:
        return None
    if terms * _WIDEST * -_LEAST >= _SUMS:
        return None
    zero = int(data.zero.reshape(()))
    info = np.iinfo(storage_dtype(data.integers.tensor.dtype))
    if not info.min <= zero <= info.max:
        return None
    x = _moved(data, rewriter)
    w = rewriter.new_constant("graph", "centred", centred.astype(np.int8), TensorType("i8", array.shape))
    attrs = {**dict(op.attrs), "out_dtype": "i32"}
    offsets = None
    if zero and any(padding := op.integers("padding") if op.name == "graph.conv2d" else ()):
        if hardware is not None and _stored_sooner(op, x, hardware):
            x, attrs["padding"] = _padded(x, padding, str(op["data_layout"]), zero, rewriter), (0,) * 4
        else:
            offsets = _inside(op, zero * centred, rewriter)
    if zero and offsets is None:
        total = zero * centred.sum(axis=summed)
        offsets = _along(total.astype(np.int32), op, rewriter) if total.any() else None
    (sums,) = rewriter.emit(op.name, (x, w), attrs)
    if offsets is not None:
        sums = rewriter.value("graph.subtract", sums, offsets)
    if kind == "i32":
        return [sums]
    first = tuple(slice(None) if d == outputs else 0 for d in range(array.ndim))
    factor = data.scale.astype(np.float64).reshape(()) * np.atleast_1d(scales[first]).astype(np.float64)
    if (factor == factor[0]).all():
        factor = factor[:1]
    real = rewriter.value("graph.cast", sums, dtype="f32")
    return [rewriter.value("graph.multiply", real, _along(factor.astype(np.float32), op, rewriter))]


def _dequantised(value: Value, rewriter: Rewriter) -> _Dequantised | None:
    """A value as integers that were scaled; None for other values."""
    moves: list[Op] = []
    while (op := rewriter.producer(value)) is not None and op.name in _MOVES:
        moves.append(op)
        value = op.operands[0]
    if op is None or op.name != "graph.multiply" or value.tensor.dtype != "f32":
        return None
    for inner, other in (op.operands, op.operands[::-1]):
        cast = rewriter.producer(inner)
        if cast is None or cast.name != "graph.cast" or inner.tensor != value.tensor:
            continue
        found, scale = _shifted(cast.operands[0], rewriter), _known(other, rewriter, {})
        if found is not None and scale is not None:
            return _Dequantised(found[0], scale, found[1], tuple(moves))
    return None


def _centred(value: Value, rewriter: Rewriter) -> _Dequantised | None:
    """A value of 32 bits as bytes less their zero point; None for other values."""
    moves: list[Op] = []
    while (op := rewriter.producer(value)) is not None and op.name in _MOVES:
        moves.append(op)
        value = op.operands[0]
    found = _shifted(value, rewriter) if value.tensor.dtype == "i32" else None
    return None if found is None else _Dequantised(found[0], np.ones(()), found[1], tuple(moves))


def _shifted(value: Value, rewriter: Rewriter) -> tuple[Value, np.ndarray] | None:
    """The bytes and the zero point whose difference a value is; None for other values."""
    source, zero = value, np.zeros((), np.int64)
    less = rewriter.producer(value)
    if less is not None and less.name == "graph.subtract":
        known = _known(less.operands[1], rewriter, {})
        source = less.operands[0]
        if known is None or source.tensor.shape != value.tensor.shape:
            return None
        zero = known.astype(np.int64)
    wide = rewriter.producer(source)
    if wide is not None and wide.name == "graph.cast" and source.tensor.dtype == "i32":
        source = wide.operands[0]
    return (source, zero) if source.tensor.dtype in BYTES else None


def _known(value: Value, rewriter: Rewriter, seen: dict[Value, np.ndarray | None]) -> np.ndarray | None:
    """A small constant, or what ops compute from such alone; None for other values. seen: values so far."""
    if value not in seen:
        seen[value] = _computed(value, rewriter, seen)
    return seen[value]


def _computed(value: Value, rewriter: Rewriter, seen: dict[Value, np.ndarray | None]) -> np.ndarray | None:
    op = rewriter.producer(value)
    if op is None or value.tensor.size > _SMALL:
        return None
    if op.name == "graph.constant":
        return rewriter.constant(value)
    evaluate = op_def(op.name).evaluate
    if evaluate is None or len(op.results) != 1 or not op.operands:
        return None
    operands: list[np.ndarray] = []
    for v in op.operands:
        if (array := _known(v, rewriter, seen)) is None:
            return None
        operands.append(array)
    return np.asarray(evaluate(operands, dict(op.attrs))[0])


def _axes(op: Op) -> tuple[int, tuple[int, ...]]:
    """The dimension of the weights that holds output channels, and those that are summed over."""
    rank = op.operands[1].tensor.rank
    if op.name == "graph.conv2d":
        outputs = str(op["kernel_layout"]).index("O")
        return outputs, tuple(d for d in range(rank) if d != outputs)
    if op.name == "graph.dense" or op["transpose_b"]:
        return rank - 2, (rank - 1,)
    return rank - 1, (rank - 2,)


def _per_output(scale: np.ndarray, weights: np.ndarray, outputs: int) -> bool:
    """Return whether a scale that broadcasts to weights is one number, or one per output channel."""
    shape = (1,) * (weights.ndim - scale.ndim) + scale.shape
    return all(n == 1 or d == outputs for d, n in enumerate(shape))


def _moved(data: _Dequantised, rewriter: Rewriter) -> Value:
    """The data's bytes, moved as the numbers were."""
    x = data.integers
    for move in reversed(data.moves):
        (x,) = rewriter.emit(move.name, (x,), dict(move.attrs))
    return x


def _padded(x: Value, padding: Sequence[int], layout: str, zero: int, rewriter: Rewriter) -> Value:
    """Images with the zero point around them. padding: before of both dimensions, then after."""
    before, after = ([0] * x.tensor.rank for _ in range(2))
    for i, name in enumerate("HW"):
        before[layout.index(name)], after[layout.index(name)] = padding[i], padding[2 + i]
    kind = x.tensor.dtype
    outside = np.array(zero, storage_dtype(kind))
    value = rewriter.new_constant("graph", "zero_point", outside, TensorType(kind, ()))
    return rewriter.value("graph.pad", x, value, pad_before=tuple(before), pad_after=tuple(after))


def _stored_sooner(op: Op, x: Value, hardware: GpuHardware) -> bool:
    """Return whether storing padded images takes less time than reading a number per pixel and channel."""
    sums = op.result.tensor
    images = x.tensor.shape[str(op["data_layout"]).index("N")]
    moved = 2 * x.tensor.nbytes / hardware.dram_bytes_per_s + hardware.stream.boundary_s
    return moved < sums.size // images * itemsize("i32") / hardware.dram_bytes_per_s


def _inside(op: Op, weights: np.ndarray, rewriter: Rewriter) -> Value:
    """Per pixel and channel of a convolution the sum of the weights whose taps lie inside of the image."""
    layout, kernel = str(op["data_layout"]), str(op["kernel_layout"])
    channel = kernel.index("I")
    ones = np.ones(
        [1 if d in "NC" else op.operands[0].tensor.shape[i] for i, d in enumerate(layout)], np.int32
    )
    summed = weights.sum(axis=channel, keepdims=True).astype(np.int32)
    evaluate = op_def(op.name).evaluate
    assert evaluate is not None
    (sums,) = evaluate([ones, summed], {**dict(op.attrs), "out_dtype": "i32"})
    return rewriter.new_constant("graph", "inside", np.asarray(sums), TensorType("i32", sums.shape))


def _along(numbers: np.ndarray, op: Op, rewriter: Rewriter) -> Value:
    """A constant of one number per output channel, or of one for all, that broadcasts to the result.

    Sums over rows of weights with dimensions before the matrices keep these.
    """
    if numbers.ndim > 1:
        numbers = numbers[..., None, :]
    elif op.name == "graph.conv2d" and numbers.size > 1:
        behind = op.result.tensor.rank - 1 - str(op["data_layout"]).index("C")
        numbers = numbers.reshape(numbers.size, *(1,) * behind)
    elif numbers.size == 1:
        numbers = numbers.reshape(())
    kind = {"int32": "i32", "float32": "f32"}[numbers.dtype.name]
    return rewriter.new_constant("graph", "of_sums", numbers, TensorType(kind, numbers.shape))
