"""Sums over images for every tap of a window: gradients by the weights of depthwise convolutions."""

import numpy as np
import pytest
from decision_samples import template, with_template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Pairs, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.tap_sums.view import tap_sums


def sums(*, pixels=(3, 4, 6), channels=8, window=(3, 2), stride=1, dilation=1, cut=False, init=0.0):
    """Products of two images summed for each tap, rounded and in another order; `cut`: by rows of pixels."""
    (n, h, w), (r, s) = pixels, window
    high, wide = h * stride + dilation, w * stride + dilation
    red, row = (f"n: {n}, x: {w}", "part") if cut else (f"n: {n}, y: {h}, x: {w}", "y")
    parts, at = (f"part: {h}, ", "part, ") if cut else ("", "")
    shape = f"{h}, {r}, {s}, {channels}" if cut else f"{r}, {s}, {channels}"
    out = f"{channels}, {h}, {r}, {s}" if cut else f"{channels}, {r}, {s}"
    return f"""module @net {{
      tensor.func @main(
        %g: f32[{n}, {h}, {w}, {channels}], %x: f32[{n}, {high}, {wide}, {channels}]) -> f32[{out}] {{
        %0 = tensor.reduce(%g, %x, par = ({parts}r: {r}, s: {s}, k: {channels}), red = ({red}),
          reads = [[n, {row}, x, k],
                   [n, {row} * {stride} + r * {dilation} - 1, x * {stride} + s * {dilation} - 1, k]],
          fill = [none, 0.0], init = [{init}]) : f32[{shape}] {{
          ^(%a: f32, %b: f32, %acc: f32) %m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m) }}
        %1 = tensor.map(%0, par = (k: {channels}, {parts}r: {r}, s: {s}),
          reads = [[{at}r, s, k]]) : f32[{out}] {{
          ^(%a: f32) %h = scalar.const(value = 0.5, dtype = "f32") : f32 %m = scalar.mul(%a, %h) : f32
          scalar.yield(%m) }}
        tensor.return(%1)
      }}
    }}"""


def forced(text, params, target):
    """The program with parameters of `tap_sums` forced on its kernel."""
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    module = run_pipeline(parse(text), Pipeline.parse("fuse-kernels, choose-parameters"), context)
    named = dict(zip(("threads_per_group", "groups_per_block", "vec", "outputs"), params, strict=True))
    kernels = (f if f.name == "main" else with_template(f, "tap_sums", Pairs.of(named)) for f in module.funcs)
    return module.with_funcs(tuple(kernels))


def agrees(text, params, target):
    module = forced(text, params, target)
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        np.testing.assert_allclose(exe(*inputs)[0], wanted, rtol=1e-5, atol=1e-5)


CASES = {
    "plain": ({}, (4, 2, 4, 3)),
    "one thread a group": ({"init": 0.25}, (1, 3, 2, 2)),
    "strides": ({"stride": 2, "window": (3, 3)}, (8, 1, 8, 6)),
    "dilation": ({"dilation": 2}, (2, 4, 1, 1)),
    "apart": ({"stride": 3, "window": (2, 2)}, (4, 1, 4, 2)),
    "by rows": ({"cut": True, "pixels": (3, 5, 4)}, (2, 4, 4, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_agree_on_opencl(case):
    shape, params = CASES[case]
    agrees(sums(**shape), params, "opencl")


@pytest.mark.emulator
@pytest.mark.parametrize("case", ["plain", "by rows"])
def test_sums_agree_on_cuda_text(case):
    shape, params = CASES[case]
    agrees(sums(**shape), params, "emulator")


@pytest.mark.parametrize(
    ("params", "message"), [((4, 2, 3, 3), "vec to divide 8"), ((4, 2, 4, 4), "outputs to divide 6"),
                            ((3, 2, 4, 3), "threads_per_group to be a power of two")],
)  # fmt: skip
def test_impossible_parameters_are_named(params, message):
    with pytest.raises(Exception, match=message) as failure:
        tw.compile(forced(sums(), params, "opencl"), target="opencl")
    assert isinstance(failure.value, InputError)


def test_depthwise_gradients_take_them_by_the_model():
    image, weights = "bf16[64, 14, 14, 96]", "bf16[96, 3, 3, 1]"
    text = f"""module @m {{ graph.func @main(%g: {image}, %x: {image}) -> {weights} {{
      %y = graph.conv2d_weight_grad(%g, %x, kernel_size = [3, 3], padding = [1, 1, 1, 1], groups = 96,
        data_layout = "NHWC", kernel_layout = "OHWI") : {weights} graph.return(%y) }} }}"""
    resolved = resolve_target("cuda:sm_90a")
    module = lower(parse(text), resolved).thread
    assert "tap_sums" in {template(f) for f in module.funcs if f.name != "main"}


def test_what_is_read_per_tap_and_what_once():
    kernel = next(f for f in forced(sums(stride=2), (4, 2, 4, 3), "opencl").funcs if f.name != "main")
    view = tap_sums(kernel)
    assert (view.slid, view.tap, view.others, view.stride, view.dilation) == ("x", "s", ("r",), 2, 1)
    assert (view.plain, view.windowed, view.taps, view.span(3)) == ((0,), (1,), 6, 6)


def test_a_window_may_move_across_rows_alone():
    """Images that no window moves along are slid over in the other direction."""
    text = sums(channels=8).replace("* 1 + s * 1 - 1", "* 1")
    view = tap_sums(outlined(text))
    assert view is not None
    assert (view.slid, view.tap, view.others) == ("y", "r", ())


def test_sums_without_a_window_are_refused():
    text = sums(channels=8).replace("* 1 + s * 1 - 1", "* 1").replace("* 1 + r * 1 - 1", "* 1")
    assert tap_sums(outlined(text)) is None


def outlined(text):
    module = run_pipeline(parse(text), Pipeline.parse("fuse-kernels"), PassContext(target="opencl"))
    return next(f for f in module.funcs if f.name != "main")
