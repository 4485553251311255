"""Matrix products and the bias added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import Labels, broadcast_labels, per_channel
from tilewright.ir.extents import Dims, attributes_stay, broadcasts_as_before
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import (
    alike,
    axis_of,
    broadcast_shapes,
    dtype_of,
    factors,
    require,
    wide,
)
from tilewright.ir.graph_ops.unary import along
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

OUT_DTYPE = AttrDef("dtype?", None, "dtype of the result and of the sum; none: that of the operands")


def result_dtype(t: TensorType, attrs: Attrs) -> str:
    """`out_dtype` where given, else the dtype of the operand."""
    return str(attrs["out_dtype"] or t.dtype)


def product(a: np.ndarray, b: np.ndarray, attrs: Attrs) -> np.ndarray:
    """Matrix product summed in the accumulator dtype of the result."""
    dtype = str(attrs["out_dtype"] or dtype_of(a))
    return np.asarray(np.matmul(wide(a, dtype), wide(b, dtype))).astype(numpy_dtype(dtype), copy=False)


def _infer_dense(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = factors(types, attrs)
    good = x.rank >= 1 and w.rank == 2 and x.shape[-1] == w.shape[1]
    require(good, f"expected data [..., K] and weight [units, K], got {x} and {w}")
    return [TensorType(result_dtype(x, attrs), (*x.shape[:-1], w.shape[0]))]


def _dense_flops(op: Op) -> int:
    """2 x results x summed products."""
    return 2 * op.result.tensor.size * op.operands[0].tensor.shape[-1]


def _divided_dense(op: Op) -> Labels:
    lead = tuple(range(op.operands[0].tensor.rank - 1))
    return Labels(((*lead, "k"), ("n", "k")), ((*lead, "n"),), frozenset("k"))


#: facts that ops below share; each replaces those that differ
_PRODUCT = Facts(
    elements=Elements.CONTRACTS,
    flops=_dense_flops,
    precision=Precision.NARROW,
    exact=False,
    division=_divided_dense,
    extents=attributes_stay,
    report=ReportClass.MATRIX_PRODUCT,
    gradient=Gradient.RULE,
)
define(
    "graph.dense",
    ("x", "weight"),
    "x * weight^T: [..., K] and [units, K] give [..., units].",
    attrs={"out_dtype": OUT_DTYPE},
    infer=_infer_dense,
    evaluate=lambda x, a: [product(x[0], x[1].T, a)],
    facts=_PRODUCT,
)


def _infer_matmul(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    a, b = factors(types, attrs)
    require(a.rank >= 2 and b.rank >= 2, f"expected operands of rank 2 or more, got {a} and {b}")
    m, k = a.shape[-2:][::-1] if attrs["transpose_a"] else a.shape[-2:]
    depth, n = b.shape[-2:][::-1] if attrs["transpose_b"] else b.shape[-2:]
    require(k == depth, f"expected inner extents that agree, got {a} and {b} ({k} and {depth})")
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    return [TensorType(result_dtype(a, attrs), (*batch, m, n))]


def _evaluate_matmul(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    a, b = inputs
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return [product(a, b, attrs)]


def _matmul_flops(op: Op) -> int:
    """2 x results x summed products."""
    return 2 * op.result.tensor.size * op.operands[0].tensor.shape[-2 if op["transpose_a"] else -1]


def _divided_matmul(op: Op) -> Labels:
    shape = op.result.tensor.shape[:-2]
    dims = []
    for v, key, last in zip(op.operands, ("transpose_a", "transpose_b"), ("mk", "kn"), strict=True):
        batch = broadcast_labels(v.tensor.shape[:-2], shape, range(len(shape)))
        dims.append((*batch, *(last[::-1] if op[key] else last)))
    return Labels(tuple(dims), ((*range(len(shape)), "m", "n"),), frozenset("k"))


def _same_batches(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Dimensions before the matrices broadcast where they did."""
    return broadcasts_as_before([dims[:-2] for dims in operands], attrs)


_TRANSPOSES = {"transpose_a": AttrDef("bool", False), "transpose_b": AttrDef("bool", False)}
define(
    "graph.matmul",
    ("a", "b"),
    "Product of the matrices in the last two dimensions; dimensions before them broadcast.",
    attrs={**_TRANSPOSES, "out_dtype": OUT_DTYPE},
    infer=_infer_matmul,
    evaluate=_evaluate_matmul,
    facts=replace(_PRODUCT, flops=_matmul_flops, division=_divided_matmul, extents=_same_batches),
)


def _infer_batch_matmul(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    a, b = factors(types, attrs)
    require(a.rank == b.rank == 3, f"expected operands of rank 3, got {a} and {b}")
    return _infer_matmul(types, attrs)


define(
    "graph.batch_matmul",
    ("a", "b"),
    "Products of [B, M, K] and [B, K, N], either given transposed; a batch of 1 broadcasts.",
    attrs={**_TRANSPOSES, "out_dtype": OUT_DTYPE},
    infer=_infer_batch_matmul,
    evaluate=_evaluate_matmul,
    facts=replace(_PRODUCT, flops=_matmul_flops, division=_divided_matmul, extents=_same_batches),
)


def _infer_bias_add(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, bias = alike(types)
    axis = axis_of(attrs["axis"], x.rank)
    good = bias.shape == x.shape[axis : axis + 1]
    require(good, f"expected a bias along axis {axis} of {x}, got {bias}")
    return [x]


define(
    "graph.bias_add",
    ("x", "bias"),
    "x + bias, with one bias per index of `axis`.",
    attrs={"axis": AttrDef("int", 1)},
    infer=_infer_bias_add,
    evaluate=lambda x, a: [x[0] + along(x[1], a["axis"], x[0].ndim)],
    facts=Facts(
        elements=Elements.MAPS_PER_CHANNEL,
        flops=flops_per_element,
        precision=Precision.FOLLOWS,
        division=per_channel,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=False,
    ),
)
