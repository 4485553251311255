"""Products of signed bytes on tensor cores: exact in 32 bits, in every layout, at every edge."""

import numpy as np
import pytest
from byte_samples import bytes_of, gemm, product, requantised
from codegen_samples import run
from matrix_samples import lowered, source, view_of

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Constants
from tilewright.passes.kernels.matrix.bound import tensor_fma
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.view import matrix_view


def emulated(kernel, inputs, *tiles, **more):
    (got,) = run(lowered(kernel, *tiles, **more), "emulator", inputs).values()
    return got


#: m, n, k, how the factors lie, tiles m, n, k, warps m, n, stages; sets of warps
CASES = {
    "even": (64, 64, 128, "mc", "nc", (64, 64, 64, 2, 2, 3), 1),
    "edges": (70, 41, 96, "mc", "nc", (32, 32, 32, 2, 1, 2), 1),
    "short channel": (33, 24, 20, "mc", "nc", (32, 16, 32, 1, 1, 2), 1),
    "odd channel": (17, 24, 45, "mc", "nc", (16, 16, 32, 1, 1, 2), 1),
    "columns": (48, 64, 64, "mc", "cn", (16, 32, 64, 1, 2, 3), 1),
    "both turned": (32, 48, 40, "cm", "cn", (32, 16, 32, 2, 1, 2), 1),
    "two sets": (32, 32, 256, "mc", "nc", (32, 32, 64, 1, 1, 2), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact(name):
    m, n, k, first, second, tiles, sets = CASES[name]
    kernel = gemm(m, n, k, first, second, init=3 if name == "two sets" else 0)
    inputs = bytes_of(kernel, extreme=name == "even")
    x, w = (a.astype(np.int64) for a in inputs)
    exact = (x if first == "mc" else x.T) @ (w.T if second == "nc" else w) + (3 if name == "two sets" else 0)
    got = emulated(kernel, inputs, *tiles, warps_k=sets)
    assert got.dtype == np.int32
    assert np.array_equal(got, exact)


def test_convolutions_take_taps_and_zeros_outside():
    reads = ["[n, y + r - 1, q + s - 1, c]", "[k, r, s, c]"]
    kernel = product(
        ["2, 6, 5, 32", "24, 3, 3, 32"],
        "n: 2, y: 6, q: 5, k: 24",
        "c: 32, r: 3, s: 3",
        reads,
        fill="[0, none]",
    )
    x, w = bytes_of(kernel)
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    exact = np.einsum("nyqcrs,krsc->nyqk", windows, w.astype(np.int64))
    assert np.array_equal(emulated(kernel, [x, w], 32, 16, 32, 2, 1, 3), exact)


def test_requantisation_is_a_map_of_the_sums():
    kernel = gemm(40, 32, 64, result="i8", epilogue=requantised("m: 40, n: 32", "m, n"))
    x, w = bytes_of(kernel)
    sums = (x.astype(np.int64) @ w.T.astype(np.int64)).astype(np.float32)
    exact = np.clip(np.round(sums * np.float32(0.001)), -128, 127).astype(np.int8)
    assert np.array_equal(emulated(kernel, [x, w], 32, 32, 64, 2, 1, 2), exact)


def test_rows_of_the_channel_are_loaded_by_ldmatrix_and_others_byte_by_byte():
    rows = source(lowered(gemm(64, 64, 128), 64, 64, 64, 2, 2, 3))
    assert "m16n8k32.row.col.s32.s8.s8.s32" in rows
    assert rows.count("tw_ldmatrix_x4(") > 0
    columns = source(lowered(gemm(64, 64, 128, "mc", "cn"), 64, 64, 64, 2, 2, 3))
    assert "unsigned char" in columns
    for text in (rows, columns):
        assert compile_cuda(text, arch="sm_80").kernels
    with pytest.raises(Exception, match="sm_80 or newer"):
        compile_cuda(rows, arch="sm_75")


def test_sums_in_other_types_stay_on_lanes():
    for sums in ("i32", "i64", "f32"):
        kernel = gemm(32, 32, 32, sums=sums)
        assert (matrix_view(kernel, kernel.body.ops[0]) is not None) == (sums == "i32")


def test_the_rate_is_that_of_bytes():
    kernel = gemm(64, 64, 128)
    problem = matrix_problem(kernel, view_of(kernel))
    assert problem.element_bytes == 1
    rates = {name: tensor_fma(problem, load_hardware(name)) for name in ("h100", "a100", "RTX 2080", "v100")}
    assert rates == {"h100": 4096, "a100": 2048, "RTX 2080": 0, "v100": 0}


def test_a_network_of_bytes_takes_them_by_itself():
    text = """module @q { graph.func @main(%x: i8[256, 512]) -> i32[256, 256] {
      %w = graph.constant(name = "w") : i8[256, 512]
      %0 = graph.dense(%x, %w, out_dtype = "i32") : i32[256, 256]
      graph.return(%0) } }"""
    w = np.random.default_rng(0).integers(-128, 128, (256, 512)).astype(np.int8)
    module = tw.parse(text).with_constants(Constants({"w": w}))
    with tw.compile(module, "cuda:sm_90a", progress=False) as exe:
        assert ["mma_i8" in k.source for k in exe.plan.kernels] == [True]
    with tw.compile(module, "cuda:sm_75", progress=False) as exe:
        assert ["mma_i8" in k.source for k in exe.plan.kernels] == [False]
