"""Window kernels whose threads compute boxes of outputs: every target, borders, long windows, vectors."""

from math import prod

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.costmodel import WindowParameters, WindowProblem, load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Sizes, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import with_decision
from tilewright.passes.kernels.window.space import choose_tiles

_MAX = "{ ^(%a: T, %acc: T) %m = scalar.max(%a, %acc) : T scalar.yield(%m) }"
_FMA = "{ ^(%a: f32, %b: f32, %acc: f32) %m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m) }"
_RELU = (
    '{ ^(%a: f32, %c: f32) %t = scalar.add(%a, %c) : f32 %z = scalar.const(value = 0.0, dtype = "f32") : f32 '
    "%r = scalar.max(%t, %z) : f32 scalar.yield(%r) }"
)
POOL = f"""module @net {{
  tensor.func @main(%x: f32[2, 15, 13, 12]) -> f32[2, 8, 7, 12] {{
    %0 = tensor.window(%x, par = (n: 2, y: 8, x: 7, k: 12), red = (r: 3, s: 3),
      reads = [[n, y * 2 + r - 1, x * 2 + s - 1, k]], fill = [-inf], init = [-inf]) : f32[2, 8, 7, 12] {_MAX}
    tensor.return(%0)
  }}
}}""".replace("T", "f32")
DEPTHWISE = f"""module @net {{
  tensor.func @main(%x: f32[2, 9, 11, 8], %w: f32[3, 3, 8], %bias: f32[8]) -> f32[2, 9, 11, 8] {{
    %0 = tensor.window(%x, %w, par = (n: 2, y: 9, x: 11, k: 8), red = (r: 3, s: 3),
      reads = [[n, y + r - 1, x + s - 1, k], [r, s, k]], fill = [0.0, none]) : f32[2, 9, 11, 8] {_FMA}
    %1 = tensor.map(%0, %bias, par = (n: 2, y: 9, x: 11, k: 8),
      reads = [[n, y, x, k], [k]]) : f32[2, 9, 11, 8] {_RELU}
    tensor.return(%1)
  }}
}}"""
#: weights as files have them, an output's taps side by side
APART = DEPTHWISE.replace("%w: f32[3, 3, 8]", "%w: f32[8, 3, 3]").replace("[r, s, k]", "[k, r, s]")
FIRST = f"""module @net {{
  tensor.func @main(%x: f32[2, 3, 9, 11], %w: f32[3, 3, 3]) -> f32[2, 3, 9, 11] {{
    %0 = tensor.window(%x, %w, par = (n: 2, k: 3, y: 9, x: 11), red = (r: 3, s: 3),
      reads = [[n, k, y + r - 1, x + s - 1], [k, r, s]], fill = [0.0, none]) : f32[2, 3, 9, 11] {_FMA}
    tensor.return(%0)
  }}
}}"""
#: a window without padding, so large that its rows become a loop
WIDE = f"""module @net {{
  tensor.func @main(%x: f32[1, 40, 20, 4]) -> f32[1, 7, 5, 4] {{
    %0 = tensor.window(%x, par = (n: 1, y: 7, x: 5, k: 4), red = (r: 34, s: 16),
      reads = [[n, y + r, x + s, k]], init = [-inf]) : f32[1, 7, 5, 4] {_MAX}
    tensor.return(%0)
  }}
}}""".replace("T", "f32")
CASES = [
    ("pool-box", POOL, {"y": 2, "x": 2, "k": 4}),
    ("pool-column", POOL, {"y": 4, "k": 2}),
    ("pool-alone", POOL, {"n": 2}),
    ("depthwise-box", DEPTHWISE, {"y": 2, "x": 4, "k": 4}),
    ("depthwise-column", DEPTHWISE, {"y": 8, "k": 8}),
    ("weights-apart", APART, {"y": 2, "x": 2, "k": 4}),
    ("first-column", FIRST, {"y": 4}),
    ("wide", WIDE, {"y": 2, "x": 2, "k": 4}),
]


