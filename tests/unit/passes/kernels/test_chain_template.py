"""The chain template: every pattern with forced tiles, odd sizes, strides and padding; what it refuses."""

import chain_samples as samples
import pytest

from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, UnsupportedError, parse
from tilewright.passes.framework.invariants import find_invariant
from tilewright.passes.kernels.chain.stages import chain_of, stages_of

CASES = {
    "attention": (samples.attention(3, 21, 33, 20, 24), {"b": 1, "m": 8, "e": 24}),
    "depthwise-pointwise": (samples.depthwise_pointwise(12, 8, 13, 11, 1), {"n": 1, "k": 8, "y": 4, "x": 8}),
    "strided": (samples.depthwise_pointwise(12, 8, 13, 11, 2), {"n": 1, "k": 4, "y": 4, "x": 4}),
    "convolutions": (samples.two_convolutions(5, 6, 7, 9, 10), {"n": 1, "k": 4, "y": 4, "x": 5}),
    "convolution-pool": (samples.convolution_pool(5, 6, 9, 10), {"n": 1, "k": 4, "y": 4, "x": 5}),
    "squeeze-excite": (samples.squeeze_excite(20, 6, 7, 5), {"n": 2, "k": 8, "y": 1, "x": 1}),
    "products": (samples.two_products(19, 20, 24, 12), {"m": 8, "k": 12}),
    "vector": (samples.two_products(1, 40, 24, 12), {"m": 1, "k": 4}),
}
NAMES = list(CASES)


def reference(kernel: str):
    return samples.called(kernel)


@pytest.mark.parametrize("name", ["attention", "depthwise-pointwise", "convolutions", "products"])
def test_on_opencl(name):
    kernel, block = CASES[name]
    assert samples.error(samples.chained(kernel, block, 32, 1), reference(kernel), "opencl") < 2e-6


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["attention", "strided", "convolution-pool", "squeeze-excite", "vector"])
def test_cuda_text_in_the_emulator(name):
    kernel, block = CASES[name]
    assert samples.error(samples.chained(kernel, block, 64, 32), reference(kernel), "emulator") < 2e-6


@pytest.mark.emulator
def test_halves_are_accumulated_in_float32():
    kernel = samples.halves(19, 64, 24, 16)
    module = samples.chained(kernel, {"m": 8, "k": 16}, 64, 32)
    assert samples.error(module, reference(kernel), "emulator") < 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_cuda_text_compiles_without_spills_and_with_all_barriers(name):
    kernel, block = CASES[name]
    lowered = lower(samples.chained(kernel, block, 128, 32), resolve_target("cuda:sm_90a"))
    (source,) = lowered.sources.values()
    (resources,) = compile_cuda(source.source, arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0
    assert find_invariant("barriers-placed")(lowered.thread) == []


def function(kernel: str):
    return parse("module @m { " + kernel + " }").funcs[0]


def test_halos_and_whole_dimensions_follow_from_the_reads():
    chain = chain_of(function(samples.two_convolutions(5, 6, 7, 9, 10)), {"n": 1, "k": 4, "y": 4, "x": 5})
    (kept,) = chain.kept.values()
    assert [s.extent for s in kept.box] == [1, 6, 6, 7]  # all channels, one row and column around the tile
    assert [s.constant for s in kept.box] == [0, 0, -1, -1]
    assert kept.fill == 0.0


def test_stages_of_attention():
    stages = stages_of(function(samples.attention(3, 21, 33, 20, 24)))
    names = [s.anchor.name.removeprefix("tensor.") for s in stages]
    assert names == ["contract", "reduce", "map", "reduce", "map", "contract"]
    assert len(stages[0].members) == 3  # scale and mask join the first product


def test_results_that_blocks_do_not_partition_are_refused():
    kernel = function(samples.two_convolutions(5, 6, 7, 9, 10, "%2, %1"))
    with pytest.raises(UnsupportedError, match=r"partition|same result"):
        chain_of(kernel, {"n": 1, "k": 7, "y": 4, "x": 5})
    with pytest.raises(UnsupportedError, match=r"partition|same result"):
        chain_of(kernel, {"n": 1, "k": 4, "y": 9, "x": 10})


def test_readers_that_want_different_values_outside_are_refused():
    add = samples.ADD
    text = f"""tensor.func @chain(%in: f32[8]) -> f32[8] {{
    %0 = tensor.reduce(%in, par = (i: 8), red = (j: 8), reads = [[j]]) : f32[8] {samples.ADD}
    %1 = tensor.window(%0, par = (i: 8), red = (r: 3), reads = [[i + r - 1]], fill = [0.0]) : f32[8] {add}
    %2 = tensor.window(%0, par = (i: 8), red = (r: 3), reads = [[i + r - 1]], fill = [1.0]) : f32[8] {add}
    %3 = tensor.map(%1, %2, par = (i: 8), reads = [[i], [i]]) : f32[8] {add}
    tensor.return(%3)
  }}"""
    with pytest.raises(UnsupportedError, match="values outside"):
        chain_of(function(text), {"i": 4})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": {"m": 8}}, "a tile for each of"),
        ({"threads": 2048}, "at most 1024 threads"),
        ({"lanes": 3}, "power of two"),
    ],
)
def test_impossible_parameters_are_named(change, words):
    given = {"block": {"m": 8, "k": 12}, "threads": 64, "lanes": 1, **change}
    module = samples.chained(samples.two_products(19, 20, 24, 12), **given)
    with pytest.raises(InputError, match=words):
        lower(module, resolve_target("opencl"))
