"""The compilation itself: passes, emission, kernel builds, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.codegen import KernelSource, emit_cuda, emit_opencl
from tilewright.codegen.compile_many import compile_many
from tilewright.ir import Level, Module, verify
from tilewright.passes import Instrument, PassContext, Pipeline, run_pipeline
from tilewright.pipelines import stage_texts
from tilewright.planning import plan_module
from tilewright.runtime.plan import ExecutionPlan, KernelCode, KernelResources, Language
from tilewright.targets import Target


@dataclass(frozen=True)
class Lowered:
    """A module at the levels people look at, and the text of every kernel."""

    graph: Module
    tensor: Module
    thread: Module
    sources: dict[str, KernelSource]


def lower(module: Module, target: Target, instruments: Sequence[Instrument] = ()) -> Lowered:
    """Run the default pipelines down to emitted kernel text, from the graph or the tensor level.

    Raises InputError or PassError naming op and pass.
    """
    verify(module)
    context = PassContext(target=str(target), hardware=target.hardware, instruments=tuple(instruments))
    levels: dict[str, Module] = {}
    for stage, text in stage_texts(module.main.level, target.language).items():
        if text:
            module = run_pipeline(module, Pipeline.parse(text), context)
        levels[stage] = module
    emit = emit_cuda if target.language == "cuda" else emit_opencl
    sources = {f.name: emit(f) for f in module.funcs if f.level is Level.THREAD}
    return Lowered(levels["graph"], levels["tensor"], levels["thread"], sources)


def build(lowered: Lowered, target: Target, *, progress: bool | None = None) -> ExecutionPlan:
    """Compile the kernels (CUBINs for CUDA; OpenCL text is built by its device) and lay out the plan."""
    codes = {n: KernelCode(n, s.entry, _language(target), s.source) for n, s in lowered.sources.items()}
    if target.kind == "cuda":
        names = list(codes)
        binaries = compile_many([(n, codes[n].source) for n in names], arch=target.arch, progress=progress)
        for name, binary in zip(names, binaries, strict=True):
            r = binary.kernels[codes[name].entry]
            resources = KernelResources(r.registers, r.spill_bytes, r.static_shared_bytes)
            codes[name] = replace(codes[name], binary=binary.cubin, arch=target.arch, resources=resources)
    return plan_module(lowered.thread, lowered.sources, codes, str(target))


def _language(target: Target) -> Language:
    return "cuda" if target.language == "cuda" else "opencl"
