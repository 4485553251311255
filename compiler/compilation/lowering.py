"""The way down: a module through the stages of the official pipelines to kernels, and their plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tilewright.codegen import KernelSource
from tilewright.compilation.kernel_builds import build_codes, emit_kernels
from tilewright.compilation.kernel_records import KernelRecord, kernel_records
from tilewright.compilation.memory_budget import within_memory_budget
from tilewright.compilation.option_values import PARTITIONER
from tilewright.compilation.own_passes import NO_PASSES, OwnPasses
from tilewright.compilation.planning import plan_module
from tilewright.compilation.state_updates import settle_updates
from tilewright.devices.targets import Target
from tilewright.ir import Level, Module, verify
from tilewright.ir.nodes import INFERENCE
from tilewright.passes import Instrument, PassContext, run_pipeline
from tilewright.passes.kernels.decision import is_measured
from tilewright.passes.pipelines import LOSS_SCALE, PACKING, Stages, official_stages
from tilewright.runtime.plan.execution_plan import ExecutionPlan


@dataclass(frozen=True)
class Lowered:
    """A module after each stage, lowered for a target; where a stage holds no passes, as it was before."""

    graph: Module
    tensor: Module
    thread: Module
    target: Target

    @cached_property
    def sources(self) -> dict[str, KernelSource]:
        """The text of every kernel by its name, in the language of the target."""
        return emit_kernels(self.thread, self.target)

    @cached_property
    def records(self) -> tuple[KernelRecord, ...]:
        """The records of all kernels, those of libraries included."""
        return kernel_records(self.thread)


def lower_from(
    module: Module,
    target: Target,
    stages: Stages,
    own: OwnPasses = NO_PASSES,
    *,
    context: PassContext | None = None,
    choose_algorithms: Callable[[Module], Module] | None = None,
    choose: Callable[[Module], Module] | None = None,
) -> Lowered:
    """Run the stages, or what is left of them, on a module that has passed what comes before.

    At the end it is decided how state gets its new values (`settle_updates`).
    own: passes of the user, at their point of each stage (see `tilewright.passes.pipelines`).
    context: that of the passes, by default one without instruments.
    choose_algorithms: sets the algorithms of convolutions at the end of the graph stage.
    choose: may change the parameters that the model chose, before weights are packed for them.
    Raises InputError or PassError naming op and pass.
    """
    context = context or pass_context(target)
    levels = dict.fromkeys(Level, module)
    for level, whole in stages:
        module, rest = own.run(module, level, whole, context)
        if choose is not None and PACKING in rest.names:
            module = choose(run_pipeline(module, rest.until(PACKING), context))
            rest = rest.since(PACKING)
        module = run_pipeline(module, rest, context)
        if choose_algorithms is not None and level is Level.GRAPH:
            module = choose_algorithms(module)
        if level is Level.THREAD:
            module = settle_updates(module, partial(_lowered_copies, target=target, context=context))
        levels.update((x, module) for x in list(Level)[list(Level).index(level) :])
    return Lowered(levels[Level.GRAPH], levels[Level.TENSOR], levels[Level.THREAD], target)


def _lowered_copies(module: Module, target: Target, context: PassContext) -> Module:
    """The kernel of a copy, made as those of a network are."""
    for _, pipeline in official_stages(Level.TENSOR, target.language):
        module = run_pipeline(module, pipeline, context)
    return module


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
    return lower_from(module, target, stages).thread


def with_packed_weights(module: Module, target: Target) -> Module:
    """A program of kernels with chosen parameters, its constants in the order that these read."""
    stages = official_stages(Level.TENSOR, target.language).since(PACKING).until("prefetch-weights")
    return lower_from(module, target, stages).tensor


def pass_context(target: Target) -> PassContext:
    """The context of passes for a target, without instruments."""
    return PassContext(target=str(target), hardware=target.hardware)


def lower(
    module: Module,
    target: Target,
    instruments: Sequence[Instrument] = (),
    *,
    precision: str = "fp32",
    conv_algorithm: str = "auto",
    workspace: str = "network",
    partitioner: str = PARTITIONER,
    layouts: str = "cut",
    relays: str = "auto",
    own: OwnPasses = NO_PASSES,
    verify_each: bool = False,
    choose: Callable[[Module], Module] | None = None,
    choose_algorithms: Callable[[Module], Module] | None = None,
) -> Lowered:
    """Run the default pipelines from the graph or the tensor level.

    precision: fp32, fp32-strict, tf32, fp16 or bf16 (see `tilewright.passes.pipelines.PRECISIONS`).
    conv_algorithm: auto, direct, winograd2, winograd4 or fft; workspace: network or any (see the pass
        choose-algorithms).
    partitioner: rules, exact, algorithm1, maximal or none (see the pass fuse-kernels).
    layouts: cut, exact or sssp (see the pass choose-layouts).
    relays: auto, always or never (see the pass relay-launches).
    own: passes of the user, at their point of each stage (see `tilewright.passes.pipelines`).
    verify_each: verify the module after every pass.
    choose: may change the parameters the model chose, before weights are packed for them.
    choose_algorithms: sets the algorithms of convolutions in place of the model, where that would compare.
    Raises InputError or PassError naming op and pass.
    """
    verify(module)
    context = PassContext(
        target=str(target), hardware=target.hardware, instruments=tuple(instruments), verify_each=verify_each
    )
    module = training_step(module, precision, context)
    measured = choose_algorithms is not None and conv_algorithm == "auto" and precision != "tf32"
    algorithm = "" if measured else conv_algorithm
    stages = official_stages(
        module.main.level,
        target.language,
        precision,
        algorithm,
        workspace,
        partitioner,
        layouts,
        relays,
    )
    own.check([level.value for level, _ in stages], f"a module of the {module.main.level.value} level")
    return within_memory_budget(
        module,
        lambda m: lower_from(
            m,
            target,
            stages,
            own,
            context=context,
            choose_algorithms=choose_algorithms if measured else None,
            choose=choose,
        ),
    )


def training_step(module: Module, precision: str, context: PassContext) -> Module:
    """A training step as it is compiled in a precision: alone, and without a loss scale but in fp16.

    Other modules stay as they are.
    """
    module = module.with_funcs(tuple(f for f in module.funcs if f.name != INFERENCE))
    if module.main.updates and precision != "fp16":
        module = run_pipeline(module, LOSS_SCALE, context)
    return module


def build(lowered: Lowered, *, progress: bool | None = None, placed: bool = True) -> ExecutionPlan:
    """Compile the kernels (CUBINs for CUDA; OpenCL text is built by its device) and make the plan.

    placed: as of `plan_module`. Raises SerialisedKernels as `compiled` does, unless kernels were measured.
    """
    measured = [f.name for f in lowered.thread.funcs if is_measured(f)]
    codes = build_codes(lowered.sources, lowered.target, progress=progress, timed=measured)
    return plan_module(lowered.thread, lowered.sources, codes, str(lowered.target), placed=placed)
