"""A function once per micro-batch, and its ops as a row to be cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.costmodel.op_work import Rates, is_view
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Block, Func, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.passes.graph.distribute.pipeline.cuts import OpRow
from tilewright.passes.graph.distribute.sharding.options import number_list
from tilewright.passes.graph.distribute.sharding.program import batch_of, cut_batch
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.rewriting.dead_ops import live_ops


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: ops that stages do, ops each does for itself, and outputs with their cuts.

    work[p] of every micro-batch is the same op on other samples; ops and values that hold no samples are the
    same objects in all micro-batches and are done once.
    """

    work: Sequence[Op]
    free: Sequence[Op]
    outputs: Sequence[tuple[Value, Shard | None]]


def micro_batches_of(module: Module, count: int, axis: int, pool: ConstantPool) -> list[MicroBatch]:
    """The function once per micro-batch; itself where there is one."""
    main = module.main
    for op in main.body.ops:
        if "communicate" in op_def(op.name).effects:
            raise UnsupportedError("expected a module that is not distributed yet", where=op.name)
    if count == 1:
        return [_micro_batch(main, main.body.ops[:-1], [(v, None) for v in main.body.ops[-1].operands])]
    samples = batch_of(main, axis)
    if count > samples:
        raise InputError(f"option 'micro_batches' expects at most {samples}, one per sample, got {count}")
    out = []
    for m in range(count):
        program = cut_batch(module, count, m, pool, axis)
        outputs = program.run()
        out.append(_micro_batch(main, program.b.ops, outputs))
    return out


def _micro_batch(main: Func, ops: Sequence[Op], outputs: Sequence[tuple[Value, Shard | None]]) -> MicroBatch:
    end = replace(main.body.ops[-1], operands=tuple(v for v, _ in outputs))
    live = live_ops(Block(main.params, (*ops, end)))[:-1]
    free = free_ops(live, main.params)
    return MicroBatch([op for op in live if op not in free], [op for op in live if op in free], outputs)


def row_of(batch: MicroBatch, main: Func, costs: str, rates: Rates) -> OpRow:
    """The ops of a micro-batch and the values between them."""
    used: dict[Value, list[int]] = {}
    made: dict[Value, int] = {}
    for p, op in enumerate(batch.work):
        made.update(dict.fromkeys(op.results, p))
        for v in dict.fromkeys(op.operands):
            used.setdefault(v, []).append(p)
    params = set(main.params)
    values = [v for v in {**made, **used} if v not in params]
    last = len(batch.work) - 1
    outputs = {v for v, _ in batch.outputs}
    seconds = number_list(costs, "costs", len(batch.work)) if costs.strip() else ()
    return OpRow(
        seconds or [rates.compute_s(op) for op in batch.work],
        [made.get(v, -1) for v in values],
        [used.get(v, []) for v in values],
        [v.tensor.nbytes for v in values],
        [last if v in outputs else -1 for v in values],
    )


def free_ops(ops: Sequence[Op], params: Sequence[Value]) -> set[Op]:
    """Ops every device may do for itself: what is made of constants alone, and views of inputs."""
    constness: dict[Value, bool] = dict.fromkeys(params, False)  # value -> made of constants alone
    free: set[Op] = set()
    for op in ops:
        if op_def(op.name).effects or not all(v in constness for v in op.operands):
            continue
        constant = all(constness[v] for v in op.operands)
        if constant or is_view(op):
            free.add(op)
            constness.update(dict.fromkeys(op.results, constant))
    return free
