"""Sums that share a kernel have rows of one shape: one with a dimension more, of one point, has its own."""

import numpy as np

import tilewright as tw

TEXT = """module @m { tensor.func @main(%x: f32[256]) -> f32[], f32[1] {
  %a = tensor.reduce(%x, par = (), red = (i: 256), reads = [[i]], init = [0.0]) : f32[] {
    ^(%v: f32, %s: f32)
    %t = scalar.add(%v, %s) : f32
    scalar.yield(%t)
  }
  %b = tensor.reduce(%x, par = (j: 1), red = (i: 256), reads = [[i]], init = [0.0]) : f32[1] {
    ^(%v: f32, %s: f32)
    %t = scalar.fma(%v, %v, %s) : f32
    scalar.yield(%t)
  }
  tensor.return(%a, %b) } }"""


def test_a_dimension_of_one_point_is_no_reason_to_fail():
    x = np.random.default_rng(0).standard_normal(256, np.float32)
    with tw.compile(tw.parse(TEXT), "opencl", progress=False) as exe:
        total, squares = exe(x)
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=1e-4)
    np.testing.assert_allclose(squares, [np.square(x, dtype=np.float64).sum()], rtol=1e-4)
