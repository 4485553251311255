"""Pass split-weights: every device holds its part of each large weight (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Literal

from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.division import Label, Labels
from tilewright.ir.facts import Elements
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.opdef import facts_of
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.sharding.options import check_rank, message_rates, speeds_of
from tilewright.passes.graph.distribute.sharding.program import (
    LabelCut,
    ShardedProgram,
    UnitHint,
    outputs_gathered,
    with_main,
)
from tilewright.passes.graph.distribute.sharding.shards import Shard, scaled
from tilewright.passes.graph.distribute.sharding.steps import divided_step
from tilewright.passes.graph.simplification.fold_constants import fold_constants

#: what ops do whose constant operands are weights
WEIGHTED = frozenset({Elements.CONTRACTS, Elements.LOOKS_UP})
MAX_ROUNDS = 16


@register_pass(Level.GRAPH, requires={"shapes-known"})
def split_weights(
    module: Module,
    ctx: PassContext,
    *,
    devices: int = 1,
    rank: int = 0,
    speeds: str = "",
    min_bytes: int = 1_048_576,
    join: Literal["auto", "never"] = "auto",
    tflops: float = 20.0,
    link_gbs: float = 100.0,
    latency_us: float = 2.0,
) -> Module:
    """Rank `rank` of `devices` holds its part of every weight of at least `min_bytes`; all give full outputs.

    A weight whose data comes whole is split by output channels, and what follows is done per channel (per
    head) as far as its ops allow. A weight whose data comes split by its input channels is split the same
    way, and one all_reduce adds the products up, unless gathering the data moves fewer bytes. What needs its
    operands whole gathers them. Embedding tables are split by the dimensions they do not look up. Parts are
    proportional to `speeds`.

    In a module with state, such as a training step, the parameters are weights too; they are state that every
    rank holds its part of (attribute `divisions`), and so is what the optimizer keeps beside them. join and
    rates: of sums, as of `split-batch`.

    rewrite: %y = graph.dense(graph.relu(graph.dense(%x, a)), b)
        -->  %y = graph.all_reduce(graph.dense(graph.relu(graph.dense(%x, a.0.1.0-8)), b.1.1.0-8))
    """
    check_rank(devices, rank)
    rates = speeds_of(speeds, devices)
    if devices == 1:
        return module
    cutting = WeightCuts(rates, min_bytes)
    if module.state_names:
        step = fold_constants().apply(module, ctx)
        cutting.trained = frozenset(step.main.params[p] for p, _ in step.main.updates)
        return divided_step(
            step,
            devices,
            rank,
            inputs={},
            stored={},
            adds_up=False,
            weights=cutting,
            rates=message_rates(join, tflops, link_gbs, latency_us),
        )
    return with_divided_weights(fold_constants().apply(module, ctx), range(devices), rank, cutting)


def with_divided_weights(
    module: Module, members: Sequence[int], member: int, cutting: WeightCuts, *, messages: bool = False
) -> Module:
    """Return the module of position `member` of the global ranks `members`; see `ShardedProgram`.

    Trials refine the units of the decisions until none is wished finer. `cutting.held` has the decisions.
    """

    def program(pool: ConstantPool) -> ShardedProgram:
        cutting.restart()
        made = ShardedProgram(module, members, member, pool, choose=cutting.choose, messages=messages)
        made.run()
        return made

    for _ in range(MAX_ROUNDS):
        if not cutting.refine(program(ConstantPool()).unit_hints):
            break
    pool = ConstantPool(module.constants)
    return with_main(module, outputs_gathered(program(pool)), pool)


class WeightCuts:
    """Decides how each large weight is split; learns from trials into how small units it has to be cut.

    A decision is numbered by the place of its op. Its unit is one channel until an op further on needs more,
    as a reshape into heads does; then the whole function is done again with that unit.
    """

    def __init__(self, speeds: Sequence[float], min_bytes: int) -> None:
        self.speeds, self.min_bytes = speeds, min_bytes
        self.units: dict[Value, tuple[int, int]] = {}  # (outer, unit) by result of the op
        #: the extent that every decision is about, by the result of its op; numbers are places in it, which
        #: stay: cuts of one trial, with the numbers they come from, are what the next one begins with
        self.extents: dict[Value, int] = {}
        self.held: dict[str, Shard] = {}
        self.trained = frozenset[Value]()  # state that is a weight where an op takes it as one

    def restart(self) -> None:
        """Forget the decisions of the last trial, not the units."""
        self.held = {}

    def choose(self, program: ShardedProgram, op: Op) -> LabelCut | None:
        """Return the decision on an op with a large weight; None for other ops."""
        weight = self.weight_of(program, op)
        labels = facts_of(op.name).division(op) if weight is not None else None
        if weight is None or labels is None:
            return None
        dims = labels.operands[op.operands.index(weight)]
        name = weight.hint if weight in self.trained else str(program.producers[weight]["name"])
        if name in self.held:
            label = dims[self.held[name].axis]
            return None if label is None else LabelCut(label, self.held[name])
        followed = _followed(program, op, labels, weight)
        cheaper = followed is not None and _adding_up_pays(program, op, labels, followed)
        seed = followed if cheaper else self.decided(op, labels, weight) or followed
        if seed is not None:
            self.held[name] = seed.shard.on(dims.index(seed.label))
        return seed

    def weight_of(self, program: ShardedProgram, op: Op) -> Value | None:
        """The largest constant operand, where it is a weight that is worth splitting."""
        if facts_of(op.name).elements not in WEIGHTED:
            return None
        constants = [
            v
            for v in op.operands
            if v.tensor.nbytes >= self.min_bytes and (v in self.trained or _is_constant(program, v))
        ]
        return max(constants, key=lambda v: v.tensor.nbytes, default=None)

    def decided(self, op: Op, labels: Labels, weight: Value) -> LabelCut | None:
        """A split by the largest dimension of the weight that results have too; None where none is enough."""
        dims = labels.operands[op.operands.index(weight)]
        extents: dict[Label, int] = {
            k: n
            for k, n in zip(dims, weight.tensor.shape, strict=True)
            if k is not None and k in labels.results[0]
        }
        label = max(extents, key=lambda k: extents[k], default=None)
        if label is None:
            return None
        outer, unit = self.units.get(op.results[0], (1, 1))
        parts = scaled(apportioned(extents[label] // (outer * unit), self.speeds), unit)
        if any(a == b for (a, b), s in zip(parts, self.speeds, strict=True) if s > 0):
            return None
        self.extents[op.results[0]] = extents[label]
        number = list(self.extents).index(op.results[0])
        return LabelCut(label, Shard(0, outer, parts, frozenset({number})))

    def refine(self, unit_hints: Sequence[UnitHint]) -> bool:
        """Take the units that a trial wished for where they leave one per device; whether any changed."""
        changed = False
        decisions = list(self.extents.items())
        for hint in unit_hints:
            result, extent = decisions[hint.seed]
            outer, unit = self.units.get(result, (1, 1))
            if extent != outer * hint.block:
                continue  # the dimension was cut or merged on the way: its units are not those of the weight
            refined = outer * hint.outer, lcm(unit, hint.unit)
            units, rest = divmod(extent, refined[0] * refined[1])
            if not rest and units >= len(self.speeds) and refined != (outer, unit):
                self.units[result] = refined
                changed = True
        return changed


def _is_constant(program: ShardedProgram, v: Value) -> bool:
    producer = program.producers.get(v)
    return producer is not None and producer.name == "graph.constant"


def _followed(program: ShardedProgram, op: Op, labels: Labels, weight: Value) -> LabelCut | None:
    """The split that the data already has along a dimension of the weight, most often its input channels."""
    dims = labels.operands[op.operands.index(weight)]
    for v, names in zip(op.operands, labels.operands, strict=True):
        shard = program.cuts.get(v) if v is not weight else None
        label = names[shard.axis] if shard is not None else None
        if shard is not None and label is not None and label in dims:
            return LabelCut(label, shard)
    return None


def _adding_up_pays(program: ShardedProgram, op: Op, labels: Labels, seed: LabelCut) -> bool:
    """Return True where adding up results moves no more than gathering the data, and later the results.

    A ring moves (n - 1) / n of the bytes to gather them, and twice as much to add them up.
    """
    if seed.label not in labels.sums:
        return True
    gathered = sum(
        v.tensor.nbytes
        for v in op.operands
        if v in program.cuts and v not in program.whole_values and v not in program.func.params
    )
    return op.results[0].tensor.nbytes <= gathered
