"""Tensor-core kernels on the emulator against float64: products, convolutions, epilogues, prologues."""

import numpy as np
import pytest
from decision_samples import with_template
from matrix_samples import (
    CAST,
    assert_close,
    contraction,
    convolution,
    convolved,
    emulated,
    gemm,
    inputs_of,
    lowered,
    matrix_parameters,
    product,
    source,
    view_of,
)

from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import InputError, walk
from tilewright.passes.kernels.matrix.lowering import lower_matrix

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize(
    ("dtype", "orders", "size", "tiles"),
    [
        ("f16", ("mc", "nc"), (70, 100, 72), (64, 64, 32, 2, 2, 3)),
        ("bf16", ("mc", "cn"), (70, 104, 40), (32, 64, 16, 1, 2, 4)),
        ("f16", ("cm", "cn"), (72, 56, 200), (64, 32, 64, 2, 1, 2)),
        ("f32", ("mc", "nc"), (33, 40, 76), (32, 32, 16, 1, 2, 3)),
        ("f32", ("cm", "cn"), (36, 40, 50), (16, 32, 8, 1, 1, 5)),
        ("f16", ("mc", "nc"), (17, 9, 23), (16, 16, 32, 1, 1, 2)),  # nothing is aligned: element by element
        ("f32", ("cm", "nc"), (17, 9, 23), (16, 16, 16, 1, 1, 2)),
        ("f16", ("mc", "nc"), (130, 40, 32), (128, 32, 32, 4, 1, 3)),  # one chunk
        ("f16", ("mc", "nc"), (40, 24, 64), (32, 24, 32, 1, 1, 4)),  # an odd number of tiles of columns
        ("f16", ("mc", "nc"), (200, 104, 72), (96, 48, 32, 2, 1, 3)),  # tiles of three times a power of two
        ("f16", ("mc", "nc"), (100, 200, 72), (96, 96, 16, 2, 2, 2)),
        ("f32", ("mc", "nc"), (200, 100, 20), (192, 96, 8, 4, 2, 2)),
        ("bf16", ("cm", "nc"), (192, 104, 40), (192, 48, 16, 4, 1, 2)),
        ("f32", ("cm", "cn"), (96, 104, 40), (96, 48, 16, 1, 1, 2)),
    ],
)
def test_products(dtype, orders, size, tiles):
    kernel = gemm(dtype, *size, *orders)
    a, b = inputs_of(kernel)
    first, second = a.astype(np.float64), b.astype(np.float64)
    want = (first.T if orders[0] == "cm" else first) @ (second if orders[1] == "cn" else second.T)
    assert_close(emulated(kernel, [a, b], *tiles), want, dtype)


@pytest.mark.parametrize(
    ("dtype", "orders", "tiles", "sets"),
    [
        ("f16", ("mc", "nc"), (32, 32, 64, 1, 2, 3), 2),
        ("bf16", ("mc", "cn"), (32, 16, 64, 2, 1, 2), 4),
        ("f16", ("cm", "cn"), (16, 32, 128, 1, 1, 2), 8),
        ("f32", ("mc", "nc"), (32, 32, 64, 1, 1, 3), 4),
    ],
)
def test_sets_of_warps_share_the_sum(dtype, orders, tiles, sets):
    """Each set multiplies a part of every chunk; no barrier more, and the sum's start counts once."""
    kernel = gemm(dtype, 40, 56, 200, *orders)
    op = contraction(kernel)
    started = [o.with_attrs(init=(3.0,)) if o is op else o for o in kernel.body.ops]
    kernel = kernel.with_body(kernel.body.with_ops(tuple(started)))
    a, b = inputs_of(kernel)
    first, second = a.astype(np.float64), b.astype(np.float64)
    want = 3 + (first.T if orders[0] == "cm" else first) @ (second if orders[1] == "cn" else second.T)
    assert_close(emulated(kernel, [a, b], *tiles, warps_k=sets), want, dtype)
    one, many = (lowered(kernel, *tiles, warps_k=n) for n in (1, sets))
    assert many["block"] == sets * one["block"]
    barriers = [sum(op.name == "thread.barrier" for op in walk(f.body)) for f in (one, many)]
    assert barriers[1] <= barriers[0]


def test_batches_and_raster():
    kernel = gemm("f16", 64, 48, 32, batch=3)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    assert_close(emulated(kernel, [a, b], 16, 16, 32, 1, 1, 2, raster=2), want, "f16")


