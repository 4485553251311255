"""Chooses parameters of window kernels on GPUs whose threads compute boxes of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import WindowParameters
from tilewright.costmodel.kernels.problem import WindowProblem
from tilewright.costmodel.kernels.streams import rounds_clk
from tilewright.costmodel.kernels.windows import staged_rows
from tilewright.ir import Sizes
from tilewright.ir.hardware_facts import LINE_BYTES, VECTOR_BYTES, WARP

#: multiply-adds of one thread that stand in its code one after the other; of one with runs of outputs, which
#: has no loop over lanes
TILE_UNROLL_BUDGET = 1024
RUN_UNROLL_BUDGET = 2048
#: window points whose weights a thread keeps in registers from the start
MOST_AHEAD = 32


@dataclass(frozen=True)
class Piece:
    """One vector load: `lanes` elements from column `start` on, of which `columns` are needed."""

    start: int
    lanes: int
    columns: tuple[int, ...]


def pieces(columns: Iterable[int], aligned: int, pitch: int, widest: int) -> tuple[Piece, ...]:
    """The loads that bring `columns`, relative to a column that is a multiple of `aligned` (0: to column 0).

    Rows are `pitch` elements apart, vectors have `widest` elements at most (a power of two). Each vector lies
    at a multiple of its own length, and so does every row's end: one is all inside its row or all outside.
    Within one of the widest possible vectors the narrowest that holds all needed columns is read.
    """
    step = gcd(aligned, pitch, widest)
    groups: dict[int, list[int]] = {}
    for c in sorted(set(columns)):
        groups.setdefault(c // step, []).append(c)
    out = []
    for needed in groups.values():
        lanes = 1
        while needed[0] // lanes != needed[-1] // lanes:
            lanes *= 2
        out.append(Piece(needed[0] // lanes * lanes, lanes, tuple(needed)))
    return tuple(out)


_THREADS = (128, 256)
_ROWS = (1, 2, 4, 8)
#: rows of runs at most; those that divide the height leave no thread without work
_MOST_RUN_ROWS = 16
_COLUMNS = (1, 2, 4)
#: sums one thread keeps in registers at most; in runs whose whole window stands in the code, where the sums
#: of a row are done before those of the last ones begin
_MOST_SUMS = 32
_MOST_RUN_SUMS = 64
#: sums of a run that are too few to save on, and what more of them must gain, as a share of the estimate
_FEW_SUMS = 16
_LEAST_GAIN = 0.01
#: registers (4 bytes) that what one thread reads at once takes at most, with sums beyond the usual ones
_MOST_PATCH = 128
#: registers beside sums and patch
_OTHER_REGISTERS = 40


@lru_cache(maxsize=4096)
def choose_tiles(
    problem: WindowProblem, hardware: GpuHardware, lanes: int, *, runs: bool = False
) -> ParameterChoice[WindowParameters]:
    """Threads per block and the box of outputs of a thread.

    lanes: extent of the innermost dimension, where windows do not slide along it; `planes` counts it. Vectors
    lie along it, and divide it. 0: windows slide along the innermost dimension, and neighbouring threads take
    neighbouring outputs, with `runs` vectors of them that divide a row (`window_runs`) if elements are so
    short that a warp's access to single ones brings less than a line.
    """
    widest = VECTOR_BYTES // problem.element_bytes
    short = WARP * problem.element_bytes < LINE_BYTES
    inner = lanes or (problem.w if runs and short else 1)
    even = (r for r in range(1, _MOST_RUN_ROWS + 1) if problem.h % r == 0)
    run_rows = sorted({*_ROWS, *even})
    space = [
        Box(t, c, v, r)
        for v in (8, 4, 2, 1)
        if v == 1 or (v <= widest and inner % v == 0)
        for r in (_ROWS if lanes or v == 1 else run_rows)
        for c in (_COLUMNS if lanes else (1,))
        for t in _THREADS
        if r < 2 * problem.h and c < 2 * problem.w and (r == c == v == 1 or _fits(problem, lanes, r, c, v))
    ]
    estimates = [box_seconds(problem, hardware, lanes, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    if not lanes and space[best].vec > 1:
        limit = (1.0 + _LEAST_GAIN) * estimates[best]
        near = [i for i, e in enumerate(estimates) if e <= limit and space[i].vec > 1]
        best = min(near, key=lambda i: (max(_FEW_SUMS, _sums(space[i])), -space[i].vec, estimates[i]))
    box = space[best]
    outputs = Sizes({"rows": box.rows, "columns": box.columns, "inner": box.vec})
    parameters = WindowParameters(box.threads, outputs)
    return ParameterChoice(parameters, global_bound(problem, hardware), estimates[best], len(space))


class Box(NamedTuple):
    """Threads per block, and the outputs of a thread: rows of columns of vectors."""

    threads: int
    columns: int
    vec: int
    rows: int


def _sums(p: Box) -> int:
    """Sums of a thread."""
    return p.rows * p.columns * p.vec


@dataclass(frozen=True)
class _Patch:
    """Reads of one thread of the first operand: loads, elements that come and that it needs, registers; and
    lines of the cache that a warp looks up for all loads, and for one row of results."""

    loads: int
    elements: int
    needed: int
    words: int
    lines: float
    row_lines: float


def _patch(problem: WindowProblem, lanes: int, rows: int, columns: int, vec: int) -> _Patch:
    """The patch of a box of `rows` x `columns` vectors; of runs of `vec` outputs where `lanes` is 0."""
    height = int(staged_rows(rows, problem.axis_h))
    size = problem.element_bytes
    if lanes or vec == 1:
        loads = height * int(staged_rows(columns, problem.axis_w))
        step = vec if lanes else columns * problem.stride_w
        lines = _lines(step * size)
        return _Patch(loads, loads * vec, loads * vec, loads * vec * size // 4, loads * lines, lines)
    row = row_pieces(problem, vec)
    lines = len(row) * _lines(vec * problem.stride_w * size)
    words = sum(-(-p.lanes * size // 4) for p in row)
    elements, needed = sum(p.lanes for p in row), sum(len(p.columns) for p in row)
    return _Patch(
        height * len(row),
        height * elements,
        height * needed,
        height * words,
        height * lines,
        _lines(vec * size),
    )


def _lines(lane_bytes: int) -> float:
    """Lines that a warp's access touches whose lanes lie this far apart."""
    return max(1.0, WARP * lane_bytes / LINE_BYTES)


