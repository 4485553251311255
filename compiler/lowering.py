"""The way down: a module through the stages of a pipeline, wherever in them it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import Level, Module
from tilewright.own_passes import NO_PASSES, OwnPasses
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import PACKING, Stages, official_stages
from tilewright.targets import Target


@dataclass(frozen=True)
class Levels:
    """A module after each stage; where a stage holds no passes, as it was before."""

    graph: Module
    tensor: Module
    thread: Module


def lower_from(
    module: Module,
    stages: Stages,
    context: PassContext,
    own: OwnPasses = NO_PASSES,
    *,
    choose_algorithms: Callable[[Module], Module] | None = None,
    choose: Callable[[Module], Module] | None = None,
) -> Levels:
    """Run the stages, or what is left of them, on a module that has passed what comes before.

    own: passes of the user, at their point of each stage (see `tilewright.passes.pipelines`).
    choose_algorithms: sets the algorithms of convolutions at the end of the graph stage.
    choose: may change the parameters that the model chose, before weights are packed for them.
    Raises InputError or PassError naming op and pass.
    """
    levels = dict.fromkeys(Level, module)
    for level, whole in stages:
        module, rest = own.run(module, level, whole, context)
        if choose is not None and PACKING in rest.names:
            module = choose(run_pipeline(module, rest.until(PACKING), context))
            rest = rest.since(PACKING)
        module = run_pipeline(module, rest, context)
        if choose_algorithms is not None and level is Level.GRAPH:
            module = choose_algorithms(module)
        levels.update((x, module) for x in list(Level)[list(Level).index(level) :])
    return Levels(levels[Level.GRAPH], levels[Level.TENSOR], levels[Level.THREAD])


def lower_program(module: Module, target: Target, *, cold: bool) -> Module:
    """A program of kernels with chosen parameters at the thread level.

    cold: its kernels prefetch their weights as those of a network do whose weights exceed the L2, however
    small the program is; otherwise none does.
    """
    stages = official_stages(Level.TENSOR, target.language).since(PACKING)
    if cold:
        stages = stages.replace("prefetch-weights", "prefetch-weights{share=0.0}")
    else:
        stages = stages.without("prefetch-weights")
    return lower_from(module, stages, pass_context(target)).thread


def with_packed_weights(module: Module, target: Target) -> Module:
    """A program of kernels with chosen parameters, its constants in the order that these read."""
    stages = official_stages(Level.TENSOR, target.language).since(PACKING).until("prefetch-weights")
    return lower_from(module, stages, pass_context(target)).tensor


def pass_context(target: Target) -> PassContext:
    """The context of passes for a target, without instruments."""
    return PassContext(target=str(target), hardware=target.hardware)
