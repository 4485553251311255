"""Launches that start while the one before them runs: whether both fit on a GPU, and what that saves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir.hardware_facts import REGISTER_UNIT, WARP

#: the first architecture with programmatic dependent launch
FIRST_ARCH = 90
#: registers are given to a warp in multiples of this many (CUDA occupancy calculator, from sm_30 on)
_REGISTERS_OF_WARP_UNIT = 256
#: blocks of a cluster from which on not every multiprocessor can have one
_WIDE_CLUSTER = 3


def starts_early(target: str) -> bool:
    """True when kernels of the target (`cuda:sm_90a`) may start before those they depend on have ended."""
    arch = re.search(r":sm_(\d+)", target)
    return arch is not None and int(arch[1]) >= FIRST_ARCH


@dataclass(frozen=True)
class Footprint:
    """A launch takes this much of a GPU while it runs.

    threads, shared_bytes: of a block, without the bytes that the device takes of each. registers: of a
    thread, 0 where its kernel is not compiled yet. cluster: blocks that run together.
    """

    blocks: int
    threads: int
    shared_bytes: int
    registers: int = 0
    cluster: int = 1

    def blocks_per_sm(self, gpu: GpuHardware) -> int:
        """Blocks on the multiprocessor that has most of them, where they are spread evenly."""
        share = gpu.relay.cluster_share if self.cluster >= _WIDE_CLUSTER else 1.0
        return -(-self.blocks // max(1, int(gpu.sm_count * share)))

    def shared_bytes_per_sm(self, gpu: GpuHardware) -> int:
        """Shared memory of these blocks."""
        return self.blocks_per_sm(gpu) * (self.shared_bytes + gpu.smem_reserved_per_block_bytes)

    def _warps_per_sm(self, gpu: GpuHardware) -> int:
        return self.blocks_per_sm(gpu) * -(-self.threads // WARP)

    def _registers_per_sm(self, gpu: GpuHardware, unknown: int) -> int:
        registers = self.registers or unknown
        of_warp = -(-registers * WARP // _REGISTERS_OF_WARP_UNIT) * _REGISTERS_OF_WARP_UNIT
        return self._warps_per_sm(gpu) * of_warp

    def fits_beside(self, other: Footprint, gpu: GpuHardware) -> bool:
        """Whether all blocks of both launches are on the GPU at the same time, each launch spread evenly.

        Then no block of the later launch waits for a place while others crowd on those that are left. Blocks
        go to multiprocessors with most room, so that where there is one for each block, none has two.
        """
        both = (self, other)
        separate = all(f.cluster == 1 for f in both) and self.blocks + other.blocks <= gpu.sm_count
        return separate or _fit(both, gpu, REGISTER_UNIT)

    def takes_turns_after(self, first: Footprint, gpu: GpuHardware) -> bool:
        """Whether each block of both launches has a multiprocessor alone, if this one starts behind `first`.

        Blocks of this launch then start where those of the first one end, and crowd nowhere, for no two of
        them fit on one multiprocessor; where registers are not known yet, if they are as many as possible.
        """
        alone = first.blocks_per_sm(gpu) == 1 and self.blocks_per_sm(gpu) == 1
        return alone and not _fit((self, self), gpu, gpu.max_registers_per_thread)


def may_relay(first: Footprint, second: Footprint, gpu: GpuHardware) -> bool:
    """Whether the second launch may start while the first one runs, without that its blocks crowd."""
    return first.fits_beside(second, gpu) or second.takes_turns_after(first, gpu)


def _fit(launches: Sequence[Footprint], gpu: GpuHardware, unknown: int) -> bool:
    """Return whether blocks of all launches fit; unknown: registers of kernels that are not compiled yet."""
    return (
        sum(f.blocks_per_sm(gpu) for f in launches) <= gpu.max_blocks_per_sm
        and sum(f._warps_per_sm(gpu) for f in launches) * WARP <= gpu.max_threads_per_sm
        and sum(f.shared_bytes_per_sm(gpu) for f in launches) <= gpu.smem_per_sm_bytes
        and sum(f._registers_per_sm(gpu, unknown) for f in launches) <= gpu.registers_per_sm
    )


def early_start_s(first: Footprint, second: Footprint, gpu: GpuHardware) -> float:
    """Seconds by which the boundary between two launches that relay is shorter."""
    return gpu.relay.boundary_s if first.fits_beside(second, gpu) else gpu.relay.turn_s


def relay_gain_s(
    first_s: float,
    second_s: float,
    first: Footprint,
    second: Footprint,
    early_bytes: int,
    gpu: GpuHardware,
    *,
    in_l2: bool,
) -> float:
    """Seconds that a replay takes less where the second launch starts while the first one runs.

    first_s, second_s: the two launches without boundaries. early_bytes: weights that the second one asks for
    before it waits; they arrive while the first one runs, from the L2 (in_l2) or the DRAM. The boundary is
    shorter as well. Of a launch with several blocks per multiprocessor a share of its time counts as lost,
    for its blocks may be spread less evenly than on an empty GPU. So does that share of a launch that takes
    turns, whose blocks stand in the order in which others ended, and no weights arrive before it.
    """
    if not first.fits_beside(second, gpu):
        return early_start_s(first, second, gpu) - gpu.relay.crowding_share * second_s
    rate = gpu.l2_bytes_per_s if in_l2 else gpu.dram_bytes_per_s * gpu.estimate_dram_efficiency
    hidden_s = min(first_s, early_bytes / rate)
    crowded_s = gpu.relay.crowding_share * second_s * (1.0 - 1.0 / second.blocks_per_sm(gpu))
    return early_start_s(first, second, gpu) + hidden_s - crowded_s
