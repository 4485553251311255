"""Convolutions of images with few channels, on tensor cores: what is rewritten, and the numbers."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline


def convolution(c=3, side=17, kernel=3, stride=2, pad=1, filters=16, dtype="f16"):
    out = (side + 2 * pad - kernel) // stride + 1
    return parse(f"""module @m {{
  graph.func @main(%x: {dtype}[2, {c}, {side}, {side}], %w: {dtype}[{filters}, {c}, {kernel}, {kernel}])
      -> {dtype}[2, {filters}, {out}, {out}] {{
    %0 = graph.conv2d(%x, %w, strides = [{stride}, {stride}], padding = [{pad}, {pad}, {pad}, {pad}])
        : {dtype}[2, {filters}, {out}, {out}]
    %1 = graph.relu(%0) : {dtype}[2, {filters}, {out}, {out}]
    graph.return(%1)
  }}
}}
""")


def lowered(module, target="cuda:sm_90a", precision=""):
    resolved = resolve_target(target)
    context = PassContext(str(resolved), resolved.hardware, verify_each=True, reproducer_folder=None)
    text = f"infer-shapes, graph-to-tensor, {precision}fold-channels"
    return run_pipeline(module, Pipeline.parse(text), context)


def sums(module):
    return [dims(op, "red") for op in module.main.body.ops if op.name == "tensor.contract"]


CASES = [
    {},
    {"kernel": 7, "pad": 3, "side": 20},
    {"kernel": 5, "pad": 2, "stride": 1, "c": 1},
    {"c": 4, "pad": 0},
    {"c": 6, "stride": 1},
]


@pytest.mark.parametrize("case", CASES, ids=["3x3", "7x7", "gray", "four", "six"])
def test_rows_of_taps_are_summed_at_once(case):
    module = convolution(**case)
    out = lowered(module)
    (red,) = sums(out)
    assert len(red) == 2
    assert list(red.values())[1] % 16 == 0
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(t.shape).astype(np.float16) for t in module.input_types]
    wanted = tw.interpret(module, *xs, precision="fp64")[0]
    np.testing.assert_allclose(tw.interpret(out, *xs, precision="fp64")[0], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "target", "precision"),
    [
        (convolution(c=8), "cuda:sm_90a", ""),
        (convolution(), "cuda:sm_75", ""),
        (convolution(), "opencl", ""),
        (convolution(dtype="f32"), "cuda:sm_90a", ""),
        (convolution(c=4, dtype="f32"), "cuda:sm_90a", "allow-tf32, "),
        (convolution(kernel=1, pad=0), "cuda:sm_90a", ""),
    ],
    ids=["enough", "old", "cpu", "fp32", "one-copy", "no-window"],
)
def test_what_stays(module, target, precision):
    (red,) = sums(lowered(module, target, precision))
    assert len(red) == 3 or set(red.values()) == {1, 3}


@pytest.mark.parametrize(("dtype", "precision"), [("f16", "fp16"), ("f32", "tf32")])
def test_kernels_on_the_emulator(dtype, precision):
    module = convolution(kernel=7, pad=3, side=20, dtype=dtype)
    rng = np.random.default_rng(1)
    kind = np.float16 if dtype == "f16" else np.float32
    xs = [rng.standard_normal(t.shape).astype(kind) for t in module.input_types]
    wanted = tw.interpret(module, *xs, precision="fp64")[0]
    with tw.compile(module, target="emulator:sm_90a", precision=precision, progress=False) as exe:
        assert "matrix" in {k["template"] for k in exe.report()["kernels"]}
        got = exe(*xs)[0]
    assert np.abs(got.astype(np.float64) - wanted).max() <= 2e-2 * np.abs(wanted).max()
