"""erf and erfc of CUDA kernels: near float64 everywhere, within their ranges, nan where the argument is."""

import numpy as np
import pytest
from codegen_samples import run
from scipy.special import erf, erfc

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import parse

pytestmark = pytest.mark.emulator

KERNEL = """module @m { thread.func @k(%x: f32[4096], %y: f32[4096], grid = [16, 1, 1], block = 256) {
  %0 = thread.load(%x, at = [bid.x * 256 + tid]) : f32
  %1 = scalar.erf(%0) : f32
  thread.store(%1, %y, at = [bid.x * 256 + tid])
  thread.return()
} }"""


def arguments():
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-38, 3.85, 1e30, -3e38], np.float32)
    return np.concatenate([special, np.linspace(-6, 6, 4096 - len(special), dtype=np.float32)])


def test_within_eight_units_in_the_last_place():
    x = arguments()
    (got,) = run(parse(KERNEL).funcs[0], "emulator", [x]).values()
    want = erf(x.astype(np.float64))
    ulp = np.spacing(np.abs(want).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - want) / ulp) <= 8
    assert np.nanmax(np.abs(got)) == 1.0
    assert (np.signbit(got) == np.signbit(x))[~np.isnan(x)].all()


def test_the_complement_keeps_its_small_values():
    x = arguments()
    (got,) = run(parse(KERNEL.replace("erf", "erfc")).funcs[0], "emulator", [x]).values()
    want = erfc(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - want)) <= 1.6e-7
    assert np.nanmin(got) == 0.0
    assert np.nanmax(got) == 2.0
    middle = np.abs(x) < 3
    assert np.max(np.abs(got - want)[middle] / want[middle]) < 1e-3


@pytest.mark.parametrize("function", ["erf", "erfc"])
def test_it_compiles(function):
    source = emit_cuda(parse(KERNEL.replace("erf", function)).funcs[0]).source
    assert compile_cuda(source).kernels["k"].spill_bytes == 0


GELU = KERNEL.replace(
    "%1 = scalar.erf(%0) : f32",
    "SCALE\n  %1 = scalar.narrow_gelu(%0, %2) : f32",
)


@pytest.mark.parametrize("scale", [1.0, 0.9998931827716024, 1.5])
def test_a_narrow_gelu_is_within_a_fifth_of_a_rounding_to_f16(scale):
    kernel = GELU.replace("SCALE", f'%2 = scalar.const(value = {scale}, dtype = "f32") : f32')
    x = arguments()
    (got,) = run(parse(kernel).funcs[0], "emulator", [x]).values()
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        want = wide * (0.5 * erfc(wide * (-scale / np.sqrt(2))))
    want[np.isneginf(x)] = 0.0  # the limit, where the product is 0 times infinity
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    error = np.abs(got[finite] - want[finite]) / np.maximum(np.abs(want[finite]), 2.0**-14)
    assert error.max() <= 1e-4 <= np.finfo(np.float16).eps / 2 / 4


def test_a_narrow_gelu_compiles():
    kernel = GELU.replace("SCALE", '%2 = scalar.const(value = 1.0, dtype = "f32") : f32')
    assert compile_cuda(emit_cuda(parse(kernel).funcs[0]).source).kernels["k"].spill_bytes == 0
