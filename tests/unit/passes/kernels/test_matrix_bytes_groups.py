"""Products of bytes by warpgroups, with roles and without: exact, of signed and unsigned factors."""

from dataclasses import replace

import numpy as np
import pytest
from byte_samples import bytes_of, gemm, product, requantised
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, THREAD, lowered, matrix_parameters, view_of

from tests.samples.sass import faults, machine_code, nvdisasm
from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.compile_many import compile_cached
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import Func, InputError, Module, walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.lowering import lower_matrix

ENGINE = {"copiers": 4, "transport": "engine"}


def by_roles(kernel: Func, *tiles: int, **more: int | str) -> Func:
    """The thread-level kernel with a role that copies."""
    plan = matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma")
    thread = lower_matrix(with_template(kernel, "matrix", replace(plan, **(ENGINE | more))))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def emulated(func: Func, inputs: list[np.ndarray]) -> np.ndarray:
    (got,) = run(func, "emulator", inputs, seed=1).values()
    return got


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("size", "tiles", "more"),
    [
        ((70, 48, 400), (64, 32, 128, 4, 1, 3), {}),
        ((70, 40, 192), (64, 32, 64, 4, 1, 2), {"blocks": 3, "transport": "threads"}),
        ((130, 80, 272), (128, 48, 128, 8, 1, 3), {"blocks": 2}),
        ((70, 100, 160), (64, 32, 64, 4, 1, 3), {"blocks": 1, "teams": 2}),
        ((60, 64, 800), (64, 64, 128, 4, 1, 3), {"parts": 3}),
        ((190, 64, 400), (64, 64, 128, 4, 1, 3), {"blocks": 2, "parts": 2, "left_over": True}),
    ],
)
def test_products_by_roles(size, tiles, more):
    kernel = gemm(*size)
    inputs = bytes_of(kernel)
    x, w = (a.astype(np.int64) for a in inputs)
    got = emulated(by_roles(kernel, *tiles, **more), inputs)
    assert got.dtype == np.int32
    assert np.array_equal(got, x @ w.T)


@pytest.mark.emulator
@pytest.mark.parametrize("dtypes", [("u8", "i8"), ("u8", "u8"), ("i8", "u8")], ids="-".join)
def test_factors_may_be_unsigned(dtypes):
    kernel = gemm(60, 32, 160, dtypes=dtypes)
    for extreme in (False, True):
        inputs = bytes_of(kernel, extreme=extreme)
        x, w = (a.astype(np.int64) for a in inputs)
        assert np.array_equal(emulated(by_roles(kernel, 64, 32, 128, 4, 1, 2), inputs), x @ w.T)
        assert np.array_equal(emulated(lowered(kernel, 32, 32, 64, 2, 1, 2), inputs), x @ w.T)
    for arch, func in (
        ("sm_90a", by_roles(kernel, 64, 32, 128, 4, 1, 2)),
        ("sm_80", lowered(kernel, 32, 32, 64, 2, 1, 2)),
    ):
        assert compile_cuda(emit_cuda(func).source, arch=arch).kernels


@pytest.mark.emulator
@pytest.mark.parametrize(
    "tiles", [(64, 32, 64, 4, 1, 2), (128, 48, 128, 4, 1, 3), (64, 32, 128, 4, 2, 4)], ids=str
)
def test_products_without_roles(tiles):
    kernel = gemm(70, 48, 288)
    inputs = bytes_of(kernel, extreme=True)
    x, w = (a.astype(np.int64) for a in inputs)
    assert np.array_equal(emulated(lowered(kernel, *tiles, engine="wgmma"), inputs), x @ w.T)


@pytest.mark.emulator
@pytest.mark.parametrize("more", [{}, {"stores": "engine"}, {"parts": 2}], ids=str)
def test_requantisation_is_a_map_of_the_sums(more):
    kernel = gemm(72, 64, 256, result="i8", epilogue=requantised("m: 72, n: 64", "m, n"))
    x, w = bytes_of(kernel)
    sums = (x.astype(np.int64) @ w.T.astype(np.int64)).astype(np.float32)
    exact = np.clip(np.round(sums * np.float32(0.001)), -128, 127).astype(np.int8)
    assert np.array_equal(emulated(by_roles(kernel, 64, 64, 128, 4, 1, 2, **more), [x, w]), exact)


def convolution(n, hw, c, k, f, stride, **more) -> Func:
    """A convolution of [images, height, width, channels] with zeros around them."""
    h, w = hw
    pad, oh, ow = f // 2, (h - 1) // stride + 1, (w - 1) // stride + 1
    at = f"[n, y * {stride} + r - {pad}, q * {stride} + s - {pad}, c]"
    shapes, par = [f"{n}, {h}, {w}, {c}", f"{k}, {f}, {f}, {c}"], f"n: {n}, y: {oh}, q: {ow}, k: {k}"
    return product(shapes, par, f"c: {c}, r: {f}, s: {f}", [at, "[k, r, s, c]"], fill="[0, none]", **more)


@pytest.mark.emulator
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_come_by_the_copy_engine(stride):
    kernel = convolution(2, (9, 7), 160, 32, 3, stride)
    x, w = bytes_of(kernel)
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
    exact = np.einsum("nyqcrs,krsc->nyqk", windows, w.astype(np.int64))
    func = by_roles(kernel, 64, 32, 128, 4, 1, 3, blocks=1)
    assert "thread.copy_window" in [op.name for op in walk(func.body)]
    assert np.array_equal(emulated(func, [x, w]), exact)


STAYS = {"blocks": 132}
LARGE = {
    "128x256": (gemm(4096, 4096, 4096), (128, 256, 128, 8, 1, 4), STAYS),
    "two teams": (
        gemm(8192, 768, 768, result="i8", epilogue=requantised("m: 8192, n: 768", "m, n")),
        (128, 192, 128, 4, 1, 4),
        STAYS | {"teams": 2},
    ),
    "three warpgroups": (gemm(3072, 768, 8192), (192, 96, 128, 12, 1, 3), STAYS),
    "windows": (convolution(64, (28, 28), 128, 128, 3, 1), (128, 128, 128, 8, 1, 5), STAYS),
    "two blocks": (gemm(50176, 512, 256), (128, 128, 128, 4, 1, 3), {"blocks": 264, "resident": 2}),
    "parts": (gemm(768, 768, 8192), (128, 160, 128, 8, 1, 5), {"parts": 4}),
}


@pytest.mark.parametrize("name", LARGE)
def test_machine_code(name, tmp_path):
    kernel, tiles, more = LARGE[name]
    func = by_roles(kernel, *tiles, **more)
    text = emit_cuda(func).source
    assert f"wgmma.mma_async.sync.aligned.m64n{tiles[1]}k32.s32.s8.s8" in text
    binary = compile_cached(text)
    assert not binary.serialised
    assert binary.kernels["k"].spill_bytes == 0
    if nvdisasm() is not None:
        assert faults(machine_code(binary, tmp_path), binary.log) == []


@pytest.mark.parametrize(
    ("tiles", "orders", "message"),
    [
        ((64, 40, 128, 4, 1, 2), ("mc", "nc"), "multiples of 16 for warpgroups, got 40"),
        ((64, 32, 128, 4, 1, 2), ("mc", "cn"), "of 8 or 32 bits in rows of the channel"),
        ((64, 32, 128, 4, 1, 2), ("cm", "nc"), "of 8 or 32 bits in rows of the channel"),
    ],
)
def test_what_no_instruction_takes_is_refused(tiles, orders, message):
    with pytest.raises(InputError, match=message):
        by_roles(gemm(64, 80, 256, *orders), *tiles)
