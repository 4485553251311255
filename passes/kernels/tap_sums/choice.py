"""The choice of sums for the taps of a window on a GPU: parameters by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2, prod

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.problem import RowReduceProblem
from tilewright.costmodel.kernels.streams import rounds_clk
from tilewright.ir import Func
from tilewright.ir.hardware_facts import SECTOR_BYTES, WARP
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.decision import chosen_for, decided
from tilewright.passes.kernels.kernel_problem import row_problem
from tilewright.passes.kernels.rows.choice import choose_rows_of
from tilewright.passes.kernels.tap_sums.parameters import TapSumParameters
from tilewright.passes.kernels.tap_sums.view import TapSums, tap_sums

_LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
_BLOCK = (128, 256)
_WIDTHS = (8, 4, 2, 1)
#: pixels of a strip at most; longer ones need too many registers
_MOST_OUTPUTS = 8
#: registers of a thread beside sums and what it reads, and those it may have
_OTHER_REGISTERS, _REGISTERS_AT_MOST = 40, 200
#: bytes of shared memory in which a block may merge its sums
_MERGED_BYTES = 48 << 10
_SUM_BYTES = 4


@dataclass(frozen=True)
class _Sizes:
    """What the cost of such a kernel depends on.

    groups: sums of all taps for a channel, times what divides them. pixels: terms of a sum; row: of those
    side by side. read, windowed: bytes of an element of the plain and the windowed operands.
    """

    channels: int
    groups: int
    pixels: int
    row: int
    taps: int
    other_taps: int
    stride: int
    dilation: int
    read: int
    windowed: int
    reads: tuple[int, int]


def choose_tap_sums(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of sums for taps with its parameters; None where kernels of rows are faster."""
    if not isinstance(hardware, GpuHardware):
        return None
    view = tap_sums(kernel)
    if view is None:
        return None
    best = _choose(row_problem(kernel), _sizes(view), hardware)
    rows = choose_rows_of(kernel, hardware)
    cost = None if rows is None else chosen_for(rows).cost
    if best is None or (cost is not None and cost.estimate_s <= best.estimate_s):
        return None
    return decided(kernel, "tap_sums", best)


def _sizes(view: TapSums) -> _Sizes:
    red = dims(view.op, "red")
    return _Sizes(
        channels=view.kept[view.inner],
        groups=prod(view.kept.values()),
        pixels=prod(red.values()),
        row=red[view.slid],
        taps=view.taps,
        other_taps=view.other_taps,
        stride=view.stride,
        dilation=view.dilation,
        read=view.bytes_of(view.plain),
        windowed=view.bytes_of(view.windowed),
        reads=(len(view.plain), len(view.windowed)),
    )


@lru_cache(maxsize=4096)
def _choose(
    problem: RowReduceProblem, sizes: _Sizes, hardware: GpuHardware
) -> ParameterChoice[TapSumParameters] | None:
    outputs = [n for n in range(1, _MOST_OUTPUTS + 1) if sizes.row % n == 0]
    space = [
        TapSumParameters(lanes, groups, vec, n)
        for lanes in _LANES
        for groups in _GROUPS
        if _BLOCK[0] <= lanes * groups <= _BLOCK[1]
        for vec in _WIDTHS
        if sizes.channels % vec == 0
        and (lanes // 2) * groups * sizes.taps * vec * _SUM_BYTES <= _MERGED_BYTES
        for n in outputs
        if _registers(sizes, vec, n) <= _REGISTERS_AT_MOST
    ]
    if not space:
        return None
    estimates = [_seconds(problem, sizes, hardware, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return ParameterChoice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def _span(sizes: _Sizes, outputs: int) -> int:
    """Elements of the windowed operand that a strip reads for one row of taps."""
    taps = sizes.taps // sizes.other_taps
    return min((outputs - 1) * sizes.stride + (taps - 1) * sizes.dilation + 1, outputs * taps)


def _registers(sizes: _Sizes, vec: int, outputs: int) -> float:
    """Registers of a thread: the sums of all taps, what a strip reads, and the strip's own sums."""
    bytes_read = vec * (outputs * sizes.read + _span(sizes, outputs) * sizes.windowed)
    return _OTHER_REGISTERS + (sizes.taps + 2) * vec + bytes_read / _SUM_BYTES


def _seconds(problem: RowReduceProblem, sizes: _Sizes, hardware: GpuHardware, p: TapSumParameters) -> float:
    """Issue slots, what crosses the L2 and what the memory moves, or the latency of all rounds of blocks."""
    fit = hardware.rows
    threads = p.threads_per_group * p.groups_per_block
    strips = sizes.pixels // p.outputs
    steps = -(-strips // p.threads_per_group)
    groups = sizes.groups // p.vec
    blocks = -(-groups // p.groups_per_block)
    span = _span(sizes, p.outputs)
    plain_reads = p.outputs * sizes.reads[0]
    window_reads = sizes.other_taps * span * sizes.reads[1]
    vectors = plain_reads + window_reads
    sums = p.outputs * sizes.taps * p.vec
    per_strip = (
        fit.step_instructions
        + vectors * (hardware.window.run_access_instructions + p.vec)
        + sums
        + sizes.taps * p.vec
    )
    merges = log2(p.threads_per_group)
    merged = min(2.0, merges) * sizes.taps * p.vec
    instructions = fit.start_instructions + steps * per_strip + merged + sizes.taps * p.vec
    resident = int(hardware.registers_per_sm // (_registers(sizes, p.vec, p.outputs) * threads))
    resident = max(1, min(resident, hardware.max_threads_per_sm // threads, hardware.max_blocks_per_sm))
    per_sm = -(-blocks // hardware.sm_count)
    issue = hardware.schedulers_per_sm * hardware.estimate_issue_efficiency
    issue_clk = per_sm * threads / WARP * instructions / issue
    # of one SM, as all that its blocks have: fewer threads leave its schedulers idle
    waits = steps * (1 + sizes.other_taps) / 2 * hardware.estimate_fetch_clk
    chain_clk = waits + instructions + merges * 2.0 * fit.barrier_clk
    strip_bytes = p.vec * (p.outputs * sizes.read + span * sizes.windowed)
    flying = min(per_sm, resident) * threads * strip_bytes * min(1.0, strips / p.threads_per_group)
    full = min(1.0, flying / hardware.stream.bytes_in_flight_per_sm)
    run = min(p.groups_per_block * p.vec, sizes.channels) * max(sizes.read, sizes.windowed)
    share = min(1.0, run / SECTOR_BYTES) * (1.0 - fit.halving_share * log2(max(1.0, fit.run_bytes / run)))
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency * share * full
    through_l2 = groups * strips * p.vec * (p.outputs * sizes.read + sizes.other_taps * span * sizes.windowed)
    l2_rate = hardware.sm_count * hardware.estimate_l2_bytes_per_sm_per_clk * hardware.clock_hz * share * full
    moved_s = max(problem.compulsory_bytes / rate, through_l2 / l2_rate)
    waiting_clk = rounds_clk(-(-per_sm // resident), chain_clk, hardware)
    busy_s = max(issue_clk, waiting_clk) / hardware.clock_hz
    return (
        hardware.launch_floor_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )
