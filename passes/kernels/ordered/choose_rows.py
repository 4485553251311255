"""What updates of rows take: links between updates of one row, and kernels that move the rows they name."""

from __future__ import annotations

from math import prod

from tilewright.costmodel import choose_map
from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.problem import LineProblem, StreamProblem
from tilewright.ir import Func, Op
from tilewright.ir.hardware_facts import SECTOR_BYTES, WARP
from tilewright.ir.tensor.indexed_ops import row_groups
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import only_op
from tilewright.passes.kernels.ordered.choose_lines import choose_lines
from tilewright.passes.kernels.ordered.choose_scatter import sorted_s
from tilewright.passes.kernels.ordered.row_updates import RowUpdateParameters

_GPU_THREADS, _CPU_THREADS = 128, 16
#: bytes of an update's row, flag and next place
_LINK_BYTES = 12
#: instructions for each pair of updates whose rows are compared
_COMPARED = 6.0


def choose_row_updates(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one update of rows with its parameters; None for other kernels.

    The bound counts what every launch moves: updates, links and, as all may name one, a single row. The
    estimate counts a row for each update.
    """
    op = only_op(kernel, "tensor.update_rows")
    if op is None:
        return None
    threads = _CPU_THREADS if isinstance(hardware, CpuHardware) else _GPU_THREADS
    problem = row_problem(op, rows=dims(op, "par")[next(iter(dims(op, "par")))])
    estimate_s = choose_map(problem, hardware).estimate_s
    bound = global_bound(row_problem(op, rows=1), hardware)
    return decided(kernel, "update_rows", ParameterChoice(RowUpdateParameters(threads), bound, estimate_s, 1))


def row_problem(op: Op, rows: int) -> StreamProblem:
    """An update of so many rows of each table as a map over the elements of all updates."""
    parts = row_groups(op)
    assert parts is not None
    assert op.body is not None
    updates, *inner = dims(op, "par").values()
    width, each = prod(inner), len(parts.tables[0])
    moved = sum(_row_bytes(width, itemsize(v.tensor.dtype)) for group in parts.tables for v in group)
    given = sum(width * itemsize(v.tensor.dtype) + _LINK_BYTES for v in parts.updates)
    points = max(1, len(parts.tables) * updates * width)
    work = len(op.body.ops) * points
    return StreamProblem(rows * moved + updates * given, rows * moved, points, work, each + 4, each)


def _row_bytes(width: int, element_bytes: int) -> int:
    """Bytes that a row takes of memory, in whole sectors."""
    return -(-width * element_bytes // SECTOR_BYTES) * SECTOR_BYTES


def rows_pay(
    updates: int, rows: int, width: int, element_bytes: int, tables: int, hardware: Hardware
) -> bool:
    """True where changing the rows that updates name takes less time than an array of their sums and a map.

    tables: arrays of `rows` x `width` that the map reads and writes. Repeats are counted at their worst.
    """
    if not updates:
        return False
    size, moved = rows * width * element_bytes, _row_bytes(width, element_bytes)
    points = updates * width
    given = updates * (width * element_bytes + _LINK_BYTES)
    touched = StreamProblem(
        updates * moved * tables + given, updates * moved * tables, points, 8 * points, tables + 4, tables
    )
    change_s = choose_map(touched, hardware).estimate_s + links_s(updates, hardware)
    walk = LineProblem(width, updates, rows, size // 2, size // 2, points)
    sums_s = choose_lines(walk, hardware).estimate_s
    if isinstance(hardware, GpuHardware):
        sums_s = min(sums_s, sorted_s(updates, rows, width, element_bytes, hardware, combined=True))
    dense = StreamProblem((tables + 1) * size, tables * size, rows * width, 8 * rows * width, tables + 1)
    return change_s < sums_s + choose_map(dense, hardware).estimate_s


def links_s(updates: int, hardware: Hardware) -> float:
    """Seconds of the kernel that compares the rows of all pairs of updates, and of long chains."""
    pairs = float(updates) * updates
    if isinstance(hardware, CpuHardware):
        clk = hardware.stream.step_clk * pairs / hardware.cores
        return hardware.estimate_launch_s + clk / hardware.estimate_clock_hz
    rate = hardware.sm_count * hardware.schedulers_per_sm * WARP * hardware.clock_hz
    chain_clk = hardware.estimate_fetch_clk + updates * hardware.ordered.step_clk
    busy_s = pairs * _COMPARED / (rate * hardware.estimate_issue_efficiency)
    return hardware.launch_floor_s + busy_s + chain_clk / hardware.clock_hz
