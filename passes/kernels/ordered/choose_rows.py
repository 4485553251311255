"""What updates of rows take: links between updates of one row, and kernels that move the rows they name."""

from __future__ import annotations

from math import prod

from tilewright.costmodel import choose_map
from tilewright.costmodel.hardware.description import CpuHardware, Hardware
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
_COMPARED = 6


def choose_row_updates(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one update of rows, or of totals of chains, with its parameters; None for other kernels.

    The bound of an update counts what every launch moves: updates, links and, as all may name one, a single
    row. The estimate counts a row for each update.
    """
    op = only_op(kernel, "tensor.update_rows", "tensor.join_updates")
    if op is None:
        return None
    threads = _CPU_THREADS if isinstance(hardware, CpuHardware) else _GPU_THREADS
    updates = next(iter(dims(op, "par").values()))
    problem, least = (
        (_joined_problem(op),) * 2
        if op.name == "tensor.join_updates"
        else (row_problem(op, rows=updates), row_problem(op, rows=1))
    )
    choice = ParameterChoice(
        RowUpdateParameters(threads),
        global_bound(least, hardware),
        choose_map(problem, hardware).estimate_s,
        1,
    )
    return decided(kernel, op.name.removeprefix("tensor."), choice)


def _joined_problem(op: Op) -> StreamProblem:
    """Totals of chains as a map over the elements of all updates."""
    points = max(1, sum(r.tensor.size for r in op.results))
    read, written = (sum(v.tensor.nbytes for v in values) for values in (op.operands, op.results))
    return StreamProblem(read, written, points, 2 * points, 3)


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

    tables: arrays of `rows` x `width` that the map reads and writes. Updates are expected to choose rows
    evenly.
    """
    if not updates:
        return False
    size, moved = rows * width * element_bytes, _row_bytes(width, element_bytes)
    points = updates * width
    given = updates * (width * element_bytes + _LINK_BYTES)
    touched = StreamProblem(
        updates * moved * tables + given, updates * moved * tables, points, 8 * points, tables + 4, tables
    )
    change_s = choose_map(touched, hardware).estimate_s + links_s(1, updates, hardware)
    change_s += chain_s(updates, rows, hardware)
    dense = StreamProblem((tables + 1) * size, tables * size, rows * width, 8 * rows * width, tables + 1)
    stored_s = sums_s(updates, rows, width, element_bytes, hardware)
    return change_s < stored_s + choose_map(dense, hardware).estimate_s


def links_s(groups: int, updates: int, hardware: Hardware) -> float:
    """Seconds of the kernel that compares the rows of all pairs of updates of each group."""
    pairs = float(groups) * updates * updates
    if isinstance(hardware, CpuHardware):
        clk = hardware.stream.step_clk * pairs / hardware.cores
        return hardware.estimate_launch_s + clk / hardware.estimate_clock_hz
    rate = hardware.sm_count * hardware.schedulers_per_sm * WARP * hardware.clock_hz
    busy_s = pairs * _COMPARED / (rate * hardware.estimate_issue_efficiency)
    start_s = hardware.launch_floor_s + hardware.estimate_fetch_clk / hardware.clock_hz
    return start_s + busy_s


def looking_up_pays(
    groups: int, updates: int, rows: int, width: int, element_bytes: int, tables: int, hardware: Hardware
) -> bool:
    """True where maps over all of state look up the sums of the rows that updates name, instead of arrays of
    sums that are stored before and read by them.

    groups: maps that do so, with updates of their own; each reads and writes `tables` arrays of `rows` x
    `width`. Updates are expected to choose rows evenly.
    """
    size, points = rows * width * element_bytes, rows * width
    joined, given = updates * width * element_bytes, updates * width
    join = StreamProblem(groups * joined, groups * joined, groups * given, 2 * groups * given, 3)
    marks = LineProblem(groups, updates, rows, 4 * groups * updates, 4 * groups * rows, groups * updates)
    looking = StreamProblem(
        tables * size + 4 * rows + joined, tables * size, points, 8 * points, tables + 2, 1
    )
    reading = StreamProblem((tables + 1) * size, tables * size, points, 8 * points, tables + 1)
    looked_up_s = (
        links_s(groups, updates, hardware)
        + chain_s(updates, rows, hardware)
        + choose_map(join, hardware).estimate_s
        + choose_lines(marks, hardware).estimate_s
        + groups * choose_map(looking, hardware).estimate_s
    )
    stored_s = sums_s(updates, rows, width, element_bytes, hardware)
    return looked_up_s < groups * (stored_s + choose_map(reading, hardware).estimate_s)


def chain_s(updates: int, rows: int, hardware: Hardware) -> float:
    """Seconds of updates behind the first of their row, one by one, where they choose rows evenly."""
    steps = updates / rows
    if isinstance(hardware, CpuHardware):
        return steps * hardware.stream.step_clk / hardware.estimate_clock_hz
    return steps * hardware.estimate_fetch_clk / hardware.clock_hz


def sums_s(updates: int, rows: int, width: int, element_bytes: int, hardware: Hardware) -> float:
    """Seconds of an array of `rows` x `width` sums of updates, walked or sorted."""
    size = rows * width * element_bytes
    walk = LineProblem(width, updates, rows, size // 2, size // 2, updates * width)
    walked_s = choose_lines(walk, hardware).estimate_s
    if isinstance(hardware, CpuHardware):
        return walked_s
    return min(walked_s, sorted_s(updates, rows, width, element_bytes, hardware, combined=True))
