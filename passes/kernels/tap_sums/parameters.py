"""Parameters of kernels that sum over images for every tap of a window."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import AttrRecord


@dataclass(frozen=True)
class TapSumParameters(AttrRecord):
    """Threads that share the sums of `vec` neighbouring channels, such groups per block, and neighbouring
    pixels that a thread takes at a time.
    """

    threads_per_group: int
    groups_per_block: int
    vec: int
    outputs: int
