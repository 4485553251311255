"""Winograd convolution F(m x m, 3 x 3): 16 (m = 2) or 36 (m = 4) products where direct sums need 36 or 144.

Transforms are sums over the nonzero entries of the matrices of Lavin and Gray, Fast Algorithms for
Convolutional Neural Networks, 2016 (points 0, 1, -1, and 2, -2 for m = 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import minimum
from tilewright.ir.graph_ops.convolution import ConvolutionGeometry, convolution_of
from tilewright.passes.lower.convolution_algorithms import algorithm
from tilewright.passes.lower.lowering import accumulated, mapped, multiply_add, reduced, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars
from tilewright.passes.lower.tables import number_table

#: elements of an image or a result from which two maps of 8 (10) reads per element take less than one of 24
#: (35), by the model of an H100: below it the second launch costs more
TWO_STEPS_FROM = 1 << 19

#: (row of a transform matrix) -> the columns it may have nonzero entries in, as many in every row
Columns = Callable[[Expr], Sequence[Expr]]


@dataclass(frozen=True)
class Transform:
    """A matrix by its entries in `columns(row)`; all others are zero."""

    columns: Columns
    entries: np.ndarray

    @property
    def width(self) -> int:
        """Entries per row."""
        return int(self.entries.shape[1])


@dataclass(frozen=True)
class Winograd:
    """F(m, 3): transforms of the input tile (t = m + 2), the kernel (3) and the products (t)."""

    m: int
    data: Transform
    kernel: Transform
    result: Transform

    @property
    def t(self) -> int:
        """Extent of an input tile."""
        return self.m + 2

    def two_steps(self, x: TensorType) -> bool:
        """True when the transform of an image or to a result of this type goes one dimension at a time."""
        return self.m == 4 and x.size >= TWO_STEPS_FROM


def _from(first: int, count: int) -> Columns:
    return lambda row: tuple(range(first, first + count))


F2 = Winograd(
    2,
    # rows x0 - x2, x1 + x2, x2 - x1, x1 - x3
    Transform(
        lambda p: (
            minimum(p, 4 - p),
            2 - p // 2 + p // 3 * 2,
        ),
        np.array([[1, -1], [1, 1], [1, -1], [1, -1]]),
    ),
    Transform(_from(0, 3), np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])),
    # rows m0 + m1 + m2, m1 - m2 - m3
    Transform(lambda u: (u, u + 1, u + 2), np.array([[1, 1, 1], [1, -1, -1]])),
)
F4 = Winograd(
    4,
    Transform(
        lambda p: (
            minimum(p, 1),
            2 + p // 5,
            4 - minimum(p, 1) + p // 5 * 2,
            4,
        ),
        np.array(
            [[4, -5, 1, 0], [-4, -4, 1, 1], [4, -4, -1, 1], [-2, -1, 2, 1], [2, -1, -2, 1], [4, -5, 1, 0]]
        ),
    ),
    Transform(
        _from(0, 3),
        np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24,
    ),
    # the first entry is m0 in row 0 and m5 in row 3
    Transform(
        lambda u: (u // 3 * 5, 1, 2, 3, 4),
        np.array([[1, 1, 1, 1, 1], [0, 1, -1, 2, -2], [0, 1, 1, 4, 4], [1, 1, -1, 8, -8]]),
    ),
)


def _obstacle(g: ConvolutionGeometry) -> str:
    taps = tuple(w.kernel for w in g.windows)
    if taps != (3, 3):
        return f"expected a 3x3 kernel, got {taps[0]}x{taps[1]}"
    return "" if g.groups == 1 else f"expected one group, got {g.groups}"


def _lower(scheme: Winograd, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Input map, kernel map, one batched matrix product over the tile's positions, output map.

    On large images F(4, 3) takes two maps on either side, one per dimension.

    Tiles overlap by two rows and columns; what they read outside the image is zero, what they compute beyond
    the result is dropped. Sums and transformed tensors of 16-bit floats are float32.
    """
    data, weight = x
    attrs = op.attributes
    g = convolution_of(data.tensor, weight.tensor, attrs, 2)
    acc = accumulated(result_type(op)).dtype
    t, m = scheme.t, scheme.m
    sizes = {"p": t, "q": t, "N": g.batch, "C": g.channels, "K": g.filters}
    sizes |= {d: -(-w.count // m) for d, w in zip("HW", g.windows, strict=True)}
    order = "pq" + ("CNHW" if attrs["data_layout"] == "NCHW" else "NHWC")
    par = {d: sizes[d] for d in order}
    before = (g.windows[0].before, g.windows[1].before)
    tiles = _tiles(b, scheme, data, attrs["data_layout"], before, par, acc)
    kernel_layout = attrs["kernel_layout"]
    taps = {d: sizes[d] for d in "pqCK"}
    kernel = _both_ways(
        b, weight, scheme.kernel, taps, acc, ("p", "q"),
        lambda i, j: tuple({"O": Sym("K"), "I": Sym("C"), "H": i, "W": j}[d] for d in kernel_layout),
    )  # fmt: skip
    products = {("K" if d == "C" else d): sizes["K" if d == "C" else d] for d in order}
    reads = [tuple(map(Sym, par)), tuple(map(Sym, taps))]
    shape = TensorType(acc, tuple(products.values()))
    sums = reduced(
        b, "tensor.contract", [tiles, kernel], shape, products, {"C": g.channels}, reads, multiply_add
    )
    return [_result(b, scheme, sums, order, result_type(op), attrs["data_layout"])]


def _tiles(
    b: Builder, scheme: Winograd, data: Value, layout: str, before: tuple[int, int], par: Mapping[str, int],
    acc: str,
) -> Value:  # fmt: skip
    """The transformed tiles over `par`: (p, q) and the data's dimensions, H and W counting tiles."""

    def pixel(d: str, n: int, i: Expr) -> dict[str, Expr]:
        return {d: Sym(d) * scheme.m - n + i}

    def both(i: Expr, j: Expr) -> tuple[Expr, ...]:
        return _at(layout, pixel("H", before[0], i) | pixel("W", before[1], j))

    if not scheme.two_steps(data.tensor):
        return _both_ways(b, data, scheme.data, par, acc, ("p", "q"), both, fill=0.0)
    extents = dict(zip(layout, data.tensor.shape, strict=True))
    half = {"p": scheme.t, **extents, "H": par["H"]}
    lines = _one_way(
        b, data, scheme.data, half, acc, Sym("p"), lambda i: _at(layout, pixel("H", before[0], i)), fill=0.0
    )
    return _one_way(
        b, lines, scheme.data, par, acc, Sym("q"), lambda j: _at(half, pixel("W", before[1], j)), fill=0.0
    )


def _result(b: Builder, scheme: Winograd, sums: Value, order: str, result: TensorType, layout: str) -> Value:
    """The pixels of every tile from its products."""
    par = dict(zip(layout, result.shape, strict=True))
    row, column = (Sym(d) // scheme.m for d in "HW")
    offsets = tuple(Sym(d) % scheme.m for d in "HW")

    def both(i: Expr, j: Expr) -> tuple[Expr, ...]:
        return _at(order, {"p": i, "q": j, "H": row, "W": column})

    if not scheme.two_steps(result):
        return _both_ways(b, sums, scheme.result, par, result.dtype, offsets, both)
    half = {d: n for d, n in zip(order, sums.tensor.shape, strict=True) if d != "p"} | {"H": par["H"]}
    lines = _one_way(
        b, sums, scheme.result, half, sums.tensor.dtype, offsets[0],
        lambda i: _at(order, {"p": i, "H": row}),
    )  # fmt: skip
    return _one_way(
        b, lines, scheme.result, par, result.dtype, offsets[1], lambda j: _at(half, {"q": j, "W": column})
    )


def _at(order: Iterable[str], indices: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """An index by dimensions in this order: the given expressions, and the dimensions' own names."""
    return tuple(indices.get(d, Sym(d)) for d in order)


def _both_ways(
    b: Builder,
    x: Value,
    transform: Transform,
    par: Mapping[str, int],
    dtype: str,
    rows: Sequence[Expr | str],
    place: Callable[[Expr, Expr], tuple[Expr, ...]],
    fill: float | None = None,
) -> Value:
    """The map sum_ij T[row0, i] T[row1, j] x[place(i, j)] over the domain `par`, summed in at least float32.

    rows: the two rows of the transform, as index expressions or names of dimensions.
    """
    first, second = (Sym(r) if isinstance(r, str) else r for r in rows)
    acc = accumulated(TensorType(dtype, ())).dtype
    entries = number_table(b, transform.entries, acc)
    n = transform.width
    pixels = [place(i, j) for i in transform.columns(first) for j in transform.columns(second)]
    factors: list[tuple[Expr, ...]] = [(r, i) for r in (first, second) for i in range(n)]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        down, across = p[n * n : n * n + n], p[n * n + n :]
        lines = [_dot(i, [i.cast(v, acc) for v in p[k * n : k * n + n]], across) for k in range(n)]
        return i.cast(_dot(i, lines, down), dtype)

    operands = [*[x] * len(pixels), *[entries] * len(factors)]
    fills = [*[fill] * len(pixels), *[None] * len(factors)]
    result = TensorType(dtype, tuple(par.values()))
    return mapped(b, operands, result, par, [*pixels, *factors], body, fills)


def _one_way(
    b: Builder,
    x: Value,
    transform: Transform,
    par: Mapping[str, int],
    dtype: str,
    row: Expr,
    place: Callable[[Expr], tuple[Expr, ...]],
    fill: float | None = None,
) -> Value:
    """The map sum_i T[row, i] x[place(i)] over the domain `par`, summed in at least float32."""
    acc = accumulated(TensorType(dtype, ())).dtype
    entries = number_table(b, transform.entries, acc)
    n = transform.width
    reads = [*map(place, transform.columns(row)), *((row, i) for i in range(n))]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(_dot(i, [i.cast(v, acc) for v in p[:n]], p[n:]), dtype)

    result = TensorType(dtype, tuple(par.values()))
    return mapped(b, [*[x] * n, *[entries] * n], result, par, reads, body, [*[fill] * n, *[None] * n])


def _dot(i: Scalars, values: Sequence[Scalar], factors: Sequence[Scalar]) -> Scalar:
    total = values[0] * factors[0]
    for v, f in zip(values[1:], factors[1:], strict=True):
        total = v.fma(f, total)
    return total


algorithm("winograd2", _obstacle)(partial(_lower, F2))
algorithm("winograd4", _obstacle)(partial(_lower, F4))
