"""Products of matrices and normalisations over rows, as importers of every format build them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewright.frontends.importing.emitter import Emitter
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def matrix_product(emit: Emitter, a: Value, b: Value, out_dtype: str | None = None) -> Value:
    """NumPy's matmul: a vector counts as a row on the left and as a column on the right."""
    if 0 in (a.tensor.rank, b.tensor.rank):
        raise InputError(f"expected operands of rank 1 or more, got {a.type} and {b.type}")
    row, column = a.tensor.rank == 1, b.tensor.rank == 1
    left = emit.reshape(a, (1, *a.tensor.shape)) if row else a
    right = emit.reshape(b, (*b.tensor.shape, 1)) if column else b
    out = emit.value("matmul", left, right, out_dtype=out_dtype)
    shape = list(out.tensor.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return emit.reshape(out, shape)


def over_rows(emit: Emitter, x: Value, axes: Sequence[int], norm: Callable[[Value], Value]) -> Value:
    """`norm`, which works along the last dimension, over several axes: they are moved to the end as one."""
    shape = x.tensor.shape
    order = (*(d for d in range(len(shape)) if d not in axes), *axes)
    moved = emit.transpose(x, order)
    rows = (*moved.tensor.shape[: len(shape) - len(axes)], prod(shape[d] for d in axes))
    out = emit.reshape(norm(emit.reshape(moved, rows)), moved.tensor.shape)
    return emit.transpose(out, [order.index(d) for d in range(len(shape))])
