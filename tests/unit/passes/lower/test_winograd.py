"""Winograd convolution: exact algebra, edges of every kind, accuracy, legality, and when it is chosen."""

import numpy as np
import pytest
from conv_algorithms import conv_module, errors, tensors_of

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.estimation import ESTIMATOR
from tilewright.passes.graph.products.choose_algorithms import ALTERNATIVES
from tilewright.passes.lower.rules import winograd
from tilewright.passes.lower.rules.winograd import F2, F4

H100 = resolve_target("cuda:sm_90a")
WINOGRAD = ("winograd2", "winograd4")
CASES = {
    "asymmetric-odd": ((2, 5, 9, 8), (7, 5, 3, 3), {"padding": (1, 0, 2, 1)}),
    "one-tile-cut": ((1, 4, 3, 3), (2, 4, 3, 3), {}),
    "wide-padding": ((1, 3, 4, 11), (2, 3, 3, 3), {"padding": (2, 2, 2, 2)}),
    "nhwc": (
        (1, 9, 10, 5),
        (3, 3, 5, 7),
        {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
}


def dense_matrix(transform, size):
    """The matrix a transform stands for."""
    out = np.zeros((transform.entries.shape[0], size))
    for row, entries in enumerate(transform.entries):
        for column, entry in zip(transform.columns(row), entries, strict=True):
            out[row, column] += entry
    return out


@pytest.mark.parametrize("scheme", [F2, F4], ids=["F2", "F4"])
def test_the_matrices_compute_a_correlation(scheme):
    t, m = scheme.t, scheme.m
    data, kernel = dense_matrix(scheme.data, t), dense_matrix(scheme.kernel, 3)
    result = dense_matrix(scheme.result, t)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(t), rng.standard_normal(3)
    wanted = [x[i : i + 3] @ w for i in range(m)]
    np.testing.assert_allclose(result @ ((kernel @ w) * (data @ x)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", WINOGRAD)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_definition(case, algorithm):
    data, kernel, attrs = CASES[case]
    module = conv_module(data, kernel, algorithm, constant=True, **attrs)
    compiled = (case, algorithm) in (("asymmetric-odd", "winograd2"), ("nhwc", "winograd4"))
    assert max(errors(module, compiled=compiled)) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_large_images_are_transformed_one_dimension_at_a_time(case, monkeypatch):
    monkeypatch.setattr(winograd, "TWO_STEPS_FROM", 1)
    data, kernel, attrs = CASES[case]
    module = conv_module(data, kernel, "winograd4", constant=True, **attrs)
    names = [op.name for op in tensors_of(module).main.body.ops]
    assert names.count("tensor.map") == 4
    assert max(errors(module, compiled=case == "one-tile-cut")) < 1e-5


@pytest.mark.parametrize("algorithm", WINOGRAD)
def test_other_dtypes(algorithm):
    assert errors(conv_module((1, 4, 7, 6), (2, 4, 3, 3), algorithm, dtype="f64"))[0] < 1e-14
    assert errors(conv_module((1, 4, 7, 6), (2, 4, 3, 3), algorithm, dtype="f16"))[0] < 6e-4


@pytest.mark.parametrize(
    ("algorithm", "bound", "least"), [("winograd2", 1.2e-6, 0), ("winograd4", 3e-5, 1e-6)]
)
def test_accuracy_over_many_channels(algorithm, bound, least):
    """As docs/algorithms.md states it; the error of F(4,3) lies above that of direct sums."""
    module = conv_module((1, 256, 14, 14), (16, 256, 3, 3), algorithm, constant=True, padding=(1, 1, 1, 1))
    error = errors(module)[0]
    assert least < error < bound


def test_constant_kernels_are_transformed_at_compile_time():
    module = conv_module((1, 8, 8, 8), (4, 8, 3, 3), "winograd2", constant=True, padding=(1, 1, 1, 1))
    tensors = tensors_of(module)
    names = [op.name for op in tensors.main.body.ops]
    assert names.count("tensor.map") == 2  # data in, result out
    assert names.count("tensor.contract") == 1
    assert "w" not in tensors.constants
    assert (4, 4, 8, 4) in [a.shape for a in tensors.constants.values()]


def test_what_follows_joins_the_output_transform():
    text = (
        "module @m { graph.func @main(%x: f32[1, 8, 8, 8], %w: f32[4, 8, 3, 3]) -> f32[1, 4, 8, 8] {"
        ' %y = graph.conv2d(%x, %w, padding = [1, 1, 1, 1], algorithm = "winograd2") : f32[1, 4, 8, 8]'
        " %z = graph.relu(%y) : f32[1, 4, 8, 8] graph.return(%z) } }"
    )
    lowered = lower(tw.parse(text), resolve_target("opencl"))
    assert len(lowered.sources) == 4  # kernel, data, products, result with relu


@pytest.mark.parametrize(
    ("kernel", "attrs", "reason"),
    [
        ((4, 8, 5, 5), {}, "3x3"),
        ((4, 8, 3, 3), {"strides": (2, 2)}, "strides"),
        ((4, 8, 3, 3), {"dilation": (2, 2)}, "dilation"),
        ((8, 4, 3, 3), {"groups": 2}, "group"),
    ],
)
def test_where_it_is_not_legal(kernel, attrs, reason):
    module = conv_module((1, 8, 9, 9), kernel, "winograd2", **attrs)
    with pytest.raises(tw.UnsupportedError, match=reason):
        tensors_of(module)
    direct = conv_module((1, 8, 9, 9), kernel, "direct", **attrs)
    with pytest.raises(tw.InputError, match=reason):
        chosen(direct, '{algorithm=winograd2, at="test:conv"}')
    func = chosen(direct, "{algorithm=winograd2}").main
    assert func["kept_direct"] == 1
    assert algorithms(func) == ["direct"]


def chosen(module, options=""):
    """The module after choose-algorithms for the H100."""
    context = PassContext(str(H100), H100.hardware, verify_each=True, reproducer_folder=None)
    return run_pipeline(module, Pipeline.parse(f"infer-shapes, choose-algorithms{options}"), context)


def algorithms(func):
    return [op["algorithm"] for op in func.body.ops if op.name == "graph.conv2d"]


def test_auto_needs_a_clear_gain():
    """Many channels on small images gain; few channels on large ones do not."""
    gains = conv_module((1, 512, 7, 7), (512, 512, 3, 3), "direct", constant=True, padding=(1, 1, 1, 1))
    stays = conv_module((1, 64, 224, 224), (64, 64, 3, 3), "direct", constant=True, padding=(1, 1, 1, 1))
    for module, wanted in ((gains, WINOGRAD), (stays, ("direct",))):
        (op,) = (o for o in module.main.body.ops if o.name == "graph.conv2d")
        seconds = {
            a: ESTIMATOR.algorithm_cost(op, a, H100.hardware, constant_weight=True).seconds
            for a in ("direct", *WINOGRAD)
        }
        clear = any(seconds[a] <= ALTERNATIVES[a] * seconds["direct"] for a in WINOGRAD)
        (name,) = algorithms(chosen(module, "{workspace=any}").main)
        assert name in wanted
        assert clear == (name != "direct")


def test_an_algorithm_can_be_forced_and_refused():
    module = conv_module((1, 128, 7, 7), (128, 128, 3, 3), "direct", constant=True, padding=(1, 1, 1, 1))
    assert algorithms(lower(module, H100, conv_algorithm="direct").graph.main) == ["direct"]
    assert algorithms(lower(module, H100, conv_algorithm="winograd4").graph.main) == ["winograd4"]
    assert algorithms(lower(module, H100, precision="tf32").graph.main) == ["direct"]
    with pytest.raises(tw.InputError, match="conv_algorithm"):
        tw.compile(module, target="opencl", conv_algorithm="winograd3")
    with pytest.raises(tw.InputError, match="nowhere"):
        chosen(module, '{algorithm=winograd2, at="nowhere"}')
