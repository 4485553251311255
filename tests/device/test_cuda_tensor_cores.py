"""On an NVIDIA GPU: products, convolutions and attention on tensor cores, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from attention_samples import bert_block
from codegen_samples import plan_of
from matrix_samples import assert_close, convolution, convolved, gemm, inputs_of, lowered

import tilewright as tw
from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.plan.execution_plan import KernelResources


@pytest.fixture(scope="module")
def device():
    with CudaDevice() as opened:
        yield opened


def computed(device: CudaDevice, kernel, inputs, tiles, engine: str) -> np.ndarray:
    if engine == "wgmma" and device.arch != "sm_90a":
        pytest.skip("wgmma needs sm_90a")
    source = emit_cuda(lowered(kernel, *tiles, engine=engine))
    built = compile_cuda(source.source, arch=device.arch)
    took = built.kernels[source.entry]
    resources = KernelResources(took.registers, took.spill_bytes, took.static_shared_bytes)
    plan = plan_of(source)
    code = replace(plan.kernels[0], binary=built.cubin, arch=built.arch, resources=resources)
    with device.load(plan.replace(kernels=(code,)), {}) as loaded:
        return loaded.run(inputs)[0].astype(np.float64)


@pytest.mark.parametrize(
    ("engine", "dtype", "size", "tiles"),
    [
        ("mma", "f16", (300, 200, 264), (128, 64, 64, 2, 2, 3)),
        ("mma", "bf16", (300, 200, 264), (64, 128, 32, 2, 4, 4)),
        ("mma", "f32", (300, 200, 260), (64, 64, 32, 2, 2, 3)),
        ("wgmma", "f16", (300, 200, 264), (128, 192, 64, 4, 1, 2)),
        ("wgmma", "f16", (300, 264, 328), (128, 256, 64, 8, 1, 4)),
        ("wgmma", "bf16", (500, 200, 1032), (256, 192, 64, 4, 2, 4)),
        ("wgmma", "bf16", (300, 200, 264), (64, 96, 32, 4, 2, 3)),
        ("wgmma", "f16", (300, 200, 264), (128, 48, 16, 8, 1, 5)),
        ("wgmma", "f32", (300, 200, 260), (128, 128, 32, 8, 1, 3)),
        ("wgmma", "f32", (300, 200, 260), (128, 64, 16, 4, 1, 2)),
        ("wgmma", "f32", (300, 200, 260), (64, 96, 8, 4, 2, 4)),
    ],
)
def test_products(device, engine, dtype, size, tiles):
    kernel = gemm(dtype, *size)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert_close(computed(device, kernel, [a, b], tiles, engine), want, dtype)


@pytest.mark.parametrize(
    ("dtype", "tiles"), [("f16", (128, 64, 64, 4, 1, 3)), ("f32", (64, 64, 32, 4, 1, 3))]
)
def test_convolutions_by_warpgroups(device, dtype, tiles):
    shape = (2, (19, 17), 64, 72, 3, 2, "NHWC")
    kernel = convolution(dtype, *shape)
    inputs = inputs_of(kernel)
    got = computed(device, kernel, inputs, tiles, "wgmma")
    assert_close(got, convolved(*inputs, *shape[4:]), dtype)


@pytest.mark.parametrize(
    ("precision", "error", "batch", "tokens"),
    [
        ("fp16", 5e-3, 1, 128),
        ("fp16", 5e-3, 4, 77),
        ("bf16", 4e-2, 4, 77),
        ("tf32", 5e-3, 4, 77),
    ],
)
def test_attention_is_one_kernel(precision, error, batch, tokens):
    block = bert_block(batch, tokens, 4, 64)
    x = np.random.default_rng(2).standard_normal(block.main.params[0].tensor.shape).astype(np.float32)
    (want,) = tw.interpret(block, x)
    with tw.compile(block, "cuda", precision=precision, libraries=False, progress=False) as exe:
        assert "attention" in {k["template"] for k in exe.report()["kernels"]}
        got = np.asarray(exe(x)[0], np.float64)
    assert np.abs(got - want).max() < error * np.abs(want).max()
