"""ONNX operators of neural-network layers: convolution, products, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.importing.products import matrix_product
from tilewright.frontends.importing.rules import direct, integer, real
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.frontends.onnx.windows import DATA, KERNEL, TRANSPOSED, Geometry, geometry, spatial_rank
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.ir.nodes import Value


def check_kernel(node: Node, weight: Value) -> None:
    """Raise InputError where the node says another extent of its kernel than the kernel has."""
    size = node.integers("kernel_shape", weight.tensor.shape[2:])
    if tuple(size) != weight.tensor.shape[2:]:
        raise InputError(f"expected kernel_shape as the kernel {weight.type} has it, got {size}")


def biased(emit: FoldingEmitter, node: Node, out: Value, index: int = 2) -> Value:
    """`out` plus operand `index` along its channels, where it is given."""
    bias = node.optional(index)
    return out if bias is None else emit.value("bias_add", out, bias, axis=1)


def convolved(
    emit: FoldingEmitter, node: Node, x: Value, weight: Value, *, out_dtype: str | None = None,
    around: Value | None = None,
) -> Value:  # fmt: skip
    """The convolution that the attributes of `node` describe, without bias.

    around: what the data is padded with, zero by default.
    """
    n = spatial_rank(x.tensor.shape)
    kernel = weight.tensor.shape[2:]
    check_kernel(node, weight)
    g = geometry(node, x.tensor.shape[2:], kernel)
    padding = g.padding
    if around is not None and any(padding):
        before, after = ((0, 0, *part) for part in (padding[:n], padding[n:]))
        x = emit.value("pad", x, around, pad_before=before, pad_after=after)
        padding = (0,) * (2 * n)
    return emit.value(
        f"conv{n}d", x, weight, strides=g.strides, padding=padding, dilation=g.dilation,
        groups=node.integer("group", 1), data_layout=DATA[n], kernel_layout=KERNEL[n], out_dtype=out_dtype,
    )  # fmt: skip


def _conv(emit: FoldingEmitter, node: Node) -> Result:
    return biased(emit, node, convolved(emit, node, node.tensor(0), node.tensor(1)))


def _conv_transpose(emit: FoldingEmitter, node: Node) -> Result:
    x, weight = node.tensor(0), node.tensor(1)
    n, sizes = spatial_rank(x.tensor.shape), x.tensor.shape[2:]
    auto = node.text("auto_pad", "NOTSET")
    extra = node.integers("output_padding", (0,) * n)
    extents = node.integers("output_shape", None)
    check_kernel(node, weight)
    g = geometry(node, sizes, weight.tensor.shape[2:])
    if auto.startswith("SAME") and extents is None:
        extents = tuple(size * stride for size, stride in zip(sizes, g.strides, strict=True))
    padding = g.padding
    if extents is not None:
        padding, extra = _transposed_padding(g, sizes, extents[-n:], extra, auto)
    out = emit.value(
        f"conv{n}d_transpose", x, weight, strides=g.strides, padding=padding, dilation=g.dilation,
        groups=node.integer("group", 1), output_padding=tuple(extra), data_layout=DATA[n],
        kernel_layout=TRANSPOSED[n],
    )  # fmt: skip
    return biased(emit, node, out)


def _transposed_padding(
    g: Geometry, sizes: Sequence[int], extents: Sequence[int], extra: Sequence[int], auto: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding and output padding that give a result of extents `wanted`."""
    before, after, added = [], [], []
    for size, stride, reach, out, more in zip(sizes, g.strides, g.reach, extents, extra, strict=True):
        total = (size - 1) * stride + reach + more - out
        small, large = max(0, total) // 2, max(0, total) - max(0, total) // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
        added.append(more + max(0, -total))
    return (*before, *after), tuple(added)


def _matmul(emit: FoldingEmitter, node: Node) -> Result:
    return matrix_product(emit, node.tensor(0), node.tensor(1))


def _scaled(emit: FoldingEmitter, x: Value, factor: float) -> Value:
    return x if factor == 1 else emit.op("multiply", x, factor)


def _gemm(emit: FoldingEmitter, node: Node) -> Result:
    a, b, c = node.tensor(0), node.tensor(1), node.optional(2)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    left, right = node.flag("transA", False), node.flag("transB", False)
    if a.tensor.rank != 2 or b.tensor.rank != 2:
        raise InputError(f"expected matrices, got {a.type} and {b.type}")
    out = _scaled(emit, emit.value("matmul", a, b, transpose_a=left, transpose_b=right), alpha)
    return out if c is None or beta == 0 else emit.value("add", out, _scaled(emit, c, beta))


