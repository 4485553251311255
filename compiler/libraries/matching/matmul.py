"""Contractions that are matrix products, found by their index maps, as problems of cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from tilewright.ir import Op
from tilewright.ir.tensor.ops import dims, domain
from tilewright.libraries.matching.strides import (
    Merged,
    Strides,
    common_step,
    merged,
    steps_of_read,
    steps_of_result,
)
from tilewright.runtime.libraries.matmul import MatmulProblem, Matrix
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: element types of the IR that libraries take, as buffers name them
BUFFER_DTYPE = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class ProductMatch:
    """A contraction as a product whose result has consecutive elements along `rows`.

    first: which operand of the contraction is A of the problem; the other one is B.
    """

    problem: MatmulProblem
    first: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    sizes: Mapping[str, int]

    def bias(self, steps: Strides, result: str) -> MatmulProblem | None:
        """The problem with a vector added that has one element per row of D."""
        if self.problem.has_bias or steps.start or common_step(self.rows, self.sizes, steps) != 1:
            return None
        if any(steps[d] for d in (*self.columns, *self.batch)):
            return None
        return replace(self.problem, epilogue="bias", result=result)

    def residual(self, steps: Strides, result: str) -> MatmulProblem | None:
        """The problem with a whole matrix added."""
        steps_of = [common_step(group, self.sizes, steps) for group in (self.rows, self.columns, self.batch)]
        row, column, batch = steps_of
        p = self.problem
        if p.c is not None or row is None or column is None or batch is None:
            return None
        ld = column if p.n > 1 else max(p.m, column)
        if (p.m > 1 and row != 1) or ld < p.m or not _aligned(steps.start, result):
            return None
        return replace(p, c=Matrix(ld, batch, steps.start), result=result)


def products_of(op: Op) -> list[ProductMatch]:
    """A tensor.contract as matrix products, at most one per order of its operands; none where it is none.

    Every dimension must be affine in every operand, and what plays rows, columns, batch and sum must have
    one step each.
    """
    dtype = BUFFER_DTYPE.get(op.operands[0].tensor.dtype)
    if dtype is None or op.operands[0].tensor.dtype != op.operands[1].tensor.dtype or not sums_in_f32(op):
        return []
    a, b, d = steps_of_read(op, 0), steps_of_read(op, 1), steps_of_result(op)
    if a is None or b is None:
        return []
    return [p for first, x, y in ((0, a, b), (1, b, a)) for p in _oriented(op, first, x, y, d, dtype)]


def sums_in_f32(op: Op) -> bool:
    """True where products are summed in float32 from 0, of factors as they are stored."""
    assert op.body is not None
    casts = [inner for inner in op.body.ops if inner.name == "scalar.cast"]
    start = op["init"]
    plain = all(c["dtype"] == "f32" and c.operands[0] in op.body.params[:2] for c in casts)
    return op.result.tensor.dtype == "f32" and start == (0.0,) and plain


def _oriented(op: Op, first: int, a: Strides, b: Strides, d: Strides, dtype: str) -> Iterator[ProductMatch]:
    """The product with rows of D along the dimensions of operand `first`."""
    sizes, par, red = domain(op), dims(op, "par"), dims(op, "red")
    wide = [n for n in par if sizes[n] > 1]
    groups = {
        "rows": [n for n in wide if a[n] and not b[n]],
        "columns": [n for n in wide if b[n] and not a[n]],
        "batch": [n for n in wide if a[n] and b[n]],
    }
    sums = merged(red, sizes, (a, b))
    if sum(map(len, groups.values())) != len(wide) or len(sums) > 1 or any(0 in s.steps for s in sums):
        return
    rows, columns = merged(groups["rows"], sizes, (d, a)), merged(groups["columns"], sizes, (d, b))
    batch = merged(groups["batch"], sizes, (d, a, b))
    row, rest_of_rows = _split(rows, consecutive=True)
    column, rest_of_columns = _split(columns, consecutive=False)
    batch += [replace(m, steps=(*m.steps, 0)) for m in rest_of_rows]
    batch += [replace(m, steps=(m.steps[0], 0, m.steps[1])) for m in rest_of_columns]
    if len(batch) > 1 or (row.extent == 1 and column.extent == 1):
        return
    many = batch[0] if batch else Merged((), 1, (0, 0, 0))
    total = sums[0] if sums else Merged((), 1, (1, 1))
    problem = _problem(row, column, total, many, (a.start, b.start, d.start), dtype)
    if problem is not None:
        tf32 = op.get("factors") == "tf32"
        yield ProductMatch(replace(problem, tf32=tf32), first, row.dims, column.dims, many.dims, sizes)


def _split(groups: list[Merged], *, consecutive: bool) -> tuple[Merged, list[Merged]]:
    """The group that plays rows (columns) of the matrices, and the others, which count as batch."""
    if not groups:
        return Merged((), 1, (1, 1)), []
    fitting = [g for g in groups if g.steps[0] == 1] if consecutive else groups
    chosen = max(fitting or groups, key=lambda g: g.extent)
    return chosen, [g for g in groups if g is not chosen]


def _problem(
    row: Merged, column: Merged, total: Merged, many: Merged, starts: tuple[int, int, int], dtype: str
) -> MatmulProblem | None:
    m, n, k = row.extent, column.extent, total.extent
    left = _stored((m, row.steps[1]), (k, total.steps[0]))
    right = _stored((k, total.steps[1]), (n, column.steps[1]))
    whole = _stored((m, row.steps[0]), (n, column.steps[0]))
    if left is None or right is None or whole is None or whole[0]:
        return None
    d, a, b = (
        Matrix(ld, step, start)
        for (_, ld), step, start in zip(
            (whole, left, right), many.steps, (starts[2], *starts[:2]), strict=True
        )
    )
    types = (dtype, dtype, "float32")
    if not all(_aligned(x.start, t) for x, t in zip((a, b, d), types, strict=True)):
        return None
    return MatmulProblem(m, n, k, many.extent, dtype, "float32", left[0], right[0], a, b, d)


def _stored(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of a matrix, from extent and step of its rows and of its columns."""
    for transposed, (inner, step), (outer, ld) in ((False, rows, columns), (True, columns, rows)):
        if inner == 1 or step == 1:
            ld = max(ld, inner) if outer == 1 else ld
            if ld >= inner:
                return transposed, ld
    return None


def _aligned(start: int, dtype: str) -> bool:
    return start % (POINTER_BYTES // gcd(POINTER_BYTES, 4 if dtype == "float32" else 2)) == 0
