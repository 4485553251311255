"""The module of each rank of a plan: split-batch, split-pipeline and split-weights, one inside the other.

Each pass is for the whole world. Here, samples are cut first, what computes one replica's samples is cut into
stages, and the weights of a stage among its ranks; numbers of ranks within a group become those of the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.cluster.planning.parallel_plan import ParallelPlan, RankCoordinates
from tilewright.ir import InputError, Module, Op, UnsupportedError, Value
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Block, Func
from tilewright.passes.graph.distribute.pipeline.micro_batches import free_ops
from tilewright.passes.graph.distribute.sharding.program import (
    ShardedProgram,
    batch_of,
    cut_batch,
    with_main,
)
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.graph.distribute.split_batch import split_batch
from tilewright.passes.graph.distribute.split_pipeline import split_pipeline
from tilewright.passes.graph.distribute.split_weights import WeightCuts, with_divided_weights
from tilewright.passes.graph.simplification.fold_constants import fold_constants
from tilewright.passes.rewriting.dead_ops import live_ops

_MESSAGES = frozenset({"graph.send", "graph.recv"})


@dataclass(frozen=True)
class _Replica:
    """The function of one replica's samples; their slices of the inputs, in front of it, apart.

    begins: by op of the whole function, position of the first op made of it. outputs: their pieces and cuts.
    """

    module: Module
    slices: tuple[Op, ...]
    begins: tuple[int, ...]
    outputs: tuple[tuple[Value, Shard | None], ...]


def part_of(module: Module, plan: ParallelPlan, rank: int) -> Module:
    """Return the part of `rank` of a network after the graph passes; its signature is the network's.

    Raises UnsupportedError where an op mixes samples that replicas or micro-batches have apart, and where no
    weight is large enough to be divided; InputError where a batch is too small.
    """
    if plan.dp == plan.devices:
        return split_batch(devices=plan.dp, rank=rank)(module)
    own = plan.coordinates(rank)
    replica = _replica(module, plan, own.replica)
    stage = _stage(replica, plan, own.stage)
    ops = tuple(_renumbered(op, plan, own) for op in stage.main.body.ops)
    stage = _with_main(stage, stage.main.with_body(stage.main.body.with_ops(ops)))
    if plan.tp > 1:
        stage = _weights(stage, plan, plan.tensor_group(own), own.part)
    return stage if plan.dp == 1 else _joined(module, replica, stage, plan, own)


def _with_main(module: Module, main: Func) -> Module:
    return module.with_funcs(tuple(main if f is module.main else f for f in module.funcs))


def _joined(
    module: Module, replica: _Replica, stage: Module, plan: ParallelPlan, own: RankCoordinates
) -> Module:
    """The stage between the slices of its inputs and the gathers of all replicas' outputs."""
    pool = ConstantPool(stage.constants)
    tail = ShardedProgram(module, plan.batch_group(own), own.replica, pool)
    *body, end = stage.main.body.ops
    wholes = module.main.body.ops[-1]
    tail.b.loc = end.loc
    outputs = tuple(
        piece if shard is None else tail.gathered(piece, shard, whole)
        for piece, (_, shard), whole in zip(end.operands, replica.outputs, wholes.operands, strict=True)
    )
    ops = (*replica.slices, *body, *tail.b.ops, wholes.with_operands(outputs))
    block = Block(module.main.params, ops)
    main = replace(module.main, body=block.with_ops(live_ops(block)))
    return with_main(_with_main(stage, module.main), main, pool)


def _replica(module: Module, plan: ParallelPlan, number: int) -> _Replica:
    """Raises UnsupportedError for ops that mix samples."""
    main = module.main
    end = main.body.ops[-1]
    if plan.dp == 1:
        everything = tuple(range(len(main.body.ops)))
        return _Replica(module, (), everything, tuple((v, None) for v in end.operands))
    samples = batch_of(main, 0)
    if samples % plan.dp:
        raise InputError(f"expected a batch that {plan.dp} replicas share evenly, got {samples}")
    pool = ConstantPool(module.constants)
    program = cut_batch(module, plan.dp, number, pool)
    outputs = tuple(program.run())
    lead = program.begins[0]
    slices, ops = tuple(program.b.ops[:lead]), program.b.ops[lead:]
    used = {v for op in ops for v in op.operands} | {v for v, _ in outputs}
    params = [r for op in slices for r in op.results]
    params += [p for p in main.params if p in used]
    results = tuple(v for v, _ in outputs)
    block = Block(tuple(params), (*ops, end.with_operands(results)))
    own = replace(main, body=block, result_types=tuple(v.type for v in results))
    begins = tuple(b - lead for b in program.begins)
    return _Replica(with_main(module, own, pool), slices, begins, outputs)


def _stage(replica: _Replica, plan: ParallelPlan, number: int) -> Module:
    if plan.p == 1:
        return replica.module
    places = _places(replica.module, plan.micro_batches)
    cuts = ",".join(str(places[replica.begins[cut]]) for cut in plan.cuts)
    return split_pipeline(devices=plan.p, rank=number, micro_batches=plan.micro_batches, cuts=cuts)(
        replica.module
    )


def _places(module: Module, micro_batches: int) -> list[int]:
    """By op of a function: how many ops that split-pipeline counts come before it."""
    main = module.main
    ops: Sequence[Op] = main.body.ops[:-1]
    begins: Sequence[int] = range(len(ops) + 1)
    end = main.body.ops[-1]
    if micro_batches > 1:
        if micro_batches > batch_of(main, 0):
            raise InputError(f"expected at most {batch_of(main, 0)} micro-batches, got {micro_batches}")
        program = cut_batch(module, micro_batches, 0, ConstantPool(module.constants))
        outputs = program.run()
        ops, begins = program.b.ops, program.begins
        end = end.with_operands(tuple(v for v, _ in outputs))
    live = live_ops(Block(main.params, (*ops, end)))[:-1]
    counted = set(live) - free_ops(live, main.params)
    before = [0]
    for op in ops:
        before.append(before[-1] + (op in counted))
    return [before[b] for b in begins]


def _renumbered(op: Op, plan: ParallelPlan, own: RankCoordinates) -> Op:
    """A message between stages of one replica as one between ranks."""
    if op.name not in _MESSAGES:
        return op
    key = "to" if op.name == "graph.send" else "source"
    stage = op[key]
    assert isinstance(stage, int)
    return op.with_attrs(**{key: plan.rank(stage, own.replica, own.part)})


def _weights(module: Module, plan: ParallelPlan, members: Sequence[int], part: int) -> Module:
    """Divide weights among `members` as split-weights does for the whole world."""
    cutting = WeightCuts((1.0,) * plan.tp, plan.least_weight_bytes)
    module = with_divided_weights(fold_constants()(module), members, part, cutting, messages=True)
    if not cutting.held:
        raise UnsupportedError(
            f"expected a weight of at least {plan.least_weight_bytes} bytes in every stage that "
            f"{plan.tp} ranks can share, got none"
        )
    return module
