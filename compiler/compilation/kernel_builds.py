"""Thread-level functions -> kernel text -> what a plan stores of it: text, for CUDA the CUBIN as well."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.codegen import KernelSource, emit_cuda, emit_opencl
from tilewright.codegen.builders.compile_many import compile_many
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.relays import starts_early
from tilewright.devices.targets import Target
from tilewright.ir import Level, Module, WorkError
from tilewright.ir.types import itemsize
from tilewright.runtime.plan.execution_plan import KernelCode, KernelContract, KernelResources, Language
from tilewright.runtime.plan.tensor_map import LaunchMap


class SerialisedKernels(WorkError):
    """Kernels whose multiplications ptxas serialises; reasons: what it says of each, by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        name, reason = next(iter(reasons.items()))
        more = f" (and {len(reasons) - 1} more such kernels)" if len(reasons) > 1 else ""
        super().__init__(f"{_waits(name, reason)}{more}; expected parameters that leave registers enough")
        self.reasons = dict(reasons)


def _waits(name: str, reason: str) -> str:
    return f"kernel {name!r}: its multiplications wait for one another: {reason}"


def emit_kernels(module: Module, target: Target) -> dict[str, KernelSource]:
    """The text of every thread-level function, by its name, in the language of the target.

    Raises WorkError for a kernel that needs more shared memory than a block of the GPU can have: no launch of
    it would succeed.
    """
    emit = emit_cuda if target.language == "cuda" else emit_opencl
    sources = {f.name: emit(f) for f in module.funcs if f.level is Level.THREAD}
    if target.kind == "cuda" and isinstance(target.hardware, GpuHardware):
        for name, source in sources.items():
            _check_shared_memory(name, source, target.hardware.smem_per_block_max_bytes)
    return sources


def _check_shared_memory(name: str, source: KernelSource, most: int) -> None:
    """Raise WorkError where a block of a kernel needs more than `most` bytes of shared memory."""
    needed = source.shared_bytes_static + source.shared_bytes_dynamic
    if needed > most:
        raise WorkError(
            f"kernel {name!r}: expected at most {most} bytes of shared memory for a block, got {needed}"
        )


def build_codes(
    sources: Mapping[str, KernelSource],
    target: Target,
    *,
    progress: bool | None = None,
    timed: Collection[str] = (),
) -> dict[str, KernelCode]:
    """Kernels by name, compiled as `compiled` does."""
    return compiled(kernel_codes(sources, target), target, progress=progress, timed=timed)


def kernel_codes(sources: Mapping[str, KernelSource], target: Target) -> dict[str, KernelCode]:
    """Kernels by name, not compiled."""
    language: Language = "cuda" if target.language == "cuda" else "opencl"
    able = starts_early(str(target))  # for others the text compiles to a kernel that does not wait
    return {
        n: KernelCode(
            n,
            s.entry,
            language,
            s.source,
            overlaps=able and s.overlaps,
            contract=contract_of(s),
            releases=able and s.releases,
        )
        for n, s in sources.items()
    }


def contract_of(source: KernelSource) -> KernelContract:
    """The contract that every launch of a kernel must fulfil."""
    spans = tuple(math.prod(p.shape) * itemsize(p.dtype) for p in source.params)
    return KernelContract(
        source.grid,
        source.block,
        source.shared_bytes_dynamic,
        spans,
        source.writes,
        launch_maps(source),
        source.cluster,
    )


def launch_maps(source: KernelSource) -> tuple[LaunchMap, ...]:
    """The tensor maps that every launch of a kernel gives it."""
    return tuple(LaunchMap(m.parameter, m.offset, m.recipe) for m in source.maps)


def compiled(
    codes: Mapping[str, KernelCode],
    target: Target,
    *,
    progress: bool | None = None,
    timed: Collection[str] = (),
) -> dict[str, KernelCode]:
    """The same kernels; CUDA text is compiled in parallel through the cache, OpenCL text on the device.

    Kernels of libraries have no text to compile. A kernel whose multiplications ptxas serialises takes
    several times as long as the cost model expects: raises SerialisedKernels for all such kernels; a warning
    is enough for those of the names `timed`, because measurements say so themselves.
    """
    if target.kind != "cuda":
        return dict(codes)
    texts = {n: k for n, k in codes.items() if k.language != "library"}
    binaries = compile_many([(n, k.source) for n, k in texts.items()], arch=target.arch, progress=progress)
    out, serialised = (
        dict(codes),
        {n: b.serialised for n, b in zip(texts, binaries, strict=True) if b.serialised},
    )
    if unknown := {n: reason for n, reason in serialised.items() if n not in timed}:
        raise SerialisedKernels(unknown)
    for name, reason in serialised.items():
        warnings.warn(f"{_waits(name, reason)}; its time is measured", RuntimeWarning, stacklevel=2)
    for (name, code), binary in zip(texts.items(), binaries, strict=True):
        r = binary.kernels[code.entry]
        resources = KernelResources(r.registers, r.spill_bytes, r.static_shared_bytes)
        out[name] = replace(code, binary=binary.cubin, arch=target.arch, resources=resources)
    return out
