"""How the threads of a contraction block share what they read from shared memory: runs and lanes."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.costmodel.kernels.warp_reads import COLUMN_LANES, ROW_LANES, ROW_RUN, owned_together
from tilewright.ir import Op
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import reads
from tilewright.passes.kernels.kernel_problem import ContractRoles


def warp_shape(
    op: Op, roles: ContractRoles, block: Mapping[str, int], thread: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """`run` and `lanes` of a contraction staged in shared memory, as its template takes them.

    Rows that no window moves are read four at a time, so a thread owns runs of four of them. Then a warp
    that is 8 rows by 4 columns wide reads both operands without bank conflicts, each word once. Rows that a
    window moves a thread owns side by side, so that its taps share what they read; along a row of the image
    that is so for odd numbers of them, which threads side by side read without bank conflicts.
    """
    _, h, row = roles.spatial
    windowed = {d for d, _ in roles.windows}
    run = {d: thread[d] for d in (h, row) if d in windowed and owned_together(thread[d], along_row=d == row)}
    if not row or row in windowed or thread[row] % ROW_RUN or not _plain(op, row, block):
        return run, {}
    run[row] = ROW_RUN
    column = roles.columns[-1] if roles.columns else ""
    if not column:
        return run, {}
    lanes, left = {column: COLUMN_LANES}, ROW_LANES
    for d in (row, roles.spatial[0]):  # samples lie beside each other in the block's tile
        if d and d not in windowed:
            lanes[d] = gcd(block[d] // thread[d], left)
            left //= lanes[d]
    if left > 1 or block[column] // thread[column] % COLUMN_LANES:
        return run, {}
    return run, lanes


def _plain(op: Op, row: str, block: Mapping[str, int]) -> bool:
    """Whether a row is the last of the parallel indices of the first operand that vary within a block."""
    inside = [d for e in reads(op)[0] for d in symbols(e) if block.get(d, 1) > 1]
    return inside[-1:] == [row]
