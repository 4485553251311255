"""Gradient rules of products, convolutions, pooling, norms and folds, on instances that the fuzzer draws."""

import numpy as np
import pytest

import tilewright as tw
from tests.samples.gradient_rules import (
    OpInstance,
    check_adjoint,
    check_rule,
    cotangents_of,
    drawn_ops,
    vjp_module,
)
from tilewright.passes.graph.gradients.registry import GRADIENTS

RNG = np.random.default_rng(0)


def op(name, *shapes, **attrs):
    return OpInstance(name, tuple(RNG.standard_normal(s) for s in shapes), attrs)


#: drawers of all ops with a rule in the files of products, convolutions, pooling, norms, folds and resizing
DRAWERS = [
    "dense", "matmul", "batch_matmul", "bias_add", "einsum", "softmax", "log_softmax", "variance",
    "layer_norm", "group_norm", "instance_norm", "batch_norm", "l2_normalize", "max", "min", "sum", "mean",
    "conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose",
    "conv1d_weight_grad", "conv2d_weight_grad", "conv3d_weight_grad", "octave_conv2d",
    *(f"{kind}_pool{n}d" for n in (1, 2, 3) for kind in (
        "avg", "max", "global_avg", "global_max", "adaptive_avg", "adaptive_max")),
    *(f"avg_pool{n}d_grad" for n in (1, 2, 3)), "resize1d", "resize2d", "resize3d",
]  # fmt: skip


FAMILIES = ("linear", "einsum", "convolution", "pooling", "normalisation", "softmax", "reduction", "resizing")


def test_every_rule_of_these_files_is_drawn():
    rules = {n for n, rule in GRADIENTS.items() if rule.__module__.rpartition(".")[2] in FAMILIES}
    assert {f"graph.{d}" for d in DRAWERS} == rules


@pytest.mark.parametrize("drawer", DRAWERS)
def test_drawn_instances(drawer):
    first, *others = drawn_ops(drawer, 3)
    check_rule(first, second=True)
    for instance in others:
        check_rule(instance)


@pytest.mark.parametrize("drawer", DRAWERS)
def test_rules_agree_with_derived_adjoints(drawer):
    for instance in drawn_ops(drawer, 2, seed=50):
        check_adjoint(instance)


@pytest.mark.parametrize(
    "instance",
    [
        op("dense", (3,), (2, 3)),
        op("dense", (2, 2, 3), (4, 3)),
        op("matmul", (2, 3, 4), (4, 5)),
        op("matmul", (3, 4), (2, 5, 4), transpose_b=True),
        op("matmul", (2, 1, 4, 3), (3, 4, 2), transpose_a=True),
        op("matmul", (2, 1, 4, 3), (1, 3, 2, 4), transpose_a=True, transpose_b=True),
        op("batch_matmul", (1, 3, 4), (5, 4, 2)),
        op("einsum", (2, 3), (3, 4), (4, 2), equation="ab,bc,ca->a"),
        op("einsum", (2, 3), (2,), equation="ab,a->"),
        op("einsum", (1, 3), (2, 1), equation="ab,ab->a"),
        op("einsum", (2, 3), equation="ab->ba"),
        op("einsum", (2, 3), (1, 4), equation="ab,bc->ac"),
        op("max", (3, 4, 2), axis=(0, 2), keepdims=True),
        op("variance", (3, 4), (3, 1), axis=(1,), keepdims=False, unbiased=True),
        op("variance", (3, 4), (4,), axis=(1,), keepdims=False),
        op("batch_norm", (2, 3, 4), (3,), (3,), (3,), (3,), axis=1, scale=False, epsilon=6.0),
        op("layer_norm", (2, 3, 4), (3,), (3,), axis=1, center=False),
        op("group_norm", (2, 3, 4), (4,), (4,), num_groups=2, axis=2),
        op("instance_norm", (2, 3, 4), (4,), (4,), axis=2, scale=False),
        op("l2_normalize", (2, 3), eps=100.0, axis=(1,)),
        op("conv2d", (1, 3, 5, 6), (3, 2, 3, 3), groups=3, padding=(1, 0, 1, 1)),
        op("conv2d", (1, 5, 6, 3), (3, 3, 2, 3), groups=3, data_layout="NHWC", kernel_layout="HWIO",
           strides=(2, 2)),
        op("conv2d", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=(1, 1, 1, 1)),
        op("conv2d", (2, 4, 5, 5), (4, 1, 3, 3), groups=4, padding=(1, 1, 1, 1)),
        op("conv2d", (5, 6, 2, 1), (2, 3, 2, 3), data_layout="HWCN", kernel_layout="IHWO",
           padding=(3, 0, 0, 3)),
        op("conv2d", (1, 2, 6, 7), (3, 2, 3, 2), padding=(4, 4, 4, 4), dilation=(2, 1)),
        op("conv2d", (1, 2, 8, 9), (3, 2, 3, 3), strides=(3, 2), padding=(0, 1, 2, 0)),
        op("max_pool2d", (1, 2, 7, 6), pool_size=(3, 2), strides=(2, 1), padding=(1, 1, 0, 0),
           ceil_mode=True),
        op("avg_pool2d", (1, 7, 6, 2), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1),
           ceil_mode=True, layout="NHWC", count_include_pad=True),
        op("avg_pool1d", (1, 2, 9), pool_size=(2,), strides=(4,), dilation=(3,)),
        op("adaptive_avg_pool2d", (1, 2, 6, 8), output_size=(3, 2)),
        op("resize2d", (1, 2, 3, 4), size=(6, 8), method="nearest_neighbor",
           coordinate_transformation_mode="asymmetric"),
        op("resize2d", (1, 2, 5, 4), size=(3, 7), method="cubic", cubic_exclude=True),
        op("conv1d_transpose", (1, 2, 4), (2, 3, 3), strides=(2,), output_padding=(3,)),
        op("conv2d_transpose", (1, 4, 3, 3), (4, 3, 2, 2), groups=2, strides=(2, 1), padding=(1, 0, 0, 1)),
    ],
    ids=lambda i: i.name,
)  # fmt: skip
def test_forms_that_are_rarely_drawn(instance):
    check_rule(instance, second=True)


