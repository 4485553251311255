"""The cost hook of splitting in space: seconds of an op on one device, and of bytes moved between devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.costmodel.op_work import op_flops
from tilewright.ir.nodes import Op, Value
from tilewright.passes.graph.distribute.distribution import Distribution, Need, Split

#: elements that a device makes at once: a round figure like the defaults of `Rates`, the tiles of 128 x 128
#: of 132 multiprocessors. `split-space` takes another one as its option `wave`
WAVE: Final = 132 * 128.0 * 128.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What decides between splitting and gathering, of a device of speed 1 and of one link.

    The defaults are round figures of a data-centre GPU that reaches a part of its peak, and of a fast link;
    only their ratios matter. kernel_s: between two kernels. wave: elements that a device makes at once; no
    kernel is done sooner than one that makes as many.
    """

    flops_per_s: float = 2e13
    bytes_per_s: float = 2e12
    link_bytes_per_s: float = 1e11
    link_latency_s: float = 2e-6
    kernel_s: float = 2e-6
    wave: float = WAVE

    def compute_s(self, op: Op) -> float:
        """Seconds of a whole op: the larger of its operations and its memory traffic."""
        moved = sum(v.tensor.nbytes for v in (*op.operands, *op.results))
        return max(op_flops(op) / self.flops_per_s, moved / self.bytes_per_s)

    def rows_s(self, op: Op, axis: int, rows: int) -> float:
        """Seconds of some rows of the result of an op, along an axis, as a kernel of its own."""
        t = op.results[0].tensor
        if not t.size:
            return 0.0
        return self.compute_s(op) * max(rows / t.shape[axis], min(1.0, self.wave / t.size))

    def move_s(self, nbytes: float) -> float:
        """Seconds until the rank that receives most has its bytes; nothing for nothing."""
        return self.link_latency_s + nbytes / self.link_bytes_per_s if nbytes else 0.0


def row_bytes(value: Value, axis: int) -> float:
    """Bytes of one row along an axis."""
    t = value.tensor
    return t.nbytes / t.shape[axis] if t.shape[axis] else 0.0


def gather_bytes(value: Value, held: Distribution) -> float:
    """Most bytes a rank receives to have a whole value."""
    if held is None:
        return 0.0
    own = held.own()
    return row_bytes(value, held.axis) * (value.tensor.shape[held.axis] - min(own.extents))


def fetch_bytes(value: Value, held: Distribution, needs: Sequence[Need] | None) -> float:
    """Most bytes a rank receives to have the rows it needs (all rows where `needs` is None)."""
    if held is None:
        return 0.0
    if needs is None or needs[0].axis != held.axis:
        return gather_bytes(value, held)
    return row_bytes(value, held.axis) * max(map(missing_rows, needs, held.intervals))


def missing_rows(need: Need, owned: tuple[int, int]) -> int:
    """Rows that are needed and not owned."""
    common = min(need.end, owned[1]) - max(need.start, owned[0])
    return need.end - need.start - max(0, common)


def share(split: Split, extent: int, speeds: Sequence[float]) -> float:
    """The part of a whole op's time that the rank takes which is done last."""
    if not extent:
        return 1.0
    return max(rows / extent / speed for rows, speed in zip(split.extents, speeds, strict=True))
