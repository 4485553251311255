"""Products by warpgroups (wgmma) on the emulator against float64, their memory, what NVRTC makes of them."""

from dataclasses import replace

import numpy as np
import pytest
from matrix_samples import (
    CAST,
    assert_close,
    convolution,
    convolved,
    emulated,
    gemm,
    inputs_of,
    lowered,
    product,
    source,
)

from tilewright.codegen import emit_opencl
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import InputError, Module, UnsupportedError, walk
from tilewright.passes import PassContext, Pipeline, run_pipeline

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize(
    ("dtype", "size", "tiles"),
    [
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 3)),
        ("bf16", (130, 24, 136), (128, 32, 32, 4, 1, 4)),  # two times 64 rows per warpgroup
        ("f16", (130, 40, 200), (128, 48, 16, 8, 1, 5)),  # two warpgroups along m
        ("f16", (64, 100, 72), (64, 96, 32, 4, 2, 2)),  # and along n; every chunk waits for the one before
        ("f16", (60, 16, 64), (64, 16, 64, 4, 1, 3)),  # one chunk
        ("bf16", (260, 72, 328), (256, 64, 64, 8, 1, 3)),
        ("f32", (70, 40, 76), (64, 32, 32, 4, 1, 3)),
        ("f32", (130, 100, 64), (128, 96, 16, 4, 2, 4)),
        ("f32", (130, 24, 36), (128, 16, 8, 4, 1, 2)),
    ],
)
def test_products(dtype, size, tiles):
    kernel = gemm(dtype, *size)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert_close(emulated(kernel, [a, b], *tiles, engine="wgmma"), want, dtype)


@pytest.mark.parametrize(
    ("dtype", "orders", "size", "tiles"),
    [
        ("f16", "mc cn", (70, 40, 200), (64, 32, 64, 4, 1, 3)),  # rows of 64 bytes
        ("bf16", "cm nc", (136, 24, 136), (128, 32, 32, 4, 1, 4)),  # two times 64 rows per warpgroup
        (
            "f16",
            "cm cn",
            (136, 200, 72),
            (128, 192, 16, 8, 1, 4),
        ),  # two warpgroups along m, three panels along n
        ("f16", "cm cn", (64, 96, 72), (64, 96, 32, 4, 2, 2)),  # two along n, 48 columns each
        ("bf16", "cm cn", (72, 136, 130), (64, 128, 128, 4, 1, 2)),  # chunks longer than a row
        ("bf16", "cm cn", (72, 128, 16), (64, 128, 16, 4, 2, 2)),  # one chunk
    ],
)
def test_factors_in_columns(dtype, orders, size, tiles):
    first, second = orders.split()
    kernel = gemm(dtype, *size, first, second)
    a, b = inputs_of(kernel)
    want = (a if first == "mc" else a.T).astype(np.float64) @ (b if second == "cn" else b.T).astype(
        np.float64
    )
    assert_close(emulated(kernel, [a, b], *tiles, engine="wgmma"), want, dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "tiles"),
    [
        ("f32", (2, (5, 6), 16, 24, 3, 1, "NHWC"), (64, 32, 16, 4, 1, 3)),
        ("f16", (2, (7, 7), 24, 40, 3, 1, "NHWC"), (64, 64, 16, 4, 1, 3)),
        ("f16", (1, (9, 8), 64, 16, 3, 2, "NHWC"), (64, 16, 64, 4, 1, 4)),
        ("f16", (3, (5, 5), 40, 24, 1, 1, "NHWC"), (128, 32, 32, 8, 1, 3)),
    ],
)
def test_convolutions_with_epilogues(dtype, shape, tiles):
    kernel = convolution(dtype, *shape)
    inputs = inputs_of(kernel)
    got = emulated(kernel, inputs, *tiles, engine="wgmma")
    assert_close(got, convolved(*inputs, *shape[4:]), dtype)


