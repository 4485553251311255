"""Work of graph-level ops as their definitions state it: FLOP, bytes and seconds of one execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir.facts import SAME_MEMORY, Elements, no_flops
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import facts_of

#: elements of the tile of a result that a multiprocessor makes at once
TILE_ELEMENTS: Final = 128.0 * 128.0


def wave_elements(multiprocessors: int) -> float:
    """Elements that a GPU with so many multiprocessors makes at once, a tile each."""
    return multiprocessors * TILE_ELEMENTS


def is_view(op: Op) -> bool:
    """True for ops that only cut out or rename what they are given."""
    elements = facts_of(op.name).elements
    return elements in SAME_MEMORY or elements is Elements.CUTS


def is_moving(op: Op) -> bool:
    """True for ops that compute nothing."""
    return facts_of(op.name).flops is no_flops


def is_contraction(op: Op) -> bool:
    """True for ops that sum products: what a layer of parameters does."""
    return facts_of(op.name).elements is Elements.CONTRACTS


def op_flops(op: Op) -> int:
    """FLOP of a graph-level op; a multiply-add counts two."""
    return facts_of(op.name).flops(op)


def op_bytes(op: Op) -> int:
    """Bytes that a graph-level op reads and writes: none for views; of a table, only what is looked up."""
    if is_view(op):
        return 0
    looks_up = facts_of(op.name).elements is Elements.LOOKS_UP
    read = (*op.results, *op.operands[1:]) if looks_up else op.operands
    return sum(v.tensor.nbytes for v in (*read, *op.results))


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a device of speed 1 and of one link.

    The defaults are round figures of a data-centre GPU that reaches a part of its peak, and of a fast link;
    only their ratios matter. kernel_s: between two kernels. wave: elements that a device makes at once; no
    kernel is done sooner than one that makes as many.
    """

    flops_per_s: float = 2e13
    bytes_per_s: float = 2e12
    link_bytes_per_s: float = 1e11
    link_latency_s: float = 2e-6
    kernel_s: float = 2e-6
    wave: float = wave_elements(132)

    def compute_s(self, op: Op) -> float:
        """Seconds of a whole op: the larger of its operations and its memory traffic."""
        return max(op_flops(op) / self.flops_per_s, op_bytes(op) / self.bytes_per_s)

    def rows_s(self, op: Op, axis: int, rows: int) -> float:
        """Seconds of some rows of the result of an op, along an axis, as a kernel of its own."""
        t = op.results[0].tensor
        if not t.size:
            return 0.0
        return self.compute_s(op) * max(rows / t.shape[axis], min(1.0, self.wave / t.size))

    def move_s(self, nbytes: float) -> float:
        """Seconds until the rank that receives most has its bytes; nothing for nothing."""
        return self.link_latency_s + nbytes / self.link_bytes_per_s if nbytes else 0.0
