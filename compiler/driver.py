"""The compilation itself: passes, emission, kernel builds, plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.choices import PARTITIONER
from tilewright.codegen import KernelSource
from tilewright.ir import Module, verify
from tilewright.kernel_builds import build_codes, emit_kernels
from tilewright.lowering import lower_from
from tilewright.own_passes import NO_PASSES, OwnPasses
from tilewright.passes import Instrument, PassContext
from tilewright.passes.pipelines import official_stages
from tilewright.planning import plan_module
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.targets import Target


@dataclass(frozen=True)
class Lowered:
    """A module at the levels people look at, and the text of every kernel."""

    graph: Module
    tensor: Module
    thread: Module
    sources: dict[str, KernelSource]


def lower(
    module: Module,
    target: Target,
    instruments: Sequence[Instrument] = (),
    *,
    precision: str = "fp32",
    conv_algorithm: str = "auto",
    workspace: str = "network",
    partitioner: str = PARTITIONER,
    own: OwnPasses = NO_PASSES,
    verify_each: bool = False,
    choose: Callable[[Module], Module] | None = None,
    choose_algorithms: Callable[[Module], Module] | None = None,
) -> Lowered:
    """Run the default pipelines down to emitted kernel text, from the graph or the tensor level.

    precision: fp32, tf32, fp16 or bf16 (see `tilewright.passes.pipelines.PRECISIONS`).
    conv_algorithm: auto, direct, winograd2, winograd4 or fft; workspace: network or any (see the pass
        choose-algorithms).
    partitioner: rules, exact, algorithm1 or none (see the pass fuse-kernels).
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
    measured = choose_algorithms is not None and conv_algorithm == "auto" and precision != "tf32"
    asked = "" if measured else conv_algorithm
    stages = official_stages(module.main.level, target.language, precision, asked, workspace, partitioner)
    own.check([level.value for level, _ in stages], f"a module of the {module.main.level.value} level")
    levels = lower_from(
        module,
        stages,
        context,
        own,
        choose_algorithms=choose_algorithms if measured else None,
        choose=choose,
    )
    return Lowered(levels.graph, levels.tensor, levels.thread, emit_kernels(levels.thread, target))


def build(lowered: Lowered, target: Target, *, progress: bool | None = None) -> ExecutionPlan:
    """Compile the kernels (CUBINs for CUDA; OpenCL text is built by its device) and lay out the plan."""
    codes = build_codes(lowered.sources, target, progress=progress)
    return plan_module(lowered.thread, lowered.sources, codes, str(target))
