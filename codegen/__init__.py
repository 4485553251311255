"""Thread IR -> CUDA C and OpenCL C, and the builders of both: NVRTC, the binary cache, the emulator."""

from tilewright.codegen.builders.emulator_build import EmulatorBuilder
from tilewright.codegen.emit.emission import Emitter, emitted_ops, emitter
from tilewright.codegen.emit.kernel import emit_cuda, emit_opencl
from tilewright.codegen.kernel_source import KernelParam, KernelSource
from tilewright.codegen.prelude.registry import helper

__all__ = [
    "Emitter",
    "EmulatorBuilder",
    "KernelParam",
    "KernelSource",
    "emit_cuda",
    "emit_opencl",
    "emitted_ops",
    "emitter",
    "helper",
]
