"""Pass split-batch: every device computes its samples of the batch; outputs are gathered at the end."""

from __future__ import annotations

from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Level, Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.sharding.options import check_rank, speeds_of
from tilewright.passes.graph.distribute.sharding.program import (
    ShardedProgram,
    batch_cuts,
    batch_of,
    outputs_gathered,
    with_main,
)
from tilewright.passes.graph.distribute.state import refuse_state


@register_pass(Level.GRAPH, requires={"shapes-known"})
def split_batch(
    module: Module, ctx: PassContext, *, devices: int = 1, rank: int = 0, speeds: str = "", axis: int = 0
) -> Module:
    """Rank `rank` of `devices` computes its part of the batch, which dimension `axis` of the inputs is.

    The first input that has this dimension says how large the batch is; inputs with another extent there are
    kept whole. Parts are proportional to `speeds` (`1,1,2`; equal by default) and may be empty. The batch is
    followed through every op that works on samples one by one; what an op needs whole is gathered first, and
    what comes after it is whole until it meets samples again.

    rewrite: %y = graph.relu(%x) : f32[8, 3]
        -->  %y = graph.all_gather(graph.relu(graph.strided_slice(%x)), axis = 0) : f32[8, 3]
    """
    check_rank(devices, rank)
    refuse_state(module, "split-batch")
    rates = speeds_of(speeds, devices)
    if devices == 1:
        return module
    pool = ConstantPool(module.constants)
    program = ShardedProgram(module, range(devices), rank, pool)
    for value, shard in batch_cuts(module.main, apportioned(batch_of(module.main, axis), rates), axis):
        program.cut(value, shard)
    program.run()
    return with_main(module, outputs_gathered(program), pool)