def test_ties_of_an_extreme_share_evenly():
    x = np.asarray([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    instance = OpInstance("max", (x,), {"axis": (1,), "keepdims": False})
    (dx,) = tw.interpret(vjp_module(instance), x, np.asarray([1.0, 3.0]), precision="fp64")
    np.testing.assert_array_equal(dx, [[0, 0.5, 0.5], [1, 1, 1]])


@pytest.mark.parametrize("name", ["max_pool2d", "adaptive_max_pool2d", "global_max_pool2d"])
def test_the_first_of_several_largest_elements_receives_all(name):
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 1:3], x[0, 0, 3, 0] = 1, np.nan
    attrs = {
        "max_pool2d": {"pool_size": (4, 2), "strides": (1, 2)},
        "adaptive_max_pool2d": {"output_size": (1, 2)},
        "global_max_pool2d": {},
    }[name]
    g = np.asarray([[[[2.0, 3.0]]]])[..., : 1 if "global" in name else 2]
    (dx,) = tw.interpret(vjp_module(OpInstance(name, (x,), attrs)), x, g, precision="fp64")
    expected = np.zeros_like(x)
    expected[0, 0, 3, 0] = 2
    if "global" not in name:
        expected[0, 0, 1, 2] = 3
    np.testing.assert_array_equal(dx, expected)


def test_overlapping_windows_add_up():
    x = np.asarray([[[0.0, 5.0, 1.0, 2.0]]])
    instance = OpInstance("max_pool1d", (x,), {"pool_size": (3,)})
    (dx,) = tw.interpret(vjp_module(instance), x, np.asarray([[[1.0, 10.0]]]), precision="fp64")
    np.testing.assert_array_equal(dx, [[[0, 11, 0, 0]]])


def test_stride_1_takes_convolutions_and_other_strides_transposed_ones():
    def names(**attrs):
        module = vjp_module(op("conv2d", (1, 4, 8, 8), (6, 4, 3, 3), padding=(1, 1, 1, 1), **attrs))
        return [o.name.removeprefix("graph.") for o in module.main.body.ops]

    assert sorted(names()) == ["conv2d", "conv2d", "conv2d_weight_grad", "return", "reverse", "reverse"]
    assert sorted(names(strides=(2, 2))) == ["conv2d", "conv2d_transpose", "conv2d_weight_grad", "return"]


def test_broadcast_batches_are_summed_inside_the_product():
    module = vjp_module(op("matmul", (8, 3, 4), (4, 5)))
    names = [o.name for o in module.main.body.ops]
    assert names == ["graph.matmul", "graph.matmul", "graph.einsum", "graph.return"]


def test_training_batch_norm_gives_the_closed_form():
    text = """module @m {
      graph.func @main(%x: f32[4, 3, 5], %gamma: f32[3], %beta: f32[3], %g: f32[4, 3, 5]) -> f32[] {
        %mean = graph.mean(%x, axis = [0, 2], keepdims = true) : f32[1, 3, 1]
        %var = graph.variance(%x, %mean, axis = [0, 2], keepdims = false) : f32[3]
        %m = graph.reshape(%mean, newshape = [3]) : f32[3]
        %y = graph.batch_norm(%x, %gamma, %beta, %m, %var, axis = 1, epsilon = 1e-5) : f32[4, 3, 5]
        %p = graph.multiply(%y, %g) : f32[4, 3, 5]
        %s = graph.sum(%p, axis = [0, 1, 2], keepdims = false) : f32[]
        graph.return(%s)
      }
    }"""
    module = tw.grad(tw.parse(text), ["x", "gamma", "beta"], value=False)
    # a mean far from 0: the square of it would swallow the variance
    x = RNG.standard_normal((4, 3, 5)) + 1e4
    gamma, beta, g = RNG.standard_normal(3), RNG.standard_normal(3), RNG.standard_normal((4, 3, 5))
    axes, along = (0, 2), (1, 3, 1)
    rstd = 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    n = (x - x.mean(axes, keepdims=True)) * rstd
    h = g * gamma.reshape(along)
    dx = rstd * (h - h.mean(axes, keepdims=True) - n * (h * n).mean(axes, keepdims=True))
    got = tw.interpret(module, x, gamma, beta, g, precision="fp64")
    for a, b in zip(got, (dx, (g * n).sum(axes), g.sum(axes)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
    # the mean of x sends nothing back through the variance, which would be a sum of rounding errors
    assert [o.name for o in module.main.body.ops].count("graph.sum") == 2
    single = tw.interpret(module, *(a.astype(np.float32) for a in (x, gamma, beta, g)))
    exact = tw.interpret(module, *(a.astype(np.float32) for a in (x, gamma, beta, g)), precision="fp64")
    for a, b in zip(single, exact, strict=True):
        assert np.linalg.norm(a - b) <= 2e-3 * np.linalg.norm(b)


@pytest.mark.parametrize(
    "drawer", ["softmax", "log_softmax", "layer_norm", "batch_norm", "max", "l2_normalize"]
)
def test_16_bit_gradients_are_computed_in_float32(drawer):
    (instance,) = drawn_ops(drawer, 1, seed=7)
    inputs = [a.astype(np.float16) for a in (*instance.arrays, *cotangents_of(instance))]
    half = tw.interpret(vjp_module(instance, "f16"), *inputs)
    wide = tw.interpret(vjp_module(instance, "f16"), *inputs, precision="fp64")
    for a, b in zip(half, wide, strict=True):
        assert a.dtype == np.float16
        assert np.linalg.norm(a - b) <= 2e-3 * (np.linalg.norm(b) + 1e-3)


@pytest.mark.parametrize(
    "drawer",
    [
        "matmul", "einsum", "softmax", "log_softmax", "layer_norm", "group_norm", "batch_norm",
        "l2_normalize", "max", "variance", "conv1d", "conv2d", "conv3d", "conv2d_transpose", "max_pool2d",
        "avg_pool2d", "global_max_pool2d", "adaptive_avg_pool2d", "resize2d",
    ],
)  # fmt: skip
def test_compiled_gradients(drawer):
    (instance,) = drawn_ops(drawer, 1, seed=40)
    module = vjp_module(instance)
    inputs = [
        a.astype(np.float32) if a.dtype.kind == "f" else a
        for a in (*instance.arrays, *cotangents_of(instance))
    ]
    exact = tw.interpret(module, *inputs, precision="fp64")
    with tw.compile(module, target="opencl", progress=False) as exe:
        compiled = exe(*inputs)
    for a, b in zip(compiled, exact, strict=True):
        assert np.linalg.norm(a - b) <= 1e-5 * (np.linalg.norm(b) + 1e-3)
