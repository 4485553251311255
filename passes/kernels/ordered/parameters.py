"""Parameters of kernels whose threads walk along lines: scans and ordered updates."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord


@dataclass(frozen=True)
class ScanParameters(AttrRecord):
    """Threads per block, each of which walks along lines of its own."""

    threads: int


@dataclass(frozen=True)
class ScatterParameters(AttrRecord):
    """Threads per block, and owners: threads that share the elements of one line."""

    threads: int
    owners: int
