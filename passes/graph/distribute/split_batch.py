"""Pass split-batch: every device computes its samples of the batch; outputs are gathered at the end."""

from __future__ import annotations

from typing import Literal

from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.errors import InputError
from tilewright.ir.facts import Elements
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Level, Module
from tilewright.ir.opdef import facts_of
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.sharding.options import check_rank, message_rates, speeds_of
from tilewright.passes.graph.distribute.sharding.program import (
    ShardedProgram,
    batch_cuts,
    batch_of,
    outputs_gathered,
    with_main,
)
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.graph.distribute.sharding.steps import divided_step, kept_beside


@register_pass(Level.GRAPH, requires={"shapes-known"})
def split_batch(
    module: Module,
    ctx: PassContext,
    *,
    devices: int = 1,
    rank: int = 0,
    speeds: str = "",
    axis: int = 0,
    zero: int = 0,
    min_bytes: int = 65_536,
    micro_batches: int = 1,
    join: Literal["auto", "never"] = "auto",
    tflops: float = 20.0,
    link_gbs: float = 100.0,
    latency_us: float = 2.0,
) -> Module:
    """Rank `rank` of `devices` computes its part of the batch, which dimension `axis` of the inputs is.

    The first input that has this dimension says how large the batch is; inputs with another extent there are
    kept whole. Parts are proportional to `speeds` (`1,1,2`; equal by default) and may be empty. The batch is
    followed through every op that works on samples one by one; what an op needs whole is gathered first, and
    what comes after it is whole until it meets samples again.

    A module with state, such as a training step, is given its part of the inputs alone (attribute
    `divisions`). Sums over samples are added up, so gradients of parameters are the same on all ranks, and so
    is the state. zero=1: every rank holds, and updates, its part of the parameters and of all state of their
    shapes, where these take at least `min_bytes`; parameters are gathered where they are read.
    micro_batches: runs of the step, which one run of the divided step does one after another: of a step that
    accumulates so many gradients their sum is added up over the ranks, once. Inputs are those of all runs,
    joined along dimension 0; results that are one number are means over the runs.
    join=auto: sums that nothing waits for, as those of gradients, share messages, so that by the model the
    last one ends soonest, and gathers of parameters, so that the first one begins as late as may be: an op
    takes the larger of operations / `tflops` and bytes / (one tenth of that), a hop of a ring `latency_us`
    and its bytes / `link_gbs`.

    rewrite: %y = graph.relu(%x) : f32[8, 3]
        -->  %y = graph.all_gather(graph.relu(graph.strided_slice(%x)), axis = 0) : f32[8, 3]
    """
    check_rank(devices, rank)
    rates = speeds_of(speeds, devices)
    if zero not in (0, 1):
        raise InputError(f"option 'zero' expects 0 or 1, got {zero}")
    if micro_batches < 1:
        raise InputError(f"option 'micro_batches' expects at least 1, got {micro_batches}")
    if devices == 1:
        return module
    parts = apportioned(batch_of(module.main, axis), rates)
    if module.state_names:
        inputs = {v.hint: s for v, s in batch_cuts(module.main, parts, axis)}
        stored = stored_cuts(module, devices, min_bytes) if zero else {}
        return divided_step(
            module,
            devices,
            rank,
            inputs=inputs,
            stored=stored,
            adds_up=True,
            rates=message_rates(join, tflops, link_gbs, latency_us),
            runs=micro_batches,
        )
    if micro_batches > 1:
        raise InputError("option 'micro_batches' divides the runs of a training step; this network has none")
    if zero:
        raise InputError("option 'zero' divides the state of a training step; this network has none")
    pool = ConstantPool(module.constants)
    program = ShardedProgram(module, range(devices), rank, pool)
    for value, shard in batch_cuts(module.main, parts, axis):
        program.cut(value, shard)
    program.run()
    return with_main(module, outputs_gathered(program), pool)


def stored_cuts(module: Module, devices: int, min_bytes: int) -> dict[str, Shard]:
    """Cuts of the parameters of at least so many bytes, and of what the optimizer keeps beside each.

    They are cut along the first dimension that has a part for every device; those without one stay whole, and
    so do those whose new value is not computed element by element, such as tables of which rows change.
    """
    main, beside = module.main, kept_beside(module)
    producers = {r: op for op in main.body.ops for r in op.results}
    out: dict[str, Shard] = {}
    for p, r in main.updates:
        name, t = main.params[p].hint, main.params[p].tensor
        new = producers.get(main.body.ops[-1].operands[r])
        axis = next((d for d, n in enumerate(t.shape) if n >= devices), None)
        if new is None or axis is None or name not in beside or t.nbytes < min_bytes:
            continue
        if facts_of(new.name).elements is Elements.MAPS:
            out[name] = Shard(axis, 1, apportioned(t.shape[axis], (1.0,) * devices))
    return out
