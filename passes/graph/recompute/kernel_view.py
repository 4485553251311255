"""The kernels that a graph function would become: what they store, their seconds, the bytes alive at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.ir import Constants, Func, Level, Module, Op
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.analysis.memory_headroom import bytes_of, peak_bytes
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.rewriting.dead_ops import live_ops


@dataclass(frozen=True)
class KernelView:
    """stored: the ops of the function whose results kernels store. beside: the ops in kernels of products,
    whose results are stored beside that of the product where they are. seconds: of all kernels in turn.

    peak_bytes: parameters, constants and the most that is alive beside them, in program order. kernels: how
    many are launched.
    """

    stored: frozenset[Op] = field(repr=False)
    beside: frozenset[Op] = field(repr=False)
    seconds: float
    peak_bytes: int
    kernels: int


def kernel_view(func: Func, hardware: Hardware, ctx: PassContext, *, factors: str = "") -> KernelView:
    """Lower a graph-level function to kernels without parameters and look at them.

    What makes the peak is stored here, although `fuse-kernels` may leave it to a product later: parts of the
    batch and what is saved lower the peak for less time, and are decided first.
    factors: what float32 factors of products will be allowed, which decides on prologues.
    """
    marks = {f"#{i}": op for i, op in enumerate(func.body.ops)}
    marked = func.with_body(func.body.with_ops(tuple(replace(op, loc=mark) for mark, op in marks.items())))
    quiet = replace(ctx, instruments=(), reproducer_folder=None)
    module = Module("kernels", (replace(marked, name="main"),), constants=Constants({}))
    kernels = ctx.estimator.stored_kernels(module, quiet, factors=factors, spares=False)
    calls = [op for op in kernels.main.body.ops if op.name == "tensor.call"]
    stored = {
        marks[op.loc] for op in _returning(kernels, calls) if op.loc in marks and _holds(op, marks[op.loc])
    }
    beside = {
        marks[op.loc]
        for f in kernels.funcs
        if any(op.name == "tensor.contract" for op in f.body.ops)
        for op in f.body.ops
        if op.loc in marks
    }
    rate = bytes_per_s(hardware, sum(bytes_of(op.results) for op in calls))
    return KernelView(
        frozenset(stored),
        frozenset(beside),
        sum(ctx.estimator.outlined_s(kernels[callee_of(call)], hardware, rate) for call in calls),
        fixed_bytes(func) + peak_bytes(kernels),
        len(calls),
    )


def _returning(kernels: Module, calls: list[Op]) -> list[Op]:
    """The ops that make what kernels store."""
    out = []
    for name in dict.fromkeys(callee_of(call) for call in calls):
        body = kernels[name].body
        returned = set(body.ops[-1].operands)
        out += [op for op in body.ops if returned & set(op.results)]
    return out


def _holds(op: Op, whole: Op) -> bool:
    """Return whether an op of a lowering gives all of a result of the graph op, and no step on the way."""
    return any(r.tensor.nbytes == v.tensor.nbytes for r in op.results for v in whole.results)


def bytes_per_s(hardware: Hardware, nbytes: int) -> float:
    """The rate at which results that lie apart by a whole pass are written and read; nbytes: of them all.

    What fits the second-level cache of a GPU beside the weights is still there, all else is in DRAM.
    """
    if isinstance(hardware, CpuHardware):
        return hardware.estimate_dram_bytes_per_s
    if 2 * nbytes <= hardware.l2_bytes:
        return hardware.l2_bytes_per_s
    return hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency


def fixed_bytes(func: Func) -> int:
    """Bytes of parameters and constants."""
    constants = {op["name"]: op.result for op in func.body.ops if op.name == "graph.constant"}
    return bytes_of(func.params) + bytes_of(constants.values())


def forward_alone(func: Func, boundary: Boundary) -> Func:
    """The forward pass, which returns what the function returns of it: a part of a step, as its loss says."""
    returned = [v for v in func.body.ops[-1].operands if v in boundary.makes]
    forward = frozenset(boundary.ops)
    ops = [op for op in func.body.ops[:-1] if op in forward or not op.operands]
    end = Op("graph.return", tuple(returned))
    block = func.body.with_ops((*ops, end))
    types = tuple(v.type for v in returned)
    alone = Func(Level.GRAPH, func.name, block.with_ops(live_ops(block)), types)
    return alone.with_attrs(**{LOSS: tuple(range(len(returned)))})
