"""Products of 8-bit floats by warpgroups, with roles and without, and by warps: errors of promoted sums."""

from dataclasses import replace

import numpy as np
import pytest
from byte_samples import gemm
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, THREAD, lowered, matrix_parameters, view_of

from tests.samples.sass import faults, machine_code, nvdisasm
from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.compile_many import compile_cached
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import Func, InputError, Module, walk
from tilewright.ir.types import converted
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.lowering import lower_matrix

ENGINE = {"copiers": 4, "transport": "engine"}
E4M3 = ("f8e4m3", "f8e4m3")


def product(m: int, n: int, k: int, **more: object) -> Func:
    return gemm(m, n, k, sums="f32", dtypes=E4M3, init="0.0", **more)


def by_roles(kernel: Func, *tiles: int, **more: int | str) -> Func:
    """The thread-level kernel with a role that copies."""
    plan = matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma")
    thread = lower_matrix(with_template(kernel, "matrix", replace(plan, **(ENGINE | more))))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def drawn(kernel: Func, *, positive: bool = False) -> list[np.ndarray]:
    """Random factors of all magnitudes that the dtype has."""
    rng = np.random.default_rng(11)
    out = []
    for p in kernel.params:
        x = rng.standard_normal(p.tensor.shape) * 2.0 ** rng.integers(-3, 4, p.tensor.shape)
        out.append(converted((np.abs(x) if positive else x).astype(np.float32), "f8e4m3"))
    return out


def error(kernel: Func, thread: Func, inputs: list[np.ndarray]) -> float:
    """The largest error of a result, of the sum of the magnitudes of its products."""
    (got,) = run(thread, "emulator", inputs, seed=1).values()
    x, w = (a.astype(np.float64) for a in inputs)
    assert got.dtype == np.float32
    return float((np.abs(got - x @ w.T) / (np.abs(x) @ np.abs(w.T))).max())


#: four instructions of a chunk cut 33 terms each off 14 bits below the largest, half of that on average, of a
#: sum that grows; float32 additions of chunks are far below
MOST = 4 * 33 * 2.0**-13 / 4


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("size", "tiles", "more"),
    [
        ((70, 48, 400), (64, 32, 128, 4, 1, 3), {}),
        ((130, 80, 272), (128, 48, 128, 8, 1, 3), {"blocks": 2}),
        ((70, 100, 416), (64, 32, 128, 4, 1, 3), {"blocks": 1, "teams": 2}),
        ((60, 64, 800), (64, 64, 128, 4, 1, 3), {"parts": 3}),
        ((190, 64, 400), (64, 64, 128, 4, 1, 3), {"blocks": 2, "parts": 2, "left_over": True}),
        ((64, 40, 256), (64, 40, 128, 4, 1, 2), {}),
    ],
)
def test_products_by_roles(size, tiles, more):
    kernel = product(*size)
    func = by_roles(kernel, *tiles, **more)
    assert "thread.add_fragment" in [op.name for op in walk(func.body)]
    assert error(kernel, func, drawn(kernel, positive=True)) < MOST


@pytest.mark.emulator
@pytest.mark.parametrize(
    "tiles", [(64, 32, 64, 4, 1, 2), (128, 48, 128, 4, 1, 3), (64, 32, 128, 4, 2, 4)], ids=str
)
def test_products_without_roles(tiles):
    kernel = product(70, 48, 288)
    assert error(kernel, lowered(kernel, *tiles, engine="wgmma"), drawn(kernel)) < MOST


@pytest.mark.emulator
@pytest.mark.parametrize(("first", "second"), [("mc", "nc"), ("mc", "cn")])
def test_products_by_warps_are_those_of_float32(first, second):
    kernel = gemm(40, 48, 96, first, second, sums="f32", dtypes=E4M3, init="0.0")
    thread = lowered(kernel, 32, 32, 32, 2, 1, 2)
    inputs = drawn(kernel)
    (got,) = run(thread, "emulator", inputs, seed=1).values()
    x, w = (a.astype(np.float64) for a in inputs)
    exact = x @ (w.T if second == "nc" else w)
    assert np.abs(got - exact).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.emulator
