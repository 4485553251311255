"""What warps by roles lay down of a product out of fragments, in place of sums that pass through rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.kernels.windows import IntArray
from tilewright.ir import Func, Value
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.view import MatrixView
from tilewright.passes.kernels.writing.column_sums import ColumnSums
from tilewright.passes.kernels.writing.engine_results import ROW_BYTES, SWIZZLES, Tiling, result_maps

#: bytes of results that the copy engine writes
RESULT_BYTES = 2


@dataclass(frozen=True)
class LaidResults:
    """Values that warps lay down in pieces of 16 rows, `value_bytes` each.

    values: how many of a result. written: whether the copy engine writes them, else lanes alone read them,
    which add up their columns.
    """

    values: int
    value_bytes: int
    written: bool

    def columns(self, warp_columns: IntArray) -> IntArray:
        """Columns of a piece of a warp that holds so many of the results; 0 where none has a swizzle."""
        found = np.gcd(ROW_BYTES // self.value_bytes, warp_columns)
        return np.asarray(np.where(np.isin(found * self.value_bytes, SWIZZLES), found, 0), dtype=np.int64)


def laid_results(kernel: Func, view: MatrixView, sums: ColumnSums | None) -> LaidResults | None:
    """What warps by roles can lay down; None where threads write results out of sums in rows.

    The copy engine writes results of 16 bits that lie in rows. Where nothing but sums of columns is stored,
    what is summed is laid down as these would be. sums: those of the kernel.
    """
    if view.stored or view.splits:
        return None
    if sums is not None and not sums.written:
        return _alike(sums.points, written=False)
    numbered = enumerate(kernel.body.ops[-1].operands)
    results = {i: v for i, v in numbered if sums is None or v in sums.written}
    if sums is not None and not sums.stored:
        return None
    found = _alike(list(results.values()), written=True)
    if found is None or found.value_bytes != RESULT_BYTES:
        return None
    # Whether a tensor map describes them depends on no tile: the widest pieces stand for all.
    tiling = _tiling(view, 1, ROW_BYTES // RESULT_BYTES)
    return found if result_maps({i: v.tensor for i, v in results.items()}, tiling) is not None else None


def _alike(values: Sequence[Value], *, written: bool) -> LaidResults | None:
    """Values of one size, which take the same pieces; None where sizes differ."""
    sizes = {itemsize(v.tensor.dtype) for v in values}
    return LaidResults(len(values), sizes.pop(), written) if len(sizes) == 1 else None


def tiling_of(view: MatrixView, p: MatrixParameters) -> Tiling:
    """The tile of results of a team."""
    return _tiling(view, p.team_warps, p.warp_n // view.sums_of_result)


def _tiling(view: MatrixView, warps: int, columns: int) -> Tiling:
    return Tiling(view.results, view.batch, view.rows, view.columns, warps, columns)
