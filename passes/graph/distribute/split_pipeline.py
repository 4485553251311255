"""Pass split-pipeline: every device does one stage of the network, a micro-batch after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Literal

from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.pipeline.costs import free_ops, seconds_of
from tilewright.passes.graph.distribute.pipeline.cuts import Limits, Row, best_cuts, checked_cuts
from tilewright.passes.graph.distribute.pipeline.schedule import MicroBatch, Stage
from tilewright.passes.graph.distribute.sharding.program import ShardedProgram, with_main
from tilewright.passes.graph.distribute.sharding.shards import (
    Shard,
    apportioned,
    check_rank,
    number_list,
    speeds_of,
)
from tilewright.passes.graph.distribute.space.cost import Rates
from tilewright.passes.graph.distribute.split_batch import batch_cuts, batch_of
from tilewright.passes.rewriting.constant_pool import ConstantPool
from tilewright.passes.rewriting.dead_ops import live_ops


@register_pass(Level.GRAPH, requires={"shapes-known"})
def split_pipeline(
    module: Module,
    ctx: PassContext,
    *,
    devices: int = 1,
    rank: int = 0,
    micro_batches: int = 1,
    axis: int = 0,
    cuts: str = "",
    speeds: str = "",
    costs: str = "",
    memory: str = "",
    balance: Literal["seconds", "flops"] = "seconds",
    tflops: float = 20.0,
    link_gbs: float = 100.0,
) -> Module:
    """Rank `rank` of `devices` does stage `rank`: ops in a row, of which the slowest stage is fast as can be.

    micro_batches: the batch, dimension `axis` of the inputs, is computed in so many parts one after another,
      all in one module, so that stages work at the same time; ops that mix samples are refused then.
    cuts: places of the ops that begin stages 1, 2, ...; by default chosen. Ops count in order, but for
      constants, what is made of constants alone, and views of inputs, which stages make for themselves.
    speeds, memory: of the devices, relative and in bytes.
    costs: seconds of the ops counted. By default the larger of operations / `tflops` and bytes / (one tenth
      of that), of one micro-batch; `balance=flops` leaves the bytes out. A byte arrives in 1 / `link_gbs` ns.

    rewrite: %y = graph.relu(graph.dense(%x, w))
        -->  %a = graph.recv(source = 0); %y = graph.relu(%a); graph.send(%y, to = 0)     on rank 1 of 2
    """
    check_rank(devices, rank)
    if micro_batches < 1:
        raise InputError(f"option 'micro_batches' expects at least 1, got {micro_batches}")
    if not (tflops > 0 and link_gbs > 0):
        raise InputError(f"expected positive rates, got {tflops} Tflop/s and {link_gbs} GB/s")
    rates = Rates(tflops * 1e12, tflops * 1e11 if balance == "seconds" else inf, link_gbs * 1e9)
    limits = Limits(speeds_of(speeds, devices), _memory(memory, devices), 1 / rates.link_bytes_per_s)
    if devices == 1:
        return module
    pool = ConstantPool(module.constants)
    batches = _micro_batches(module, micro_batches, axis, pool)
    row = _row(batches[0], module.main, costs, rates)
    if cuts.strip():
        starts = checked_cuts(number_list(cuts, "cuts"), devices, len(row.costs))
    else:
        starts = best_cuts(row, limits)
    stage_of = [sum(p >= s for s in starts) for p in range(len(row.costs))]
    main = Stage(batches, stage_of, devices, rank).build(module.main)
    return with_main(module, main, pool)


def _memory(text: str, devices: int) -> tuple[float, ...]:
    """Bytes of every device; one number stands for all."""
    given = number_list(text, "memory")
    if len(given) not in (0, 1, devices):
        raise InputError(f"option 'memory' expects 1 or {devices} numbers of bytes, got '{text}'")
    return given if len(given) == devices else (given or (float("inf"),)) * devices


def _micro_batches(module: Module, count: int, axis: int, pool: ConstantPool) -> list[MicroBatch]:
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
    parts = apportioned(samples, (1.0,) * count)
    out = []
    for m in range(count):
        program = ShardedProgram(module, range(count), m, pool, communicating=False)
        for value, shard in batch_cuts(main, parts, axis):
            program.cut(value, shard)
        outputs = program.run()
        out.append(_micro_batch(main, program.b.ops, outputs))
    return out


def _micro_batch(main: Func, ops: Sequence[Op], outputs: Sequence[tuple[Value, Shard | None]]) -> MicroBatch:
    end = replace(main.body.ops[-1], operands=tuple(v for v, _ in outputs))
    live = live_ops(Block(main.params, (*ops, end)))[:-1]
    free = free_ops(live, main.params)
    return MicroBatch([op for op in live if op not in free], [op for op in live if op in free], outputs)


def _row(batch: MicroBatch, main: Func, costs: str, rates: Rates) -> Row:
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
    given = number_list(costs, "costs", len(batch.work)) if costs.strip() else ()
    return Row(
        given or [seconds_of(op, rates) for op in batch.work],
        [made.get(v, -1) for v in values],
        [used.get(v, []) for v in values],
        [v.tensor.nbytes for v in values],
        [last if v in outputs else -1 for v in values],
    )
