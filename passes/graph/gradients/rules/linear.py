"""Gradients of matrix products and of biases; transposes are flags, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.dense")
def dense(b: Backward) -> Sequence[Tensor | None]:
    """y = x w^T: dx = g w, dw = g^T x over all rows."""
    x, w = b.x
    g = b.g.cast(x.dtype)
    rows = prod(x.shape[:-1])
    flat_g, flat_x = g.reshape(rows, w.shape[0]), x.reshape(rows, x.shape[-1])
    return [
        flat_g.matmul(w).reshape(*x.shape) if b.needed[0] else None,
        flat_g.matmul(flat_x, transpose_a=True) if b.needed[1] else None,
    ]


@gradient("graph.matmul", "graph.batch_matmul")
def matmul(b: Backward) -> Sequence[Tensor | None]:
    """y = a b: da = g b^T and db = a^T g, each in the order in which its operand is stored."""
    x, y = b.x
    g = b.g.cast(x.dtype)
    swapped = bool(b.op["transpose_a"]), bool(b.op["transpose_b"])
    left = x, ("km" if swapped[0] else "mk")
    right = y, ("nk" if swapped[1] else "kn")
    return [
        _product_to(x, left[1], (g, "mn"), right) if b.needed[0] else None,
        _product_to(y, right[1], left, (g, "mn")) if b.needed[1] else None,
    ]


#: a tensor of matrices and the letters of their two dimensions
_Matrices = tuple[Tensor, str]


def _product_to(target: Tensor, letters: str, p: _Matrices, q: _Matrices) -> Tensor:
    """The product of two tensors of matrices with the `letters` and the shape of `target`.

    Where `target` was broadcast over batches, their sum is part of the product, which so needs no memory for
    the summands.
    """
    rows, columns = letters[0], letters[1]
    if rows in q[1]:
        p, q = q, p
    rank = max(p[0].rank, q[0].rank) - 2
    shapes = [(1,) * (rank + 2 - t.rank) + t.shape[:-2] for t in (p[0], q[0])]
    batch = tuple(max(n) if 0 not in n else 0 for n in zip(*shapes, strict=True))
    own = (1,) * (rank + 2 - target.rank) + target.shape[:-2]
    if own == batch:
        product = p[0].matmul(q[0], transpose_a=p[1][0] != rows, transpose_b=q[1][1] != columns)
        return product.reshape(*target.shape)
    names = [c for c in ascii_letters if c not in "kmn"][:rank]
    terms = ("".join(names[rank + 2 - t.rank :]) + order for t, order in (p, q))
    kept = "".join(c for c, n, whole in zip(names, own, batch, strict=True) if n == whole)
    equation = f"{','.join(terms)}->{kept}{letters}"
    return target.writer.op("einsum", p[0], q[0], equation=equation).reshape(*target.shape)


@gradient("graph.bias_add")
def bias_add(b: Backward) -> Sequence[Tensor | None]:
    """dx = g, and the bias gathers the sums of g over every other dimension."""
    axis = b.op.integer("axis") % b.x[0].rank
    others = tuple(d for d in range(b.x[0].rank) if d != axis)
    return [b.g, b.g.sum(others) if b.needed[1] else None]
