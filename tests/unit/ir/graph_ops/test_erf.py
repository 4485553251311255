"""erf of CUDA kernels: near float64 everywhere, odd, at most one, and nan where its argument is."""

import numpy as np
import pytest
from codegen_samples import run
from scipy.special import erf

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


def test_within_eight_units_in_the_last_place():
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-38, 3.85], np.float32)
    x = np.concatenate([special, np.linspace(-6, 6, 4096 - len(special), dtype=np.float32)])
    (got,) = run(parse(KERNEL).funcs[0], "emulator", [x]).values()
    want = erf(x.astype(np.float64))
    ulp = np.spacing(np.abs(want).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    assert np.nanmax(np.abs(got - want) / ulp) <= 8
    assert np.nanmax(np.abs(got)) == 1.0
    assert (np.signbit(got) == np.signbit(x))[~np.isnan(x)].all()


def test_it_compiles():
    assert compile_cuda(emit_cuda(parse(KERNEL).funcs[0]).source).kernels["k"].spill_bytes == 0
