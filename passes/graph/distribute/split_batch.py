"""Pass split-batch: every device computes its samples of the batch; outputs are gathered at the end."""

from __future__ import annotations

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.sharding.program import ShardedProgram, outputs_gathered, with_main
from tilewright.passes.graph.distribute.sharding.shards import Shard, apportioned, check_rank, speeds_of
from tilewright.passes.rewriting.constant_pool import ConstantPool


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
    given = speeds_of(speeds, devices)
    if devices == 1:
        return module
    pool = ConstantPool(module.constants)
    program = ShardedProgram(module, range(devices), rank, pool)
    for value, shard in batch_cuts(module.main, apportioned(batch_of(module.main, axis), given), axis):
        program.cut(value, shard)
    program.run()
    return with_main(module, outputs_gathered(program), pool)


def batch_of(func: Func, axis: int) -> int:
    """The extent of the batch: that of dimension `axis` of the first input that has it."""
    for p in func.params:
        if 0 <= axis < p.tensor.rank:
            return p.tensor.shape[axis]
    raise InputError(f"expected an input with a dimension {axis}, the batch, got none", where=f"@{func.name}")


def batch_cuts(func: Func, parts: tuple[tuple[int, int], ...], axis: int) -> list[tuple[Value, Shard]]:
    """The inputs that hold the batch, each with its cut into `parts`."""
    extent = parts[-1][1]
    found = (p for p in func.params if axis < p.tensor.rank and p.tensor.shape[axis] == extent)
    return [(p, Shard(axis, 1, parts)) for p in found]
