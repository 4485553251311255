"""Chains: several reductions in one kernel, with what one leaves for the next in shared memory.

The block owns a box of the final result. Every intermediate is computed cooperatively, stage by stage, over
the box that the following stages read (a halo is computed by each block that needs it).
"""

from __future__ import annotations

from math import prod

from tilewright.ir import Func
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.passes.kernels.chain.block import ChainBlock
from tilewright.passes.kernels.chain.contract import StageContract
from tilewright.passes.kernels.chain.parameters import ChainParameters, chain_parameters
from tilewright.passes.kernels.chain.reduce import StageReduce, lower_map_stage
from tilewright.passes.kernels.chain.stages import Stage, chain_of
from tilewright.passes.kernels.chain.tiles import contract_tiles
from tilewright.passes.kernels.rows.combiners import combiner

#: reductions of fewer indices are not shared among lanes
MIN_SHARED = 16


def lower_chain(kernel: Func) -> Func:
    """The thread-level function of a kernel of several stages.

    rewrite:  contract -> reduce -> map -> contract -> ...
        -->   per stage: staged operands, register tiles or folds, stores to shared memory; results at the end
    """
    plan = chain_parameters(kernel)
    chain = chain_of(kernel, plan.block)
    block = ChainBlock(chain, plan.threads)
    products = {
        id(stage): StageContract(block, stage, plan)
        for stage in chain.stages
        if stage.anchor.name == "tensor.contract" and not shared_lanes(stage, plan)
    }
    waiting = [s for s in chain.stages if id(s) in products]
    for stage in chain.stages:
        with block.w.b.at(stage.anchor.loc):
            block.allocate(stage)
            if id(stage) in products:
                products[id(stage)].lower()
                waiting.remove(stage)
                continue
            if waiting and products[id(waiting[0])].acc is None:
                products[id(waiting[0])].prepare()
            if stage.anchor.name not in REDUCING:
                lower_map_stage(block, stage)
            else:
                StageReduce(block, stage, plan.lanes if shared_lanes(stage, plan) else 1).lower()
    return block.w.finish()


def shared_lanes(stage: Stage, plan: ChainParameters) -> bool:
    """Return whether several lanes fold each point of a reduction: long ones, and products without reuse."""
    op = stage.anchor
    if plan.lanes == 1 or combiner(op) is None or prod(dims(op, "red").values()) < MIN_SHARED:
        return False
    if op.name != "tensor.contract":
        return op.name == "tensor.reduce"
    tiles = contract_tiles(op, stage.domain, plan.threads)
    return 1 in (tiles.extents.get(tiles.row, 1), tiles.extents.get(tiles.column, 1))
