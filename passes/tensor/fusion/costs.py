"""Seconds a set of ops would take as one kernel: the cost model's estimate of that kernel, corrected by what
was measured of prologues, second results and long epilogues. The estimator remembers it by structure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf, prod

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Func, InputError, Op, Pairs, UnsupportedError, Value
from tilewright.ir.simplify import interval
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import REDUCING, dims, domain, fills, reads
from tilewright.passes import PassContext
from tilewright.passes.analysis.index_sets import recompute_cost
from tilewright.passes.analysis.second_results import second_results_s
from tilewright.passes.kernels.decision import decision_of, estimate_of
from tilewright.passes.tensor.fusion.op_graph import OpGraph, members
from tilewright.passes.tensor.fusion.outline_kernel import outline


class KernelCosts:
    """Costs of sets of ops of one graph on one device."""

    def __init__(self, graph: OpGraph, hardware: Hardware, ctx: PassContext) -> None:
        self.graph, self.hardware, self.ctx = graph, hardware, ctx
        self._sign_of: list[int] = [self._sign(op) for op in graph.ops]
        self.evaluated = 0

    def seconds(self, ops: int) -> float:
        """Estimated seconds of the kernel that these ops become; inf where no parameters fit the device."""
        core = self._core(ops)
        seconds = self._core_s(core)
        last = self.graph.ops[core.bit_length() - 1]
        if core & (core - 1) and last.name == "tensor.contract":  # a prologue makes no product faster
            seconds = max(
                seconds, self._core_s(1 << core.bit_length() - 1) + self.hardware.fusion.least_prologue_s
            )
        return seconds if core == ops else seconds + self._epilogue_s(ops, core)

    def _core_s(self, core: int) -> float:
        question = ("fused kernel", self.hardware, self._key(core))
        return self.ctx.estimator.remembered(question, lambda: self._evaluate(core))

    def _sign(self, op: Op) -> int:
        types = tuple(v.type for v in (*op.operands, *op.results))
        sign = (op.name, op.attrs, types, _body(op))
        return self.ctx.estimator.number_of(sign)

    def _key(self, ops: int) -> Hashable:
        """Equal for sets that become equal kernels: the ops, who reads whom, and what is stored."""
        names: dict[Value, int] = {}
        out: list[Hashable] = []
        stored = self._results(ops)
        for i in members(ops):
            op = self.graph.ops[i]
            wires = tuple(names.setdefault(v, len(names)) for v in (*op.operands, *op.results))
            out.append((self._sign_of[i], wires, stored >> i & 1))
        return tuple(out)

    def kernel(self, ops: int) -> Func:
        """The kernel function of the ops of a core."""
        inside = [self.graph.ops[i] for i in members(ops)]
        anchor = self.graph.ops[anchor_of(self.graph, ops)]
        outputs = [r for i in members(self._results(ops)) for r in self.graph.ops[i].results]
        return outline(inside, anchor, outputs, "k", self.graph.resolve)[0]

    def _results(self, ops: int) -> int:
        """The ops whose results the kernel of a core stores: of a contraction its own, whoever reads it."""
        contraction = next((i for i in members(ops) if self.graph.ops[i].name == "tensor.contract"), None)
        return self.graph.stored(ops) if contraction is None else 1 << contraction

    def _core(self, ops: int) -> int:
        """A contraction of the set and what of it comes before; all ops where there is none."""
        for i in members(ops):
            if self.graph.ops[i].name == "tensor.contract":
                return 1 << i | self.graph.before[i] & ops
        return ops

    def _evaluate(self, ops: int) -> float:
        self.evaluated += 1
        if not ops & (ops - 1) and self.graph.ops[ops.bit_length() - 1].name in ("tensor.join", COMMUNICATE):
            return 0.0  # names a place or waits for others, computes nothing
        func = self.kernel(ops)
        try:
            func = self.ctx.estimator.kernel(func, self.ctx)
        except (InputError, UnsupportedError):
            if not ops & (ops - 1):
                raise
            return inf
        return parametrised_s(func, self.hardware)

    def _epilogue_s(self, ops: int, core: int) -> float:
        """Seconds that the ops of a set beside its core add: traffic, instructions, results beyond the
        first.
        """
        after = [self.graph.ops[i] for i in members(ops & ~core)]
        made = {r for i in members(ops) for r in self.graph.ops[i].results}
        operands = {v for op in after for v in op.operands if v not in made}
        stored = [r for i in members(self.graph.stored(ops)) for r in self.graph.ops[i].results]
        hardware, fit = self.hardware, self.hardware.fusion
        moved = sum(v.tensor.nbytes for v in operands) + sum(v.tensor.nbytes for v in stored[1:])
        seconds = fit.exposed_share * moved / _bytes_per_s(hardware)
        points = prod(self.graph.shapes[anchor_of(self.graph, ops)])
        work = sum(map(recompute_cost, after))
        work += sum(_read_instructions(v, points, hardware) for v in operands)
        work += fit.crowded_instructions * max(0, len(operands) - fit.free_operands)
        seconds += points * work / _rate(hardware, points)
        return seconds + second_results_s(stored[1:], hardware)


def parametrised_s(func: Func, hardware: Hardware) -> float:
    """Seconds of a kernel with parameters, its boundary included: what prologues take beyond its estimate."""
    extra = prologue_s(func, hardware)
    prologue = extra > 0 and any(op.name == "tensor.contract" for op in func.body.ops)
    boundary = hardware.fusion.boundary_s if isinstance(hardware, GpuHardware) else 0.0
    return estimate_of(func) * (1 + hardware.fusion.prologue_share * prologue) + extra + boundary


def _body(op: Op) -> Hashable:
    if op.body is None:
        return None
    names = {v: i for i, v in enumerate(op.body.params)}
    out = []
    for o in op.body.ops:
        wires = tuple(names.setdefault(v, len(names)) for v in (*o.operands, *o.results))
        out.append((o.name, o.attrs, wires, tuple(r.type for r in o.results)))
    return tuple(out)


def anchor_of(graph: OpGraph, ops: int) -> int:
    """The op that shapes the kernel: its first reduction, or the first map over the domain of the last."""
    inside = list(members(ops))
    for i in inside:
        if graph.ops[i].name in REDUCING:
            return i
    return next(i for i in inside if graph.shapes[i] == graph.shapes[inside[-1]])


def prologue_s(kernel: Func, hardware: Hardware) -> float:
    """Seconds that the estimate of a kernel does not see: what is computed wherever it is read."""
    ops = kernel.body.ops[:-1]
    made = {r: op for op in ops for r in op.results}
    anchor = next((op for op in ops if op.name in REDUCING), None)
    if anchor is None:
        return _repeated_s(ops, made, hardware)
    before = [op for op in ops if op in _independent(ops)]
    return _prologue_s(kernel, anchor, made, before, hardware) if before else 0.0


def _independent(ops: Sequence[Op]) -> set[Op]:
    """Ops that depend on no reduction of the kernel."""
    bound: set[Value] = set()
    out = set()
    for op in ops:
        if op.name in REDUCING or any(v in bound for v in op.operands):
            bound.update(op.results)
        else:
            out.add(op)
    return out


def _read_instructions(v: Value, points: int, hardware: Hardware) -> int:
    fit = hardware.fusion
    return fit.read_instructions if v.tensor.size >= points else fit.shared_read_instructions


def _rate(hardware: Hardware, work_items: int) -> float:
    """Scalar instructions per second that so many independent items can issue."""
    if isinstance(hardware, CpuHardware):
        return hardware.cores * hardware.simd_lanes * hardware.clock_hz
    lanes = hardware.sm_count * hardware.schedulers_per_sm * 32
    return min(lanes * hardware.estimate_issue_efficiency, max(32, work_items)) * hardware.clock_hz


def _bytes_per_s(hardware: Hardware) -> float:
    """Sustained DRAM bandwidth."""
    if isinstance(hardware, CpuHardware):
        return hardware.estimate_dram_bytes_per_s
    return hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency


def _prologue_s(
    kernel: Func, anchor: Op, made: dict[Value, Op], before: Sequence[Op], hardware: Hardware
) -> float:
    """Time to compute the prologue for every element that a block fetches, and the longer chain of its steps.

    An element is computed once for each block that reads it, halos included.
    """
    fit = hardware.fusion
    points = max(op.result.tensor.size for op in before)
    read = sum(_read_instructions(v, points, hardware) for op in before for v in op.operands if v not in made)
    checks = sum(f is not None for op in before for f in fills(op))
    work = sum(map(recompute_cost, before)) + max(0, read - fit.read_instructions) + 2 * checks
    decision = decision_of(kernel)
    parameters = None if decision is None else decision.parameters
    params = {} if parameters is None else parameters.pairs().as_dict()
    block = params.get("block")
    if not isinstance(block, Pairs):  # each thread computes what it reads
        points = prod(domain(anchor).values())
        return fit.least_prologue_s + points * work / _rate(hardware, points)
    par = dims(anchor, "par")
    tile = {d: min(n, _whole(block.as_dict().get(d, 1))) for d, n in par.items()}
    blocks = prod(-(-n // tile[d]) for d, n in par.items())
    staged = max((_fetched(anchor, i, tile) for i, v in enumerate(anchor.operands) if v in made), default=0)
    seconds = blocks * staged * work / _rate(hardware, blocks * 256)
    step = params.get("step")
    if isinstance(hardware, GpuHardware) and isinstance(step, Pairs):
        red = dims(anchor, "red")
        steps = prod(-(-red[d] // max(1, _whole(n))) for d, n in step.items if d in red)
        rounds = -(-blocks // hardware.sm_count)
        chain_s = min(rounds, 2) * steps * hardware.fusion.prologue_step_clk / hardware.clock_hz
        seconds += hardware.fusion.prologue_s + chain_s
    return seconds


def _whole(n: object) -> int:
    return n if isinstance(n, int) else 1


def _fetched(anchor: Op, operand: int, tile: dict[str, int]) -> int:
    """Elements of an operand that one block reads."""
    ranges = {d: (0, n - 1) for d, n in (domain(anchor) | tile).items()}
    box = 1
    for e, extent in zip(reads(anchor)[operand], anchor.operands[operand].tensor.shape, strict=True):
        low, high = interval(e, ranges)
        box *= max(1, min(int(high - low) + 1, extent))
    return box


def _repeated_s(ops: Sequence[Op], made: dict[Value, Op], hardware: Hardware) -> float:
    """Time of maps that are computed once more for each place, beyond the first, at which one point reads
    them.
    """
    seconds = 0.0
    points = prod(dims(ops[-1], "par").values())
    times: dict[Op, int] = {ops[-1]: 1}
    places: dict[Op, set[Hashable]] = {}
    for op in reversed(ops):
        mine = max(1, times.get(op, 1))
        where = reads(op)
        for v, at in zip(op.operands[len(op.operands) - len(where) :], where, strict=True):
            if v in made:
                seen = places.setdefault(made[v], set())
                if (at, mine) not in seen:
                    seen.add((at, mine))
                    times[made[v]] = times.get(made[v], 0) + mine
    for op, count in times.items():
        work = recompute_cost(op) + hardware.fusion.read_instructions * sum(
            v not in made for v in op.operands
        )
        seconds += points * (count - 1) * work / _rate(hardware, points)
    return seconds
