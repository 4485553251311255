"""Compares ways to apply ordered updates on a GPU: every owner of targets walks all updates, or updates are
sorted by target first.
"""

from __future__ import annotations

from math import ceil, log2

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.problem import LineProblem
from tilewright.ir.hardware_facts import WARP
from tilewright.passes.kernels.ordered.choose_lines import choose_lines

#: places among which a sort compares all pairs; longer sequences are merged from such chunks
_CHUNK = 2048
#: kernels beside those of sorting and combining: keys, their order, updates in order, ends of runs, results
_KERNELS = 8


def sorting_pays(
    updates: int, targets: int, payload: int, element_bytes: int, hardware: Hardware, *, combined: bool
) -> bool:
    """True where sorting `updates` by target takes less time than owners' walks over all of them.

    targets: how many places updates choose from. payload: elements of one update (and of one target).
    combined: updates of one target combine, instead of the last one staying. On a CPU the walk stays.
    """
    if isinstance(hardware, CpuHardware) or not updates:
        return False
    moved = (updates + 2 * targets) * payload * element_bytes
    walk = LineProblem(payload, updates, targets, moved // 2, moved // 2, updates * payload)
    return (
        sorted_s(updates, targets, payload, element_bytes, hardware, combined)
        < choose_lines(walk, hardware).estimate_s
    )


def sorted_s(
    updates: int, targets: int, payload: int, element_bytes: int, hardware: GpuHardware, combined: bool
) -> float:
    """Seconds: launches one after the other, comparisons and searches as instructions, elements moved."""
    bits = ceil(log2(max(2, updates)))
    merges = max(0, ceil(log2(updates / _CHUNK)))
    rounds = bits if combined else 0
    kernels = _KERNELS + 3 * merges + rounds
    probes = 2.0 * updates * sum(ceil(log2(_CHUNK)) + m for m in range(merges)) + targets * bits
    compared = 2.0 * updates * min(updates, _CHUNK) * hardware.ordered.compare_instructions
    rate = hardware.sm_count * hardware.schedulers_per_sm * WARP * hardware.clock_hz
    busy_s = (compared + probes * hardware.ordered.probe_instructions) / (
        rate * hardware.estimate_issue_efficiency
    )
    moved = ((3 * rounds + 2) * updates + 3 * targets) * payload * element_bytes
    moved_s = moved / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    start_s = hardware.launch_floor_s + 2 * hardware.estimate_fetch_clk / hardware.clock_hz
    return kernels * start_s + busy_s + moved_s
