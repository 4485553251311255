"""Conversions to and from 8-bit floats: every code, every rounding, on OpenCL and the CUDA emulator."""

import numpy as np
import pytest
from codegen_samples import SAMPLED_DEVICES, kernel, run

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir.types import converted, storage_dtype

CODES = np.arange(256, dtype=np.uint8).view(storage_dtype("f8e4m3"))


def numbers() -> np.ndarray:
    """All codes' numbers, what lies between neighbours and just beside that, limits, and random ones."""
    exact = CODES[np.isfinite(CODES.astype(np.float32))].astype(np.float32)
    between = (np.sort(exact)[1:] + np.sort(exact)[:-1]) / 2
    near = [np.nextafter(between, np.float32(s * np.inf)) for s in (-1, 1)]
    special = [448.1, 463.9, 464, 464.1, 480, 1e30, np.inf, np.nan, 0, 2**-10, 2**-10.5, 2**-9.4, 1e-40]
    limits = np.array([*special, *(-np.array(special))], np.float32)
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal(3000) * 2.0 ** rng.integers(-14, 12, 3000)
    found = np.concatenate([exact, between, *near, limits, drawn.astype(np.float32)])
    return np.resize(found, -(-len(found) // 64) * 64).astype(np.float32)


def cast(count: int, source: str, target: str, lanes: int):
    step = f"tid * {lanes}"
    many = "" if lanes == 1 else f"x{lanes}"
    body = f"""thread.loop(var = i, extent = {count // (32 * lanes)}) {{
      %v = thread.load(%x, at = [i * {32 * lanes} + {step}], lanes = {lanes}) : {source}{many}
      %c = scalar.cast(%v, dtype = "{target}") : {target}{many}
      thread.store(%c, %y, at = [i * {32 * lanes} + {step}])
    }}"""
    return kernel(body, {"x": f"{source}[{count}]", "y": f"{target}[{count}]"})


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Bit by bit, any nan being as good as another."""
    nan = np.isnan(expected.astype(np.float64))
    width = f"u{got.dtype.itemsize}"
    wide_nan = np.isnan(got.astype(np.float64))
    return np.array_equal(nan, wide_nan) and np.array_equal(got.view(width)[~nan], expected.view(width)[~nan])


def test_conversion_rounds_to_the_nearest_and_saturates():
    exact = np.sort(CODES[np.isfinite(CODES.astype(np.float32))].astype(np.float64))
    x = numbers()
    got = converted(x, "f8e4m3").astype(np.float64)
    finite = x[np.isfinite(x)].astype(np.float64)
    distance = np.abs(np.clip(finite, -448, 448)[:, None] - exact).min(axis=1)
    assert np.array_equal(np.abs(got[np.isfinite(x)] - np.clip(finite, -448, 448)), distance)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    ties = np.array([464, 1e30, np.inf, -np.inf, 1.0625, 1.1875, 2**-10, 3 * 2**-10, -(2**-10)], np.float32)
    wanted = [448, 448, 448, -448, 1.0, 1.25, 0, 2**-8, -0.0]
    assert same(converted(ties, "f8e4m3"), np.array(wanted, np.float32).astype(storage_dtype("f8e4m3")))
    assert np.array_equal(converted(np.array([3, 1000, -17]), "f8e4m3").astype(int), [3, 448, -16])


@pytest.mark.emulator
@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
@pytest.mark.parametrize("target", SAMPLED_DEVICES)
def test_conversions(target, lanes):
    x = numbers()
    (y,) = run(cast(len(x), "f32", "f8e4m3", lanes), target, [x]).values()
    assert same(y, converted(x, "f8e4m3"))
    codes = np.resize(CODES, 512)
    for dtype in ("f32", "f16", "i32"):
        codes = codes if dtype != "i32" else np.nan_to_num(codes.astype(np.float32)).astype(codes.dtype)
        (wide,) = run(cast(512, "f8e4m3", dtype, lanes), target, [codes]).values()
        assert same(wide, codes.astype(storage_dtype(dtype)))


def test_conversions_compile_where_there_are_instructions_and_where_there_are_none():
    for arch in ("sm_80", "sm_90a"):
        for func in (cast(512, "f32", "f8e4m3", 16), cast(512, "f8e4m3", "f32", 16)):
            assert compile_cuda(emit_cuda(func).source, arch=arch).kernels
