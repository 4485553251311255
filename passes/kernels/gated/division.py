"""How rows and units of kernels of gates are divided, and what any division costs beside its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tilewright.costmodel import LineProblem
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.relays import Footprint
from tilewright.ir import Func, InputError
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, REGISTER_UNIT, WARP
from tilewright.passes.kernels.kernel_problem import instructions, traffic
from tilewright.passes.kernels.resident_tiles.view import TilesView

#: instructions of a thread per word of a part of a sum, to store it and to add it
PART_INSTRUCTIONS = 3


class Division(Protocol):
    """How rows and units are divided over blocks and threads."""

    @property
    def rows(self) -> int:
        """Rows of a block."""
        ...

    @property
    def units(self) -> int:
        """Units of a block."""
        ...

    def threads(self) -> int:
        """Threads of a block."""
        ...

    def points(self) -> int:
        """Elements of a matrix of units that a thread finishes, at most."""
        ...

    def blocks(self, view: TilesView) -> int:
        """Blocks of the grid."""
        ...

    def shared_bytes(self, view: TilesView) -> int:
        """Bytes of shared memory."""
        ...

    def check(self, view: TilesView) -> None:
        """Raise InputError where rows, units or sums cannot be divided so."""
        ...


D = TypeVar("D", bound=Division)


def fits(p: D, view: TilesView, registers: Callable[[D, TilesView], int], hardware: GpuHardware) -> bool:
    """Return whether a block's rows and units are whole ones, and fit its shared memory and registers."""
    try:
        p.check(view)
    except InputError:
        return False
    if p.threads() > hardware.max_threads_per_block:
        return False
    if p.shared_bytes(view) > hardware.smem_per_block_max_bytes:
        return False
    share = hardware.registers_per_sm // p.threads() // REGISTER_UNIT * REGISTER_UNIT
    return registers(p, view) <= min(share, hardware.max_registers_per_thread)


def problem_of_gates(kernel: Func, view: TilesView) -> LineProblem:
    """One line per unit and row: its sums and maps."""
    written = sum(v.tensor.nbytes for v in kernel.body.ops[-1].operands)
    flops = 2 * view.most_sums * view.length * view.units * view.rows
    lines = view.units * view.rows
    return LineProblem(lines, 1, 1, max(0, traffic(kernel) - written), written, flops)


def launch_of(p: D, view: TilesView, registers: Callable[[D, TilesView], int]) -> Footprint:
    """Return what a launch takes of a GPU."""
    return Footprint(p.blocks(view), p.threads(), p.shared_bytes(view), registers(p, view))


def issue_clk(launch: Footprint, hardware: GpuHardware) -> float:
    """Cycles in which each warp of a multiprocessor's blocks issues one instruction."""
    rounds = launch.blocks_per_sm(hardware) * -(-(launch.threads // WARP) // hardware.schedulers_per_sm)
    return rounds / hardware.estimate_issue_efficiency


def arrival_clk(launch: Footprint, state: int, weights: int, hardware: GpuHardware) -> float:
    """Cycles from the end of a kernel's wait until these bytes of state and of weights are in shared memory.

    Threads of each block copy both, the weights before they wait. Where launches take turns, weights come
    while the blocks of the launch before end and its results become visible.
    """
    fit, per_sm, fetched = hardware.matrix, launch.blocks_per_sm(hardware), state + weights
    copies = fetched / ASYNC_COPY_BYTES[0] / launch.threads * fit.copy_instructions
    clk = max(per_sm * fetched / fit.l2_bytes_per_sm_per_clk, copies * issue_clk(launch, hardware))
    if launch.takes_turns_after(launch, hardware):
        clk = max(clk * state / fetched, clk - hardware.relay.turn_weights_s * hardware.clock_hz)
    return fit.fetch_clk + clk


def maps_clk(view: TilesView, points: int, issue: float, hardware: GpuHardware) -> float:
    """Cycles of the maps of `points` elements of each thread, with what they read and write."""
    accesses = sum(map(len, view.of_row.read)) + len(view.of_row.ready)
    applied = hardware.matrix.tail_instructions * instructions(view.applied)
    return (applied + hardware.chain.read_instructions * accesses) * points * issue