def _batch_norm(emit: FoldingEmitter, node: Node) -> Result:
    """Statistics of the batch where the node trains, else those given; computed in the widest dtype."""
    x, *vectors = node.tensors(5)
    epsilon, momentum = node.real("epsilon", 1e-5), node.real("momentum", 0.9)
    training = node.flag("training_mode", False)
    node.drop("spatial")
    dtype = "f64" if "f64" in (x.tensor.dtype, *(v.tensor.dtype for v in vectors)) else x.tensor.dtype
    if any(v.tensor.dtype != x.tensor.dtype for v in vectors) and dtype != "f64":
        dtype = "f32"
    wide, (gamma, beta, mean, variance) = emit.cast(x, dtype), (emit.cast(v, dtype) for v in vectors)
    after: tuple[Result, ...] = ()
    if training:
        axes = tuple(d for d in range(x.tensor.rank) if d != 1)
        running = (mean, variance)
        mean = emit.value("mean", wide, axis=axes, keepdims=False)
        spread = emit.along(mean, 1, x.tensor.rank)
        variance = emit.value("variance", wide, spread, axis=axes, keepdims=False, unbiased=False)
        after = tuple(
            emit.cast(_mixed(emit, old, new, momentum), v.tensor.dtype)
            for old, new, v in zip(running, (mean, variance), vectors[2:], strict=True)
        )
    out = emit.value("batch_norm", wide, gamma, beta, mean, variance, axis=1, epsilon=epsilon)
    return (emit.cast(out, x.tensor.dtype), *after)


def _mixed(emit: FoldingEmitter, old: Value, new: Value, momentum: float) -> Value:
    return emit.value("add", _scaled(emit, old, momentum), _scaled(emit, new, 1 - momentum))


def _group_norm(emit: FoldingEmitter, node: Node) -> Result:
    """Scale and bias come per group before version 21, per channel from it on."""
    x, scale, bias = node.tensors(3)
    groups = node.integer("num_groups")
    node.drop("stash_type")
    if node.opset < 21:
        each = x.tensor.shape[1] // max(1, groups)
        scale, bias = (emit.value("repeat", v, repeats=each, axis=0) for v in (scale, bias))
    return emit.value(
        "group_norm", x, scale, bias, num_groups=groups, axis=1, epsilon=node.real("epsilon", 1e-5)
    )


def _layer_norm(emit: FoldingEmitter, node: Node) -> Result:
    """Over all axes from `axis` on; the mean and one over the deviation are further outputs."""
    x, scale, bias = node.tensor(0), node.tensor(1), node.optional(2)
    epsilon = node.real("epsilon", 1e-5)
    node.drop("stash_type")
    shape = x.tensor.shape
    axis = node.axis(len(shape), -1)
    inner = shape[axis:]
    flat = emit.reshape(x, (*shape[:axis], prod(inner)))
    gamma, beta = (
        None if v is None else emit.reshape(emit.broadcast(v, inner), (prod(inner),)) for v in (scale, bias)
    )
    assert gamma is not None
    out = emit.value(
        "layer_norm", flat, gamma, gamma if beta is None else beta, axis=axis, epsilon=epsilon,
        center=beta is not None,
    )  # fmt: skip
    moments = _moments(emit, flat, epsilon, shape, axis) if node.wants(1) or node.wants(2) else (None, None)
    return (emit.reshape(out, shape), *moments)


def _moments(
    emit: FoldingEmitter, flat: Value, epsilon: float, shape: Sequence[int], axis: int
) -> tuple[Value, Value]:
    wide = emit.cast(flat, accumulator_dtype(flat.tensor.dtype))
    last = (wide.tensor.rank - 1,)
    mean = emit.value("mean", wide, axis=last, keepdims=True)
    variance = emit.value("variance", wide, mean, axis=last, keepdims=True, unbiased=False)
    inverse = emit.value("rsqrt", emit.value("add", variance, emit.full(epsilon, wide.tensor.dtype)))
    reduced = [n if d < axis else 1 for d, n in enumerate(shape)]
    return emit.reshape(mean, reduced), emit.reshape(inverse, reduced)


def _lp_normalization(emit: FoldingEmitter, node: Node) -> Result:
    """x over its norm along an axis; zero where the norm is."""
    x, p = node.tensor(0), node.integer("p", 2)
    axis = node.axis(x.tensor.rank, -1)
    if p not in (1, 2):
        raise InputError(f"expected a norm of order 1 or 2, got {p}")
    powers = emit.value("abs", x) if p == 1 else emit.value("multiply", x, x)
    norm = emit.value("sum", powers, axis=(axis,), keepdims=True)
    norm = norm if p == 1 else emit.value("sqrt", norm)
    zero = emit.full(0, x.tensor.dtype)
    return emit.value("where", emit.value("equal", norm, zero), zero, emit.value("divide", x, norm))


def _softmax(name: str) -> Rule:
    def rule(emit: FoldingEmitter, node: Node) -> Result:
        """Before version 13 everything from `axis` on counts as one dimension."""
        x = node.tensor(0)
        if node.opset >= 13:
            return emit.value(name, x, axis=node.axis(x.tensor.rank, -1))
        shape = x.tensor.shape
        axis = node.axis(len(shape), 1)
        flat = emit.reshape(x, (prod(shape[:axis]), prod(shape[axis:])))
        return emit.reshape(emit.value(name, flat, axis=1), shape)

    return rule


RULES: Rules = {
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": direct("instance_norm", 3, axis=1, epsilon=real(1e-5)),
    "LRN": direct("lrn", size=integer(), axis=1, alpha=real(1e-4), beta=real(0.75), bias=real(1.0)),
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax("log_softmax"),
    "LpNormalization": _lp_normalization,
    "MatMul": _matmul,
    "Softmax": _softmax("softmax"),
}
