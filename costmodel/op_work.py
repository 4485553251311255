"""Arithmetic of graph-level ops by their shapes: FLOP of one execution, a multiply-add counting two."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.graph_ops.convolution import convolution_of
from tilewright.ir.graph_ops.deformable_convolution import deformable_convolution_of
from tilewright.ir.graph_ops.einsum import extents_of
from tilewright.ir.graph_ops.transposed_convolution import transposed_convolution_of
from tilewright.ir.nodes import Op

#: ops that only move elements or name them
_MOVING = frozenset(
    f"graph.{name}"
    for name in (
        "adv_index", "arange", "batch_flatten", "broadcast_to", "cast", "concatenate", "constant", "copy",
        "depth_to_space", "dropout", "expand_dims", "gather", "gather_nd", "one_hot", "pad", "repeat",
        "reshape", "return", "reverse", "shift", "space_to_depth", "split", "squeeze", "stack",
        "strided_slice", "take", "tile", "transpose", "where",
    )
)  # fmt: skip
#: ops whose work does not follow from their results alone, and that have no count here
_UNCOUNTED = frozenset(f"graph.{name}" for name in ("correlation", "dft", "octave_conv2d", "stft"))


def is_moving(op: Op) -> bool:
    """True for ops that compute nothing."""
    return op.name in _MOVING


def is_counted(op: Op) -> bool:
    """True for ops whose FLOP are known."""
    return op.name not in _UNCOUNTED


def is_contraction(op: Op) -> bool:
    """True for ops that sum products: what a layer of parameters does."""
    return op.name in _CONTRACTIONS


def op_flops(op: Op) -> int:
    """FLOP of a graph-level op.

    Contractions: 2 x results x summed products (padding counts). Pooling: its window per result. Others: one
    per element of the larger of operands and results. Raises UnsupportedError for ops without a count.
    """
    if not is_counted(op):
        raise UnsupportedError(f"the FLOP of {op.name} are not known", where=op.loc)
    if op.name in _CONTRACTIONS:
        return 2 * _CONTRACTIONS[op.name](op)
    if is_moving(op):
        return 0
    results = sum(value.tensor.size for value in op.results)
    window = op.get("pool_size")
    if isinstance(window, tuple):
        return results * prod(n for n in window if isinstance(n, int))
    return max(results, *(value.tensor.size for value in op.operands), 0)


def _convolution(op: Op) -> int:
    x, weight = (value.tensor for value in op.operands[:2])
    found = convolution_of(x, weight, dict(op.attrs), x.rank - 2, op.name)
    return op.result.tensor.size * found.channels * prod(w.kernel for w in found.windows)


def _deformable(op: Op) -> int:
    x, offset, weight = (value.tensor for value in op.operands[:3])
    found, _ = deformable_convolution_of(x, offset, weight, dict(op.attrs))
    return op.result.tensor.size * found.channels * prod(w.kernel for w in found.windows)


def _transposed(op: Op) -> int:
    x, weight = (value.tensor for value in op.operands[:2])
    found = transposed_convolution_of(x, weight, dict(op.attrs), x.rank - 2, op.name)
    return x.size * found.filters * prod(w.kernel for w in found.windows)


def _dense(op: Op) -> int:
    return op.result.tensor.size * op.operands[0].tensor.shape[-1]


def _matmul(op: Op) -> int:
    depth = op.operands[0].tensor.shape[-2 if op["transpose_a"] else -1]
    return op.result.tensor.size * depth


def _einsum(op: Op) -> int:
    return prod(extents_of(str(op["equation"]), [v.tensor.shape for v in op.operands]).values())


_CONTRACTIONS: dict[str, Callable[[Op], int]] = {
    **{f"graph.conv{spatial}d": _convolution for spatial in (1, 2, 3)},
    **{f"graph.conv{spatial}d_transpose": _transposed for spatial in (1, 2, 3)},
    "graph.deformable_conv2d": _deformable,
    "graph.dense": _dense,
    "graph.matmul": _matmul,
    "graph.batch_matmul": _matmul,
    "graph.einsum": _einsum,
}
