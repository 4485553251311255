"""The memory that an op may take on the way to its result without raising the peak of its network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tilewright.ir import Constants, Func, Module, Op, TensorType, Value
from tilewright.ir.tensor.ops import callee_of, dims
from tilewright.passes import PassContext
from tilewright.passes.analysis.index_sets import identity_read

#: the attribute of @main that says how many bytes its network may take, where it is there
MEMORY_BUDGET = "memory_budget"
#: below so many bytes nobody asks what memory is for
FLOOR_BYTES = 4 << 20


def bytes_of(values: Collection[Value]) -> int:
    """Bytes of all tensors among the values."""
    return sum(v.tensor.nbytes for v in values if isinstance(v.type, TensorType))


@dataclass(frozen=True)
class MemoryHeadroom:
    """peak_bytes: the most that is alive at once when every kernel runs in program order, inputs apart.

    beside: per convolution (or product), the bytes that others hold meanwhile.
    """

    peak_bytes: int
    beside: Mapping[Op, int] = field(repr=False)

    def fits(self, op: Op, working_bytes: int) -> bool:
        """Return whether kernels with so many bytes at hand, in place of those of `op`, keep to the peak."""
        return self.beside.get(op, 0) + working_bytes <= max(self.peak_bytes, FLOOR_BYTES)


def peak_bytes(kernels: Module) -> int:
    """The most that is alive at once when every kernel of @main runs in program order, parameters apart.

    What becomes the new value of a parameter lies in the memory of that parameter and does not count.
    """
    return _alive(kernels)[0]


def headroom_of(func: Func, ctx: PassContext) -> MemoryHeadroom:
    """The headroom of a graph-level function with its convolutions as they are named, direct by default.

    The function is lowered to kernels for that: tens of milliseconds for hundreds of ops.
    """
    return _headroom(func, "graph.conv2d", ctx)


def headroom_of_products(func: Func, ctx: PassContext) -> MemoryHeadroom:
    """The headroom of a flat tensor-level function, for its contractions."""
    return _headroom(func, "tensor.contract", ctx)


def _headroom(func: Func, name: str, ctx: PassContext) -> MemoryHeadroom:
    marks = {op: f"#{i}" for i, op in enumerate(func.body.ops) if op.name == name}
    marked = func.with_body(
        func.body.with_ops(tuple(replace(op, loc=marks[op]) if op in marks else op for op in func.body.ops))
    )
    quiet = replace(ctx, instruments=(), reproducer_folder=None)
    module = Module("headroom", (replace(marked, name="main"),), constants=Constants({}))
    kernels = ctx.estimator.stored_kernels(module, quiet)
    peak, beside = _alive(kernels)
    return MemoryHeadroom(peak, {op: beside[mark] for op, mark in marks.items() if mark in beside})


def _alive(kernels: Module) -> tuple[int, dict[str, int]]:
    """Most bytes alive at once, and by mark what is alive beside a kernel's operands that end and results."""
    calls = [op for op in kernels.main.body.ops if op.name == "tensor.call"]
    whole = joined_arrays(kernels.main)
    last = {whole.get(v, v): i for i, op in enumerate(calls) for v in (*op.operands, *op.results)}
    returned = [whole.get(v, v) for v in kernels.main.body.ops[-1].operands]
    last |= dict.fromkeys(returned, len(calls))
    kept = {returned[result] for _, result in kernels.main.updates}
    alive: set[Value] = set()
    alive_bytes = peak = 0
    beside: dict[str, int] = {}
    for i, call in enumerate(calls):
        ended = {v for v in call.operands if last.get(v) == i and v in alive}
        own = {whole.get(r, r) for r in call.results} - kept
        alive_bytes += bytes_of(own - alive)
        alive |= own
        callee = kernels[callee_of(call)]
        over = [v.tensor.nbytes for v in overwritten_operands(call, callee, whole) if v in ended]
        peak = max(peak, alive_bytes - max(over, default=0))
        others_bytes = alive_bytes - bytes_of(alive & {*ended, *call.results})
        beside.update((op.loc, others_bytes) for op in callee.body.ops if op.loc.startswith("#"))
        touched = own | {whole.get(v, v) for v in call.operands}
        gone = {v for v in touched if last.get(v, -1) <= i}
        alive_bytes -= bytes_of(gone & alive)
        alive -= gone
    return peak, beside


def joined_arrays(main: Func) -> dict[Value, Value]:
    """The array that holds each piece of a join, and the one that holds each part of an array."""
    whole: dict[Value, Value] = {}
    for op in main.body.ops:
        if op.name == "tensor.part":
            whole[op.result] = op.operands[0]
    for op in reversed(main.body.ops):
        if op.name == "tensor.join":
            whole.update(dict.fromkeys(op.operands, whole.get(op.result, op.result)))
    return whole


def overwritten_operands(call: Op, kernel: Func, joined: Collection[Value] = ()) -> list[Value]:
    """The operands whose place a result may take: as large, and read where the same point is written.

    joined: values that are pieces of joined arrays, whose place is there. Maps with results of several shapes
    have blocks for each, which run in any order: they overwrite nothing.
    """
    maps = all(op.name == "tensor.map" for op in kernel.body.ops[:-1])
    if maps and len({r.tensor.shape for r in call.results}) > 1:
        return []
    sizes = {r.tensor.nbytes for r in call.results if r not in joined}
    return [
        v
        for v, p in zip(call.operands, kernel.params, strict=True)
        if v.tensor.nbytes in sizes
        and v not in joined
        and all(_reads_own_point(op, p) for op in kernel.body.ops if p in op.operands)
    ]


def _reads_own_point(op: Op, operand: Value) -> bool:
    if op.name != "tensor.map" or not dims(op, "par"):
        return False
    return all(identity_read(op, i) for i, v in enumerate(op.operands) if v is operand)
