"""Norms that are applied to the results of products: as near float64 as before, whatever the mean is."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants
from tilewright.passes.tensor.sums.defer_norms import defer_norms

ALWAYS = defer_norms(when="always")
#: a norm that two products read, one of them through a view, and a residual
NET = """module @m {
  graph.func @main(%x: f32[48, 64]) -> f32[48, 96], f32[4, 12, 32], f32[48, 64] {
    %v = graph.constant(name = "v") : f32[64, 64]
    %m = graph.constant(name = "shift") : f32[64]
    %g = graph.constant(name = "gain") : f32[64]
    %b = graph.constant(name = "offset") : f32[64]
    %w = graph.constant(name = "w") : f32[96, 64]
    %t = graph.constant(name = "t") : f32[32, 64]
    %u = graph.constant(name = "u") : f32[64, 96]
    %0 = graph.dense(%x, %v) : f32[48, 64]
    %1 = graph.bias_add(%0, %m, axis = -1) : f32[48, 64]
    %2 = graph.layer_norm(%1, %g, %b, axis = -1, epsilon = 1e-5, center = true, scale = true) : f32[48, 64]
    %3 = graph.dense(%2, %w) : f32[48, 96]
    %4 = graph.relu(%3) : f32[48, 96]
    %5 = graph.reshape(%2, newshape = [4, 12, 64]) : f32[4, 12, 64]
    %6 = graph.dense(%5, %t) : f32[4, 12, 32]
    %7 = graph.dense(%4, %u) : f32[48, 64]
    %8 = graph.add(%7, %2) : f32[48, 64]
    graph.return(%4, %6, %8)
  }
}"""
SHAPES = {"v": (64, 64), "gain": (64,), "offset": (64,), "w": (96, 64), "t": (32, 64), "u": (64, 96)}


def network(mean=0.0, gain=1.0):
    rng = np.random.default_rng(5)
    arrays = {n: rng.standard_normal(s) / np.sqrt(s[-1]) for n, s in SHAPES.items()}
    arrays["shift"] = mean + rng.standard_normal(64)
    arrays["gain"] = gain * (1 + 4 * arrays["gain"])
    return tw.parse(NET).with_constants(Constants({n: a.astype(np.float32) for n, a in arrays.items()}))


def distance(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


def statistics_of(exe):
    """How many results of kernels are numbers of rows: what is left of norms that are deferred."""
    calls = [op for op in exe.artifact.module("tensor").main.body.ops if op.name == "tensor.call"]
    return sum(r.tensor.size == 48 for op in calls for r in op.results)


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("mean", [0.0, 3.0, 50.0, -400.0])
def test_results_are_as_near_as_without(precision, mean):
    module = network(mean)
    x = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    exact = tw.interpret(module, x, precision="fp64")
    apart = tw.compile(module, "emulator", precision=precision)
    deferred = tw.compile(module, "emulator", precision=precision, passes=[ALWAYS])
    assert (statistics_of(apart), statistics_of(deferred)) == (0, 2)
    for wanted, without, got in zip(exact, apart(x), deferred(x), strict=True):
        assert 0 < distance(got, wanted) <= 1.2 * distance(without, wanted)


@pytest.mark.parametrize(("gain", "taken"), [(1.0, 2), (1e-7, 0), (1e6, 0)])
def test_weights_that_would_leave_the_range_of_16_bits_stay(gain, taken):
    exe = tw.compile(network(gain=gain), "cuda:sm_90a:h200", precision="fp16", passes=[ALWAYS])
    assert statistics_of(exe) == taken


def test_float32_stays():
    assert statistics_of(tw.compile(network(), "cuda:sm_90a:h200", precision="tf32", passes=[ALWAYS])) == 0


#: the sum of two norms; a norm that is scaled for the next product; and scales of rows and columns
#: that are all constants, where one product sums over rows
SEVERAL = """module @m {
  graph.func @main(%x: f32[48, 64]) -> f32[48, 96], f32[48, 96], f32[48, 64], f32[64, 32], f32[48, 96] {
    %v = graph.constant(name = "v") : f32[64, 64]
    %g = graph.constant(name = "gain") : f32[64]
    %b = graph.constant(name = "offset") : f32[64]
    %w = graph.constant(name = "w") : f32[96, 64]
    %c = graph.constant(name = "column") : f32[48, 1]
    %t = graph.constant(name = "t") : f32[32, 48]
    %0 = graph.dense(%x, %v) : f32[48, 64]
    %1 = graph.dense(%0, %v) : f32[48, 64]
    %2 = graph.layer_norm(%0, %g, %b, axis = -1, epsilon = 1e-5, center = true, scale = true) : f32[48, 64]
    %3 = graph.layer_norm(%1, %g, %b, axis = -1, epsilon = 1e-5, center = true, scale = true) : f32[48, 64]
    %4 = graph.dense(%2, %w) : f32[48, 96]
    %5 = graph.dense(%3, %w) : f32[48, 96]
    %6 = graph.add(%2, %3) : f32[48, 64]
    %7 = graph.multiply(%0, %c) : f32[48, 64]
    %8 = graph.multiply(%7, %g) : f32[48, 64]
    %9 = graph.transpose(%8, axes = [1, 0]) : f32[64, 48]
    %10 = graph.dense(%9, %t) : f32[64, 32]
    %11 = graph.multiply(%2, %c) : f32[48, 64]
    %12 = graph.dense(%11, %w) : f32[48, 96]
    graph.return(%4, %5, %6, %10, %12)
  }
}"""


def test_norms_that_meet_give_what_they_gave():
    rng = np.random.default_rng(2)
    shapes = SHAPES | {"column": (48, 1), "t": (32, 48)}
    arrays = {n: rng.standard_normal(shapes[n]) for n in ("v", "gain", "offset", "w", "column", "t")}
    arrays = {n: (a / np.sqrt(a.shape[-1])).astype(np.float32) for n, a in arrays.items()}
    module = tw.parse(SEVERAL).with_constants(Constants(arrays))
    x = rng.standard_normal((48, 64)).astype(np.float32)
    exact = tw.interpret(module, x, precision="fp64")
    deferred = tw.compile(module, "emulator", precision="fp16", passes=[ALWAYS])
    assert statistics_of(deferred) >= 4
    for wanted, got in zip(exact, deferred(x), strict=True):
        assert distance(got, wanted) <= 2e-3
