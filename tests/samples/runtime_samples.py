"""Small hand-written plans that the runtime's tests share."""

import numpy as np

from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

SIZE = 1024
BLOCK = 128

OPENCL_HEAD = "kernel void {entry}({params}) {{ int i = get_global_id(0); {body} }}"
CUDA_HEAD = (
    'extern "C" __global__ void __launch_bounds__(128) {entry}({params})'
    " {{ int i = blockIdx.x * 128 + threadIdx.x; {body} }}"
)
BODIES = {
    "scale": (1, "y[i] = a0[i] * 2.0f;"),
    "shift": (1, "y[i] = a0[i] + 1.0f;"),
    "join": (3, "y[i] = a0[i] + a1[i] * a2[i];"),
}


def source(name: str, language: str) -> str:
    """One kernel over 1024 floats."""
    count, body = BODIES[name]
    space = "global " if language == "opencl" else ""
    params = ", ".join([f"{space}const float* a{i}" for i in range(count)] + [f"{space}float* y"])
    head = OPENCL_HEAD if language == "opencl" else CUDA_HEAD
    return head.format(entry=name, params=params, body=body)


def floats(name: str, kind: str, **more: object) -> Buffer:
    """A buffer of 1024 floats."""
    return Buffer(name, "float32", (SIZE,), kind, 4 * SIZE, **more)


def launch(kernel: str, *args: str, deps: tuple[int, ...] = (), **more: object) -> Launch:
    """A launch over 1024 floats that writes its last argument."""
    return Launch(kernel, args, (SIZE // BLOCK, 1, 1), BLOCK, deps=deps, writes=(len(args) - 1,), **more)


def diamond(
    language: str = "opencl", binaries: dict[str, bytes] | None = None, arch: str = ""
) -> ExecutionPlan:
    """x -> t0, from there two branches on two streams, joined with the constant w into y."""
    kernels = tuple(
        KernelCode(name, name, language, source(name, language), (binaries or {}).get(name), arch)
        for name in BODIES
    )
    launches = (
        launch("scale", "x", "t0", origin=("net:double#0",)),
        launch("shift", "t0", "t1", deps=(0,)),
        launch("scale", "t0", "t2", deps=(0,), stream=1),
        launch("join", "t1", "t2", "w", "y", deps=(1, 2), origin=("net:multiply#2", "net:add#3")),
    )
    buffers = (
        floats("x", "input"),
        floats("w", "constant"),
        floats("y", "output"),
        *(floats(name, "arena") for name in ("t0", "t1", "t2")),
    )
    return place_arena(ExecutionPlan("test", buffers, kernels, launches, ("x",), ("y",), 0))


def diamond_result(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What `diamond` computes."""
    return (2 * x + 1) + 4 * x * w


def random_floats(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(SIZE, dtype=np.float32)