def test_what_is_no_number_stays_none_and_exact_sums_are_exact():
    kernel = product(64, 64, 256)
    x, w = drawn(kernel)
    x[3, 5] = np.nan
    func = by_roles(kernel, 64, 64, 128, 4, 1, 2)
    (got,) = run(func, "emulator", [x, w], seed=1).values()
    assert np.isnan(got[3]).all()
    assert np.isfinite(np.delete(got, 3, axis=0)).all()
    rng = np.random.default_rng(1)
    whole = [converted(rng.integers(-3, 4, a.shape), "f8e4m3") for a in (x, w)]
    (got,) = run(func, "emulator", whole, seed=1).values()
    assert np.array_equal(got, whole[0].astype(np.float64) @ whole[1].astype(np.float64).T)


SCALED = """%y = tensor.map(%p, par = (m: M, n: N), reads = [[m, n]]) : f8e4m3[M, N] {
  ^(%1: f32)
  %2 = scalar.const(value = 0.037, dtype = "f32") : f32
  %3 = scalar.mul(%1, %2) : f32
  %4 = scalar.cast(%3, dtype = "f8e4m3") : f8e4m3
  scalar.yield(%4)
}"""


def requantised(m: int, n: int, k: int, init: str = "0.0") -> Func:
    """Results that are scaled and rounded to what the next product reads."""
    epilogue = SCALED.replace("M", str(m)).replace("N", str(n))
    return gemm(m, n, k, sums="f32", dtypes=E4M3, init=init, result="f8e4m3", epilogue=epilogue)


@pytest.mark.emulator
@pytest.mark.parametrize("more", [{}, {"stores": "engine"}, {"parts": 2}], ids=str)
def test_results_are_stored_as_8_bit_floats(more):
    kernel = requantised(72, 64, 256, init="-750.0")  # sums do not start at zero
    x, w = drawn(kernel)
    (got,) = run(by_roles(kernel, 64, 64, 128, 4, 1, 2, **more), "emulator", [x, w], seed=1).values()
    exact = ((x.astype(np.float64) @ w.astype(np.float64).T - 750) * 0.037).astype(np.float32)
    wanted = converted(exact, "f8e4m3")
    steps = got.view(np.uint8).astype(int) - wanted.view(np.uint8).astype(int)
    assert np.abs(steps)[np.abs(exact) > 2**-6].max() <= 1  # a neighbour where the sum lay near a tie
    assert (steps != 0).mean() < 0.02


STAYS = {"blocks": 132}
LARGE = {
    "two warpgroups": (product(4096, 4096, 4096), (128, 192, 128, 8, 1, 4), STAYS),
    "two teams": (requantised(8192, 768, 768), (64, 192, 128, 4, 1, 4), STAYS | {"teams": 2}),
    "two blocks": (product(50176, 512, 256), (64, 128, 128, 4, 1, 3), {"blocks": 264, "resident": 2}),
    "parts": (product(768, 768, 8192), (128, 160, 128, 8, 1, 5), {"parts": 4}),
}


@pytest.mark.parametrize("name", LARGE)
def test_machine_code(name, tmp_path):
    kernel, tiles, more = LARGE[name]
    func = by_roles(kernel, *tiles, **more)
    text = emit_cuda(func).source
    assert f"wgmma.mma_async.sync.aligned.m64n{tiles[1]}k32.f32.e4m3.e4m3" in text
    binary = compile_cached(text)
    assert not binary.serialised
    assert binary.kernels["k"].spill_bytes == 0
    if nvdisasm() is not None:
        assert faults(machine_code(binary, tmp_path), binary.log) == []


def test_products_by_warps_compile():
    for arch in ("sm_89", "sm_90a"):
        source = emit_cuda(lowered(product(64, 64, 128), 32, 32, 32, 2, 1, 2)).source
        assert compile_cuda(source, arch=arch).kernels


@pytest.mark.parametrize("orders", [("mc", "cn"), ("cm", "nc")])
def test_columns_of_the_channel_are_refused(orders):
    with pytest.raises(InputError, match="of 8 or 32 bits in rows of the channel"):
        by_roles(gemm(64, 80, 256, *orders, sums="f32", dtypes=E4M3, init="0.0"), 64, 32, 128, 4, 1, 2)