@pytest.mark.parametrize(
    ("dtype", "shape", "tiles"),
    [
        ("f16", (2, (7, 7), 24, 40, 3, 1, "NHWC"), (32, 64, 16, 1, 2, 3)),
        ("bf16", (1, (9, 8), 32, 16, 3, 2, "NHWC"), (16, 16, 32, 1, 1, 4)),
        ("f32", (1, (6, 6), 20, 12, 3, 1, "NHWC"), (32, 16, 8, 2, 1, 3)),
        ("f16", (3, (4, 4), 16, 24, 1, 1, "NCHW"), (32, 32, 16, 2, 1, 2)),
        ("f32", (1, (6, 8), 12, 16, 3, 1, "NCHW"), (32, 16, 16, 1, 1, 2)),
        ("f16", (1, (7, 7), 48, 24, 3, 1, "NHWC"), (16, 16, 64, 1, 1, 3, 4)),
        ("bf16", (1, (6, 8), 48, 16, 1, 1, "NCHW"), (32, 16, 32, 2, 1, 2, 2)),
        ("f16", (1, (5, 6), 5, 16, 3, 1, "NCHW"), (16, 16, 16, 1, 1, 2)),
    ],
)
def test_convolutions_with_epilogues(dtype, shape, tiles):
    kernel = convolution(dtype, *shape)
    inputs = inputs_of(kernel)
    sets = tiles[6] if len(tiles) > 6 else 1
    assert_close(emulated(kernel, inputs, *tiles[:6], warps_k=sets), convolved(*inputs, *shape[4:]), dtype)


def test_groups_are_a_batch():
    kernel = product(
        "f16", ("2, 5, 3, 16", "3, 24, 16"), "n: 2, x: 5, g: 3, k: 24", "c: 16", ("[n, x, g, c]", "[g, k, c]")
    )
    x, w = inputs_of(kernel)
    want = np.einsum("nxgc,gkc->nxgk", x.astype(np.float64), w.astype(np.float64))
    assert_close(emulated(kernel, [x, w], 16, 32, 16, 1, 2, 2), want, "f16")


MOVED = """%x = tensor.map(%a, par = (m: 24, c: 64), reads = [[c // 16, m, c % 16]]) : f16[24, 64] {
  ^(%1: f16)
  scalar.yield(%1)
}"""


@pytest.mark.parametrize(
    ("before", "given", "copies"), [(MOVED, "f16[4, 24, 16]", 8), (CAST, "f32[24, 64]", 0)]
)
def test_what_comes_before(before, given, copies):
    """Moved elements are still copied asynchronously; computed ones pass through registers."""
    kernel = product(
        "f16", ("24, 64", "40, 64"), "m: 24, n: 40", "c: 64", ("[m, c]", "[n, c]"), before=before, given=given
    )
    a, w = inputs_of(kernel)
    first = a.astype(np.float16).astype(np.float64)
    first = first.transpose(1, 0, 2).reshape(24, 64) if before is MOVED else first
    assert view_of(kernel).copy_elements(0) == copies
    assert_close(emulated(kernel, [a, w], 16, 32, 16, 1, 1, 2), first @ w.astype(np.float64).T, "f16")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "tiles", "sets"),
    [
        ("bf16", (128, 256, 64, 2, 4, 3), 1),
        ("f16", (128, 128, 32, 2, 2, 4), 1),
        ("f16", (64, 128, 128, 1, 2, 3), 4),
        ("f32", (128, 128, 16, 2, 2, 4), 1),
        ("f32", (32, 64, 64, 1, 2, 4), 4),
    ],
)
def test_large_tiles_stay_in_registers(dtype, tiles, sets, arch):
    text = source(lowered(gemm(dtype, 4096, 4096, 4096), *tiles, raster=8, warps_k=sets))
    assert compile_cuda(text, arch=arch).kernels["k"].spill_bytes == 0
    assert all(name in text for name in ("cp.async", "ldmatrix", "mma.sync"))


def test_loop_has_one_barrier_and_whole_copies():
    func = lowered(gemm("f16", 256, 256, 512), 128, 128, 32, 2, 2, 4)
    loops = (op for op in func.body.ops if op.body is not None)
    loop = max(loops, key=lambda op: sum(1 for _ in walk(op.body)))
    inside = [op.name for op in walk(loop.body)]
    assert inside.count("thread.barrier") == 1
    assert {op["lanes"] for op in walk(func.body) if op.name == "thread.copy_async"} == {8}
    assert "thread.load" not in inside


def test_impossible_parameters_are_refused():
    kernel = gemm("f16", 64, 64, 64)
    for plan, message in (
        (matrix_parameters(48, 64, 32, 2, 2, 3, "c"), "multiples of 16 x 8 x 16"),
        (matrix_parameters(64, 64, 32, 2, 2, 3, "c", warps_k=4), "for 2 x 2 x 4 warps"),
        (matrix_parameters(64, 64, 32, 2, 2, 9, "c"), "at most 6 stages"),
        (matrix_parameters(64, 64, 32, 2, 2, 3, "m"), "expected channel c, got m"),
    ):
        with pytest.raises(InputError, match=message):
            lower_matrix(with_template(kernel, "matrix", plan))
