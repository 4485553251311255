"""Seconds that a kernel takes to store results beside its first one."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Value

#: bytes of an array up to which caches are taken to hold it until its readers run; larger ones are worth a
#: prologue that never stores them, and cost more than their traffic as second results
CACHED_ARRAY_BYTES = 8 << 20


def second_results_s(results: Iterable[Value], hardware: Hardware) -> float:
    """Seconds of storing these results beside a first one, beyond their traffic: of large ones on a GPU."""
    if not isinstance(hardware, GpuHardware):
        return 0.0
    large = [max(0, v.tensor.nbytes - CACHED_ARRAY_BYTES) for v in results]
    return sum(large) / (hardware.fusion.second_store_share * hardware.dram_bytes_per_s)
