"""Runs single thread-level kernels on OpenCL and on the CUDA emulator, for the tests of code generation."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from tilewright.codegen import EmulatorBuilder, emit_cuda, emit_opencl
from tilewright.codegen.kernel_source import KernelSource
from tilewright.compilation.kernel_builds import launch_maps
from tilewright.ir import Func, Module, parse, verify
from tilewright.ir.types import storage_dtype
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch, version_for

DEVICES = ("opencl", "emulator")
#: with the second implementation of OpenCL besides, where its self-test lets it be used
SAMPLED_DEVICES = ("opencl", "opencl:pocl", "emulator")


def kernel(body: str, params: Mapping[str, str], *, grid: str = "[1, 1, 1]", block: int = 32) -> Func:
    """A verified thread-level function: `params` maps names to types, `body` is all but the return."""
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in params.items())
    head = f"thread.func @k({arguments}, grid = {grid}, block = {block})"
    return checked(parse(f"module @m {{ {head} {{ {body}\nthread.return() }} }}"))


def checked(module: Module) -> Func:
    verify(module)
    return module.funcs[0]


@cache
def device(name: str, seed: int = 1) -> OpenClDevice | EmulatorDevice:
    """A device by its target; the test is skipped where a named implementation may not be used."""
    if name == "emulator":
        return EmulatorDevice(EmulatorBuilder(), seed=seed)
    if name == "opencl":
        return OpenClDevice()
    try:
        return OpenClDevice(name.partition(":")[2])
    except DeviceMissingError as error:
        pytest.skip(str(error))


def source_for(func: Func, name: str) -> KernelSource:
    return emit_cuda(func) if name == "emulator" else emit_opencl(func)


def plan_of(source: KernelSource) -> ExecutionPlan:
    """A plan that launches one kernel: what it writes are outputs."""
    buffers = []
    for p in source.params:
        t = storage_dtype(p.dtype)
        nbytes = max(1, int(np.prod(p.shape, dtype=np.int64))) * t.itemsize
        buffers.append(Buffer(p.name, t.name, p.shape, "output" if p.written else "input", nbytes))
    names = tuple(p.name for p in source.params)
    code = KernelCode(
        source.entry, source.entry, "opencl" if source.language == "opencl" else "cuda", source.source
    )
    launch = Launch(
        source.entry, names, source.grid, source.block, source.shared_bytes_dynamic, writes=source.writes,
        maps=launch_maps(source), cluster=source.cluster,
    )  # fmt: skip
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    outputs = tuple(b.name for b in buffers if b.kind == "output")
    version = version_for(buffers, (launch,))
    return ExecutionPlan("test", tuple(buffers), (code,), (launch,), inputs, outputs, 0, version)


def run(func: Func, name: str, inputs: Sequence[np.ndarray], *, seed: int = 1) -> dict[str, np.ndarray]:
    """Outputs by parameter name."""
    plan = plan_of(source_for(func, name))
    with device(name, seed).load(plan, {}) as loaded:
        return dict(zip(plan.outputs, loaded.run(inputs), strict=True))
