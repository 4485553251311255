"""The work of an operator, which is a few tensor ops: its class, operations, and words in and out.

All of it follows from the ops' facts, iteration domains and index sets. A kernel is one operator; so is, in
a program that is not fused, what one op of the network became.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.ir.expr import Expr
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.opdef import op_def, work_class_of
from tilewright.ir.simplify import Ranges, interval
from tilewright.ir.tensor.indexed_ops import rows_changed
from tilewright.ir.tensor.ops import SPLIT, TF32, domain, ranges_of
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.ir.types import FLOAT8, FLOATS, ScalarType, itemsize
from tilewright.passes.analysis.index_sets import index_step, placed_reads

#: scalar ops that are no arithmetic: they name, place, choose or convert values
FREE = frozenset({"yield", "const", "index", "broadcast", "extract", "cast", "select"})
#: first and last index, and the step between, per dimension
_Box = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class OperatorWork:
    """What an operator must do: words are elements, each counted once however often it is used."""

    work: WorkClass
    flops: int
    words_in: int
    words_out: int
    bytes_in: int
    bytes_out: int

    @property
    def compulsory_bytes(self) -> int:
        """Q: all that is read once and all results once."""
        return self.bytes_in + self.bytes_out


def kernel_work(kernel: Func) -> OperatorWork:
    """The work of a kernel at the tensor level."""
    *ops, end = kernel.body.ops
    return operator_work(ops, end.operands)


def copy_work(kernel: Func) -> OperatorWork:
    """The work of a kernel that has no form at the tensor level, as copies of state: arrays read and written.

    kernel: at the thread level; nothing is computed.
    """
    effects: dict[Value, set[str]] = {p: set() for p in kernel.params}
    for op in walk(kernel.body):
        for v in op.operands:
            if v in effects:
                effects[v] |= op_def(op.name).effects
    read, written = (
        [p.tensor for p, found in effects.items() if kind in found] for kind in ("read", "write")
    )
    return OperatorWork(
        WorkClass.ELEMENTWISE,
        0,
        sum(t.size for t in read),
        sum(t.size for t in written),
        sum(t.nbytes for t in read),
        sum(t.nbytes for t in written),
    )


def operator_work(ops: Sequence[Op], results: Collection[Value]) -> OperatorWork:
    """The work of ops that run as one: what they read of values from elsewhere, and their results."""
    own = {v for op in ops for v in op.results}
    inputs = dict.fromkeys(v for op in ops for v in op.operands if v not in own)
    words = {v: elements_read(ops, v) for v in inputs}
    written = {v: elements_written(ops, v) for v in dict.fromkeys(results) if v in own}
    return OperatorWork(
        class_of_work(ops),
        sum(map(op_flops, ops)),
        sum(words.values()),
        sum(written.values()),
        sum(n * itemsize(v.tensor.dtype) for v, n in words.items()),
        sum(n * itemsize(v.tensor.dtype) for v, n in written.items()),
    )


def class_of_work(ops: Sequence[Op]) -> WorkClass:
    """The class of ops that run as one: the first in the order of `WorkClass` that one of them states."""
    stated = set(map(work_class_of, ops))
    return next((c for c in WorkClass if c in stated), WorkClass.ELEMENTWISE)


def kernel_operations(kernel: Func) -> int:
    """Useful arithmetic: each point of each op once, a fused multiply-add counted as two operations.

    Taps on padding count, as is the custom; comparisons, selections, conversions and index arithmetic do not.
    """
    return sum(map(op_operations, kernel.body.ops))


def op_operations(op: Op) -> int:
    """Useful arithmetic of a tensor op, as `kernel_operations` counts it."""
    body = op.body.ops if op.body is not None else ()
    return prod(domain(op).values()) * sum(map(_operations, body)) if body else 0


def op_flops(op: Op) -> int:
    """Useful arithmetic of a tensor op, where integers count in sums of products alone, as of quantised
    networks: elsewhere they are addresses and random bits.
    """
    counts = any(r.tensor.dtype in FLOATS for r in op.results) or work_class_of(op) is WorkClass.CONTRACTION
    return op_operations(op) if counts else 0


def _operations(op: Op) -> int:
    name = op.name.removeprefix("scalar.")
    types = [r.type for r in op.results]
    if name in FREE or not all(isinstance(t, ScalarType) and t.dtype != "bool" for t in types):
        return 0
    return 2 if name == "fma" else 1


def elements_read(ops: Sequence[Op], value: Value) -> int:
    """Elements of a value that ops read, each once; of what data look up, as many as are looked up."""
    size = value.tensor.size
    boxes: list[_Box] = []
    looked_up = 0
    for op in ops:
        at = list(_boxes(op, value))
        boxes += at
        changed = rows_changed(op, value)
        if changed is not None:
            looked_up += changed
        elif value in op.operands and (not at or (op.operands[0] is value and op.get("at") is not None)):
            # a table that is looked up, the array that is scattered into, a piece of a join
            looked_up += min(size, op.result.tensor.size) if len(op.results) == 1 else size
    return min(size, looked_up + _union(boxes))


def elements_written(ops: Sequence[Op], value: Value) -> int:
    """Elements of a value that the op writes which makes it: all, or those of rows that updates name."""
    changed = [rows_changed(op, value) for op in ops if value in op.results]
    return next((n for n in changed if n is not None), value.tensor.size)


def _boxes(op: Op, value: Value) -> Iterator[_Box]:
    """The boxes of indices at which the op reads the value, known without data."""
    if op.get("reads") is None:
        return
    ranges = ranges_of(op)
    for v, at in placed_reads(op):
        if v is value and 0 not in domain(op).values():
            yield tuple(_span(e, n, ranges) for e, n in zip(at, v.tensor.shape, strict=True))


def _span(e: Expr, extent: int, ranges: Ranges) -> tuple[int, int, int]:
    low, high = interval(e, ranges)
    first, last = max(0, int(max(low, 0))), int(min(high, extent - 1))
    step = index_step(e, ranges)
    if step > 1 and low < 0:  # the first index that lies inside
        first = int(low) + -(-int(-low) // step) * step
    return first, last, step


def _union(boxes: Sequence[_Box]) -> int:
    """Elements in at least one of the boxes; those with different steps along a dimension as if without."""
    found = list(dict.fromkeys(b for b in boxes if all(low <= high for low, high, _ in b)))
    if len(found) < 2:
        return sum(prod(-(-(high - low + 1) // step) for low, high, step in b) for b in found)
    if any(step > 1 for b in found for _, _, step in b):
        together = sum(_union([b]) for b in found)
        dims = (tuple(zip(*d, strict=True)) for d in zip(*found, strict=True))
        hull = tuple((min(lows), max(highs), 1) for lows, highs, _ in dims)
        return min(together, _union([hull]))
    cuts = [sorted({n for b in found for n in (b[d][0], b[d][1] + 1)}) for d in range(len(found[0]))]
    total = 0
    for cell in product(*(pairwise(c) for c in cuts)):
        if any(_holds(box, cell) for box in found):
            total += prod(b - a for a, b in cell)
    return total


def _holds(box: _Box, cell: Sequence[tuple[int, int]]) -> bool:
    """Return whether a cell, given by its first indices and those behind its last, lies in a box."""
    return all(low <= a and b <= high + 1 for (a, b), (low, high, _) in zip(cell, box, strict=True))


def peak_flops_per_s(ops: Sequence[Op], hardware: Hardware) -> float:
    """The dense peak of the fastest units that take the products of these ops, else of the lanes."""
    lanes = hardware.peak_flops_per_s
    if not isinstance(hardware, GpuHardware):
        return lanes
    products = (op for op in ops if op.name == "tensor.contract")
    return max([lanes, *(_tensor_peak(op, hardware) for op in products)])


def _tensor_peak(op: Op, hardware: GpuHardware) -> float:
    """Dense peak of the tensor cores for the factors of a contraction; 0 where they take none such."""
    rates: dict[int, float] = {
        1: hardware.tensor_fma_8bit_per_sm_per_clk,
        2: hardware.tensor_fma_16bit_per_sm_per_clk,
        4: 0,
    }
    if op.get("factors") == TF32:
        rates[4] = hardware.tensor_fma_tf32_per_sm_per_clk
    elif op.get("factors") == SPLIT:
        rates[4] = hardware.tensor_fma_16bit_per_sm_per_clk / sum(map(len, PRODUCTS))
    if any(v.tensor.dtype in FLOAT8 for v in op.operands):
        rates[1] = hardware.tensor_fma_float8_per_sm_per_clk
    rate = rates.get(max(itemsize(v.tensor.dtype) for v in op.operands), 0)
    return 2.0 * rate * hardware.sm_count * hardware.clock_hz