def kernels(text, outputs, target):
    """The program with a box of outputs per thread forced on its kernel."""
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    module = run_pipeline(parse(text), Pipeline.parse("fuse-kernels, choose-parameters"), context)
    params = WindowParameters(64, Sizes(outputs))
    forced = (f if f.name == "main" else with_decision(f, parameters=params) for f in module.funcs)
    return module.with_funcs(tuple(forced))


def inputs_of(module, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]


@pytest.mark.emulator
@pytest.mark.parametrize(("name", "text", "outputs"), CASES, ids=[c[0] for c in CASES])
def test_against_the_interpreter(name, text, outputs):
    agrees(text, outputs, "emulator")


@pytest.mark.parametrize("name", ["pool-box", "depthwise-box", "weights-apart"])
def test_on_opencl(name):
    agrees(*next(c[1:] for c in CASES if c[0] == name), "opencl")


def agrees(text, outputs, target):
    module = kernels(text, outputs, target)
    inputs = inputs_of(module)
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        (got,) = exe(*inputs)
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def source_of(text, outputs):
    lowered = lower(kernels(text, outputs, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for s in lowered.sources.values())
    return source


def test_weights_apart_leave_images_and_results_in_vectors():
    """Weights are gathered into registers by single elements before the lanes of everything else."""
    source = source_of(APART, {"y": 2, "x": 2, "k": 4})
    assert source.count("&x[") == source.count("*(const float4*)&x[") == 16
    assert source.count("&out[") == source.count("*(float4*)&out[") == 4
    assert source.index("= w[") < source.index("&x[")


@pytest.mark.parametrize(("name", "text", "outputs"), CASES, ids=[c[0] for c in CASES])
def test_no_spills(name, text, outputs):
    (resources,) = compile_cuda(source_of(text, outputs), arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0


def test_what_windows_share_is_read_once_as_vectors():
    source = source_of(DEPTHWISE, {"y": 2, "x": 4, "k": 4})
    assert source.count("*(const float4*)&x[") == (2 + 2) * (4 + 2)
    assert source.count("*(const float4*)&w[") == 9
    assert source.count("*(float4*)&") == 2 * 4
    assert source.count("for (") == 0


def test_half_precision_moves_sixteen_bytes():
    text = DEPTHWISE.replace("f32[", "f16[").replace(
        "^(%a: f32, %b: f32, %acc: f32)", "^(%a: f16, %b: f16, %acc: f16)"
    )
    text = text.replace(": f32 scalar", ": f16 scalar").replace("^(%a: f32, %c: f32)", "^(%a: f16, %c: f16)")
    text = text.replace('"f32") : f32', '"f16") : f16').replace("%c) : f32", "%c) : f16")
    source = source_of(text, {"y": 2, "x": 2, "k": 8})
    assert source.count("*(const uint4*)&x[") == 16
    assert source.count("*(uint4*)&") == 4


def test_vectors_must_divide():
    with pytest.raises(InputError, match="divide 12"):
        source_of(POOL, {"k": 8})


@pytest.mark.parametrize("record", ["cuda:sm_90a", "cuda:sm_80", "cuda:sm_75"])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_choices_fit(record, element_bytes):
    hardware = load_hardware(record)
    for width, stride, lanes in ((112, 2, 64), (7, 1, 960), (35, 1, 3), (1, 1, 8), (56, 1, 0)):
        problem = WindowProblem(
            64 * max(1, lanes), width, width, 3, 3, stride, stride, 1, 1, (1, 1, 1, 1),
            width * stride, width * stride, 0, element_bytes,
        )  # fmt: skip
        outputs = choose_tiles(problem, hardware, lanes).parameters.outputs
        assert outputs["inner"] * element_bytes <= 16
        assert outputs["inner"] == 1 if lanes == 0 else lanes % outputs["inner"] == 0
        assert prod(outputs.values()) <= 32


def test_large_channels_last_tensors_reuse_rows_and_columns():
    problem = WindowProblem(64 * 64, 112, 112, 3, 3, 1, 1, 1, 1, (1, 1, 1, 1), 112, 112, 36 * 64, 2)
    outputs = choose_tiles(problem, load_hardware("cuda:sm_90a"), 64).parameters.outputs
    assert outputs["columns"] >= 2
    assert outputs["rows"] >= 2
