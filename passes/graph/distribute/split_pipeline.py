"""Pass split-pipeline: every device does one stage of the network, a micro-batch after another."""

from __future__ import annotations

from math import inf
from typing import Literal

from tilewright.costmodel.op_work import Rates
from tilewright.ir.errors import InputError
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Level, Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.pipeline.cuts import StageLimits, best_cuts, checked_cuts
from tilewright.passes.graph.distribute.pipeline.micro_batches import micro_batches_of, row_of
from tilewright.passes.graph.distribute.pipeline.schedule import StageBuilder
from tilewright.passes.graph.distribute.pipeline.step_stages import split_step
from tilewright.passes.graph.distribute.sharding.options import (
    check_rank,
    memory_limits,
    number_list,
    speeds_of,
)
from tilewright.passes.graph.distribute.sharding.program import with_main


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
    order: Literal["1f1b", "gpipe"] = "1f1b",
) -> Module:
    """Rank `rank` of `devices` does stage `rank`: ops in a row, of which the slowest stage is fast as can be.

    micro_batches: the batch, dimension `axis` of the inputs, is computed in so many parts one after another,
      all in one module, so that stages work at the same time; ops that mix samples are refused then.
    cuts: places of the ops that begin stages 1, 2, ...; by default chosen. Ops count in order, but for
      constants, what is made of constants alone, and views of inputs, which stages make for themselves.
    speeds, memory: of the devices, relative and in bytes.
    costs: seconds of the ops counted. By default the larger of operations / `tflops` and bytes / (one tenth
      of that), of one micro-batch; `balance=flops` leaves the bytes out. A byte arrives in 1 / `link_gbs` ns.

    A training step (a module with state) is cut by its forward pass: each rank has the state of its layers,
    their backward pass and their updates. micro_batches are then runs of the step, which one run of the
    divided step does (a step that accumulates so many gradients updates once): inputs are those of all runs,
    joined along dimension 0. Cuts and costs count the ops that the loss depends on.
    order: of the micro-batches of a step: 1f1b keeps values of few of them, gpipe of all.

    rewrite: %y = graph.relu(graph.dense(%x, w))
        -->  %a = graph.recv(source = 0); %y = graph.relu(%a); graph.send(%y, to = 0)     on rank 1 of 2
    """
    check_rank(devices, rank)
    if micro_batches < 1:
        raise InputError(f"option 'micro_batches' expects at least 1, got {micro_batches}")
    if not (tflops > 0 and link_gbs > 0):
        raise InputError(f"expected positive rates, got {tflops} Tflop/s and {link_gbs} GB/s")
    rates = Rates(tflops * 1e12, tflops * 1e11 if balance == "seconds" else inf, link_gbs * 1e9)
    limits = StageLimits(
        speeds_of(speeds, devices),
        memory_limits(memory, devices) or (inf,) * devices,
        1 / rates.link_bytes_per_s,
    )
    if devices == 1:
        return module
    if module.main.updates:
        return split_step(module, devices, rank, micro_batches, cuts, costs, order, rates, limits)
    pool = ConstantPool(module.constants)
    batches = micro_batches_of(module, micro_batches, axis, pool)
    row = row_of(batches[0], module.main, costs, rates)
    if cuts.strip():
        starts = checked_cuts(number_list(cuts, "cuts"), devices, len(row.costs))
    else:
        starts = best_cuts(row, limits)
    stage_of = [sum(p >= s for s in starts) for p in range(len(row.costs))]
    main = StageBuilder(batches, stage_of, devices, rank).build(module.main)
    return with_main(module, main, pool)
