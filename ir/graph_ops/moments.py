"""Standardisation of samples in pieces: moments of the pieces, joined, and the op on known moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Op, Value

#: what joins the vectors of all members as the rows of a matrix
Gather = Callable[[Value], Value]
#: a constant column of numbers
Column = Callable[[Sequence[int]], Value]


def joined_moments(
    b: Builder, op: Op, operands: Sequence[Value], samples: Sequence[int], gather: Gather, column: Column
) -> tuple[Value, ...]:
    """The first result of `op` in pieces, as its operands are, and the moments of all samples, whole.

    samples: of every member. The moments are the mean of means m, and the mean of v + (m - mean)^2 of
    variances v, both weighted by the samples.

    The pairwise formula of T. Chan, G. Golub, R. LeVeque, "Algorithms for computing the sample variance",
    1983, for any number of parts: nothing cancels as it does in the mean of squares.
    """
    x = operands[0]
    _, mean, variance = b.emit(op.name, operands, dict(op.attrs))
    channels = mean.tensor.shape[0]
    rows = gather(b.value("graph.concatenate", mean, variance, axis=0))
    count = len(samples)
    weights, total = column(samples), column([sum(samples)])
    total = b.value("graph.reshape", total, newshape=())

    def columns(first: int) -> Value:
        return b.value("graph.strided_slice", rows, begin=(0, first), size=(count, channels), strides=(1, 1))

    def weighted(v: Value) -> Value:
        product = b.value("graph.multiply", v, weights)
        return b.value("graph.divide", b.value("graph.sum", product, axis=(0,), keepdims=False), total)

    means, variances = columns(0), columns(channels)
    mean = weighted(means)
    apart = b.value("graph.subtract", means, mean)
    variance = weighted(b.value("graph.add", variances, b.value("graph.multiply", apart, apart)))
    dtype, wide = x.tensor.dtype, mean.tensor.dtype
    standardised = [b.value("graph.cast", v, dtype=wide) if v.tensor.dtype != wide else v for v in operands]
    (y,) = b.emit("graph.batch_norm", (*standardised, mean, variance), dict(op.attrs))
    return (y if dtype == wide else b.value("graph.cast", y, dtype=dtype)), mean, variance