@pytest.mark.parametrize("stages", [2, 3])
def test_computed_factors(stages):
    kernel = product(
        "f16", ("24, 64", "40, 64"), "m: 24, n: 40", "c: 64", ("[m, c]", "[n, c]"),
        before=CAST, given="f32[24, 64]",
    )  # fmt: skip
    a, w = inputs_of(kernel)
    want = a.astype(np.float16).astype(np.float64) @ w.astype(np.float64).T
    assert_close(emulated(kernel, [a, w], 64, 32, 16, 4, 1, stages, engine="wgmma"), want, "f16")


@pytest.mark.parametrize(
    ("dtype", "tiles"),
    [
        ("bf16", (128, 128, 64, 4, 1, 3)),
        ("bf16", (128, 256, 64, 8, 1, 4)),
        ("f16", (256, 192, 64, 8, 1, 4)),
        ("f32", (128, 128, 32, 4, 1, 3)),
        ("f32", (128, 256, 32, 8, 1, 4)),
        ("f16 cm cn", (128, 256, 64, 8, 1, 4)),
        ("bf16 mc cn", (128, 256, 64, 8, 1, 4)),
    ],
)
def test_large_tiles_stay_in_registers(dtype, tiles):
    dtype, *orders = dtype.split()
    text = source(lowered(gemm(dtype, 4096, 4096, 4096, *orders), *tiles, raster=8, engine="wgmma"))
    built = compile_cuda(text, arch="sm_90a")
    assert built.kernels["k"].spill_bytes == 0
    assert "wgmma" in text
    assert "serialized" not in built.log
    assert "mma.sync" not in text
    assert ("ldmatrix" in text) == (dtype == "f32")


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_one_barrier_per_chunk(stages):
    func = lowered(gemm("f16", 256, 256, 1024), 128, 128, 64, 4, 1, stages, engine="wgmma")
    loop = next(op for op in func.body.ops if op.body is not None and op["extent"] == 16)
    assert [op.name for op in walk(loop.body)].count("thread.barrier") == 1


@pytest.mark.parametrize(("stages", "pending"), [(2, 1), (3, 1), (4, 2)])
def test_tiles_are_not_overwritten_while_they_are_read(stages, pending):
    """A loop that waits for too few multiplications is refused."""
    func = lowered(gemm("f16", 256, 256, 1024), 128, 128, 64, 4, 1, stages, engine="wgmma")

    def patient(op):
        if op.body is not None:
            return replace(op, body=op.body.with_ops(tuple(map(patient, op.body.ops))))
        return op.with_attrs(pending=pending) if op.name == "thread.warpgroup_wait" else op

    impatient = func.with_body(func.body.with_ops(tuple(map(patient, func.body.ops))))
    context = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
    with pytest.raises(InputError, match="warpgroup_wait"):
        run_pipeline(Module("m", (impatient,)), Pipeline.parse("place-barriers"), context)


def test_tiles_must_be_published():
    func = lowered(gemm("f16", 256, 256, 1024), 128, 128, 64, 4, 1, 3, engine="wgmma")

    def silent(ops):
        kept = (op for op in ops if op.name != "thread.fence_async_proxy")
        return tuple(
            op if op.body is None else replace(op, body=op.body.with_ops(silent(op.body.ops))) for op in kept
        )

    unpublished = func.with_body(func.body.with_ops(silent(func.body.ops)))
    context = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
    with pytest.raises(InputError, match="fence_async_proxy"):
        run_pipeline(Module("m", (unpublished,)), Pipeline.parse("place-barriers"), context)


@pytest.mark.parametrize(
    ("kernel", "tiles", "message"),
    [
        (gemm("f16", 64, 64, 64), (64, 32, 64, 2, 2, 3), "multiples of 4 warps"),
        (gemm("f16", 64, 64, 256), (64, 32, 128, 4, 1, 3), "32, 64 or 128 bytes"),
        (gemm("f32", 64, 64, 64, "cm"), (64, 32, 32, 4, 1, 3), "rows of the channel"),
    ],
)
def test_impossible_parameters_are_refused(kernel, tiles, message):
    with pytest.raises(InputError, match=message):
        lowered(kernel, *tiles, engine="wgmma")


def test_other_devices_have_none():
    func = lowered(gemm("f16", 64, 64, 64), 64, 32, 64, 4, 1, 3, engine="wgmma")
    with pytest.raises(UnsupportedError):
        emit_opencl(func)
