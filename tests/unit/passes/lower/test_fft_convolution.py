"""FFT convolution: tiles of every shape, dense and depthwise, accuracy, legality, tilings."""

import numpy as np
import pytest
from conv_algorithms import conv_module, errors, tensors_of

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir.graph_ops.convolution import convolution_of
from tilewright.passes.estimation import ESTIMATOR
from tilewright.passes.lower.rules.fft_tiling import LENGTHS, fft_tiling, work

CASES = {
    "dense-asymmetric": ((2, 5, 19, 28), (7, 5, 5, 7), {"padding": (1, 0, 2, 1)}),
    "nhwc": (
        (1, 12, 17, 3),
        (5, 5, 3, 4),
        {"padding": (2, 2, 2, 2), "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    "depthwise": ((1, 6, 20, 20), (6, 1, 7, 7), {"padding": (3, 3, 3, 3), "groups": 6}),
    "depthwise-twice": ((1, 3, 13, 15), (6, 1, 5, 5), {"padding": (2, 2, 2, 2), "groups": 3}),
    "multiplier-in-kernel": ((1, 3, 13, 15), (3, 2, 5, 5), {"padding": (2, 2, 2, 2), "groups": 3}),
    "as-large-as-the-image": ((1, 4, 32, 32), (4, 1, 31, 31), {"padding": (15,) * 4, "groups": 4}),
}


def geometry(module):
    (op,) = (o for o in module.main.body.ops if o.name == "graph.conv2d")
    data, weight = (v.tensor for v in op.operands)
    return op, convolution_of(data, weight, dict(op.attrs), 2)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_definition(case):
    data, kernel, attrs = CASES[case]
    module = conv_module(data, kernel, "fft", constant=True, **attrs)
    assert max(errors(module, compiled=case in ("nhwc", "depthwise-twice"))) < 1.2e-6


def test_a_kernel_that_is_an_input():
    assert max(errors(conv_module((1, 2, 12, 12), (3, 2, 5, 5), "fft"))) < 1.2e-6


def test_other_dtypes():
    assert errors(conv_module((1, 4, 16, 17), (2, 4, 5, 5), "fft", dtype="f64"))[0] < 5e-15
    assert errors(conv_module((1, 4, 13, 13), (2, 4, 5, 5), "fft", dtype="f16"))[0] < 6e-4


def test_accuracy_over_many_channels():
    """As docs/algorithms.md states it: errors like those of direct sums, here of 256 x 49 products."""
    attrs = {"constant": True, "padding": (3, 3, 3, 3)}
    fft = errors(conv_module((1, 256, 20, 20), (8, 256, 7, 7), "fft", **attrs))[0]
    direct = errors(conv_module((1, 256, 20, 20), (8, 256, 7, 7), "direct", **attrs))[0]
    assert fft < 1e-6
    assert fft < 4 * direct


def test_constant_kernels_are_transformed_at_compile_time():
    module = conv_module((1, 4, 12, 12), (3, 4, 5, 5), "fft", constant=True)
    names = [op.name for op in tensors_of(module).main.body.ops]
    assert names.count("tensor.contract") == 5
    assert names.count("tensor.map") == 1


def test_tilings_cover_the_result_and_are_the_cheapest():
    _, g = geometry(conv_module((1, 8, 40, 23), (8, 8, 5, 9), "fft", padding=(2, 0, 2, 3)))
    t = fft_tiling(g)
    for length, valid, count, w in zip(t.length, t.valid, t.count, g.windows, strict=True):
        assert length in LENGTHS
        assert valid == length - w.kernel + 1
        assert (count - 1) * valid < w.count <= count * valid
    for other in ((8, 10), (16, 16), (64, 64)):
        valid = tuple(n - w.kernel + 1 for n, w in zip(other, g.windows, strict=True))
        count = tuple(-(-w.count // v) for w, v in zip(g.windows, valid, strict=True))
        assert work(g, t) <= work(g, type(t)(other, valid, count))


@pytest.mark.parametrize(
    ("data", "kernel", "attrs", "reason"),
    [
        ((1, 4, 9, 9), (2, 4, 5, 5), {"strides": (2, 2)}, "strides"),
        ((1, 4, 9, 9), (4, 2, 5, 5), {"groups": 2}, "group"),
        ((1, 4, 9, 9), (2, 4, 1, 5), {}, "1x5"),
        ((1, 1, 70, 70), (1, 1, 65, 65), {}, "65x65"),
    ],
)
def test_where_it_is_not_legal(data, kernel, attrs, reason):
    with pytest.raises(tw.UnsupportedError, match=reason):
        tensors_of(conv_module(data, kernel, "fft", **attrs))


def test_the_model_prefers_it_for_large_dense_kernels_only():
    hardware = resolve_target("cuda:sm_90a").hardware

    def ratio(data, kernel, groups, pad):
        op, _ = geometry(conv_module(data, kernel, "direct", padding=(pad,) * 4, groups=groups))
        times = [
            ESTIMATOR.algorithm_cost(op, a, hardware, constant_weight=True).seconds for a in ("fft", "direct")
        ]
        return times[0] / times[1]

    assert ratio((1, 128, 56, 56), (128, 128, 7, 7), 1, 3) < 0.6
    assert ratio((1, 96, 56, 56), (96, 1, 7, 7), 96, 3) > 1


def test_lines_of_zeros_stay_zero():
    """Circular wrap-around would leak the far edge of a tile into this result."""
    module = conv_module((1, 1, 24, 24), (1, 1, 5, 5), "fft", padding=(2, 2, 2, 2))
    x = np.zeros((1, 1, 24, 24), np.float32)
    x[0, 0, 23, 23] = 1
    w = np.ones((1, 1, 5, 5), np.float32)
    (got,) = tw.interpret(tensors_of(module), x, w)
    (wanted,) = tw.interpret(module, x, w)
    np.testing.assert_allclose(got, wanted, atol=1e-6)