def row_pieces(problem: WindowProblem, vec: int) -> tuple[Piece, ...]:
    """The vectors that a thread reads of one row for `vec` outputs side by side."""
    taps = range(0, problem.f_w * problem.dilation_w, problem.dilation_w)
    columns = (o * problem.stride_w + t - problem.axis_w.pad for o in range(vec) for t in taps)
    return pieces(columns, vec * problem.stride_w, problem.w_in, VECTOR_BYTES // problem.element_bytes)


def _fits(problem: WindowProblem, lanes: int, rows: int, columns: int, vec: int) -> bool:
    sums = rows * columns * vec
    runs = not lanes and vec > 1
    if runs and sums * problem.f_w > RUN_UNROLL_BUDGET:
        return False
    whole = runs and sums * problem.taps <= RUN_UNROLL_BUDGET
    words = _patch(problem, lanes, rows, columns, vec).words
    if sums > _MOST_SUMS:
        return whole and sums <= _MOST_RUN_SUMS and sums + words <= _MOST_PATCH
    return words <= _MOST_PATCH


def box_seconds(problem: WindowProblem, hardware: GpuHardware, lanes: int, p: Box) -> float:
    """Issue slots, lines looked up, memory and L2 traffic, latency of all rounds of threads: whichever takes
    longest."""
    fit = hardware.window
    rows, columns, vec = p.rows, p.columns, p.vec
    outputs = rows * columns
    patch_rows = int(staged_rows(rows, problem.axis_h))
    patch = _patch(problem, lanes, rows, columns, vec)
    weights = problem.taps if problem.weight_bytes else 0
    weight_lanes = vec if lanes else 1
    narrow = problem.element_bytes < 4
    converted = patch.needed + weights * weight_lanes + outputs * vec if narrow else 0
    access = fit.access_instructions if lanes or vec == 1 else fit.run_access_instructions
    apart = bool(lanes and problem.weight_stride)  # each lane's weights are a load of their own
    weight_loads = weights * (weight_lanes if apart else 1)
    instructions = (
        fit.start_instructions
        + (patch.loads + weight_loads + outputs) * access
        + converted
        + outputs * problem.taps * vec * problem.tap_work * (1 if problem.weight_bytes or not narrow else 2)
        + outputs * vec * problem.tail_work
    )
    across = problem.w if lanes else problem.w // vec
    threads = problem.planes // (vec if lanes else 1) * -(-problem.h // rows) * -(-across // columns)
    warps = -(-threads // WARP)
    boxes = bool(lanes)
    efficiency = fit.box_issue_efficiency if boxes else hardware.estimate_issue_efficiency
    issue_clk = -(-warps // hardware.sm_count) * instructions / (hardware.schedulers_per_sm * efficiency)
    weight_lines = weights * (patch.row_lines if lanes else 1)
    if apart:
        weight_lines = weight_loads * min(float(WARP), _lines(vec * problem.weight_stride))
    lines = patch.lines + weight_lines + outputs * patch.row_lines
    lines_clk = -(-warps // hardware.sm_count) * lines
    registers = _OTHER_REGISTERS + outputs * vec + patch.words
    blocks = max(1, hardware.registers_per_sm // registers // p.threads)
    resident = min(hardware.max_threads_per_sm, blocks * p.threads)
    per_sm = -(-threads // hardware.sm_count)
    chain_clk = hardware.estimate_fetch_clk + instructions
    rounds = -(-per_sm // resident)
    flying = min(per_sm, resident) * (patch.elements + weights * weight_lanes) * problem.element_bytes
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    moved_s = problem.compulsory_bytes / (rate * min(1.0, flying / hardware.stream.bytes_in_flight_per_sm))
    again = patch_rows * -(-problem.h // rows) / max(1, problem.h_in)
    pixels = problem.planes * problem.h_in * problem.w_in
    through_l2 = problem.element_bytes * (max(1.0, again) * pixels + problem.outputs)
    l2_rate = hardware.estimate_l2_bytes_per_sm_per_clk * hardware.sm_count * hardware.clock_hz
    busy_clk = max(issue_clk, lines_clk, rounds_clk(rounds, chain_clk, hardware))
    if boxes:
        # Threads read their boxes and convert them before they compute, all that are resident at a time:
        # neighbours ask once more for the same lines, and little of the rest is hidden behind them.
        read_clk = fit.box_line_clk * lines + fit.box_convert_clk * converted
        beside_clk = fit.box_issue_share * issue_clk + rounds_clk(rounds, 0.0, hardware)
        busy_clk = max(busy_clk, -(-warps // hardware.sm_count) * read_clk + beside_clk)
    busy_s = busy_clk / hardware.clock_hz
    terms = sorted((busy_s, moved_s, through_l2 / l2_rate))
    return hardware.launch_floor_s + terms[-1] + hardware.estimate_exposed_share * terms[-2]
