"""Lowering rules for less common attributes: the tensor level computes what the reference computes."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir import Builder, Func, Level, Module, TensorType, Value, dtype_name
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline

RNG = np.random.default_rng(0)


def randoms(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def agree(name, arrays, *, compiled=False, tolerance=1e-5, **attrs):
    """Check the lowered (and the compiled) function against the graph level; gives the lowered module."""
    params = tuple(Value(TensorType(dtype_name(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.do("graph.return", *results)
    types = tuple(r.type for r in results)
    module = Module("m", (Func(Level.GRAPH, "main", b.block(params), types),))
    wanted = tw.interpret(module, *arrays)
    lowered = run_pipeline(module, Pipeline.parse("graph-to-tensor"), PassContext(verify_each=True))
    assert all(op.loc == "test:op" for op in lowered.main.body.ops)
    runs = [tw.interpret(lowered, *arrays)]
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(*arrays))
    for got in runs:
        for g, w in zip(got, wanted, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(g.astype(float), w.astype(float), rtol=tolerance, atol=tolerance)
    return lowered


CASES = {
    "depthwise-multiplier-oihw": ("conv2d", [(1, 6, 5, 5), (6, 2, 3, 3)], {"groups": 6}),
    "depthwise-multiplier-hwoi": (
        "conv2d",
        [(1, 5, 5, 6), (3, 3, 6, 2)],
        {"groups": 6, "data_layout": "NHWC", "kernel_layout": "HWOI"},
    ),
    "depthwise-hwio": (
        "conv2d",
        [(1, 5, 5, 6), (3, 3, 1, 12)],
        {"groups": 6, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    "groups-ohwi": (
        "conv2d",
        [(1, 5, 5, 6), (4, 3, 3, 3)],
        {"groups": 2, "data_layout": "NHWC", "kernel_layout": "OHWI", "padding": (1, 0, 0, 1)},
    ),
    "transposed": ("conv2d_transpose", [(2, 3, 4, 5), (3, 4, 3, 3)], {}),
    "transposed-strides": (
        "conv2d_transpose",
        [(1, 6, 4, 5), (6, 2, 4, 3)],
        {"strides": (2, 3), "padding": (1, 2, 0, 1), "output_padding": (1, 0), "groups": 3},
    ),
    "transposed-half-a-block-before": (
        "conv2d_transpose",
        [(2, 3, 4, 3), (3, 2, 4, 8)],
        {"strides": (2, 4), "padding": (1, 2, 1, 2)},
    ),
    "transposed-half-a-block-before-one": (
        "conv2d_transpose",
        [(1, 3, 4, 3), (3, 2, 4, 3)],
        {"strides": (2, 2), "padding": (1, 0, 1, 0), "data_layout": "NCHW"},
    ),
    "transposed-points": (
        "conv2d_transpose",
        [(1, 3, 4, 3), (3, 2, 1, 1)],
        {"strides": (2, 3), "padding": (0, 1, 0, 0), "output_padding": (1, 2)},
    ),
    "transposed-less-than-strides": (
        "conv2d_transpose",
        [(1, 4, 3, 3), (4, 2, 2, 1)],
        {"strides": (4, 2), "padding": (1, 0, 0, 0), "output_padding": (3, 1), "groups": 2},
    ),
    "transposed-nhwc": (
        "conv2d_transpose",
        [(1, 4, 5, 3), (3, 3, 2, 3)],
        {"strides": (2, 2), "dilation": (2, 1), "data_layout": "NHWC", "kernel_layout": "HWOI"},
    ),
    "transposed-cut": ("conv2d_transpose", [(1, 2, 6, 6), (2, 2, 2, 2)], {"padding": (3, 2, 2, 3)}),
    "avg-pool-ceil-with-pad": (
        "avg_pool2d",
        [(1, 2, 8, 8)],
        {
            "pool_size": (3, 3),
            "strides": (2, 2),
            "padding": (1, 1, 1, 1),
            "ceil_mode": True,
            "count_include_pad": True,
        },
    ),
    "adaptive-avg": ("adaptive_avg_pool2d", [(2, 3, 7, 5)], {"output_size": (3, 2)}),
    "adaptive-avg-exact": ("adaptive_avg_pool2d", [(2, 8, 6, 3)], {"output_size": (4, 2), "layout": "NHWC"}),
    "adaptive-max-more-cells": ("adaptive_max_pool2d", [(2, 3, 3, 5)], {"output_size": (5, 4)}),
    "layer-norm": ("layer_norm", [(3, 4, 7), (7,), (7,)], {}),
    "layer-norm-axis": ("layer_norm", [(3, 4, 7), (4,), (4,)], {"axis": 1, "center": False}),
    "instance-norm": ("instance_norm", [(2, 3, 4, 5), (3,), (3,)], {}),
    "group-norm": ("group_norm", [(2, 6, 4, 5), (6,), (6,)], {"num_groups": 3, "scale": False}),
    "l2": ("l2_normalize", [(2, 5, 3)], {"eps": 1e-6, "axis": (1,)}),
    "l2-all": ("l2_normalize", [(2, 5)], {"eps": 1e-6}),
    "prelu": ("prelu", [(2, 5, 3), (5,)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_op(name):
    op, shapes, attrs = CASES[name]
    agree(op, [randoms(*s) for s in shapes], compiled=True, tolerance=2e-5, **attrs)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_transposed_convolutions_of_any_geometry(groups, strides, padding, dilation):
    arrays = [randoms(1, 2 * groups, 5, 6), randoms(2 * groups, 2, 3, 2)]
    agree("conv2d_transpose", arrays, groups=groups, strides=strides, padding=padding, dilation=dilation)


@pytest.mark.parametrize(
    ("kernel", "padding", "taps", "result"),
    [(4, 1, 4, 8 * 8), (2, 0, 1, 8 * 8), (1, 0, 1, 4 * 4)],
    ids=["half a block before", "blocks", "points"],
)
def test_transposed_convolutions_multiply_what_has_taps(kernel, padding, taps, result):
    """Sums of taps for every pixel of the result that has any, with no other op but the kernel and zeros."""
    arrays = [randoms(1, 3, 4, 4), randoms(3, 2, kernel, kernel)]
    pads, extra = (padding,) * 4, (max(0, 2 - kernel),) * 2
    lowered = agree("conv2d_transpose", arrays, strides=(2, 2), padding=pads, output_padding=extra)
    contraction = next(op for op in lowered.main.body.ops if op.name == "tensor.contract")
    assert prod(dims(contraction, "par").values()) == 2 * result
    assert prod(dims(contraction, "red").values()) == 3 * taps
    maps = [op for op in lowered.main.body.ops if op.name == "tensor.map"]
    assert len(maps) == (2 if kernel == 1 else 1)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["avg", "max"]), *[st.integers(1, 9)] * 4)
def test_adaptive_pools_of_any_size(kind, height, width, rows, columns):
    agree(f"adaptive_{kind}_pool2d", [randoms(1, 2, height, width)], output_size=(rows, columns))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=4), st.randoms(use_true_random=False))
def test_reshapes_between_any_factorings(shape, shuffle):
    other = list(shape) + [1] * shuffle.randint(0, 2)
    shuffle.shuffle(other)
    agree("reshape", [randoms(*shape)], newshape=tuple(other))


@settings(max_examples=20, deadline=None)
@given(
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_means_of_any_windows(ceil, include, strides, padding, dilation):
    attrs = {"pool_size": (3, 2), "strides": strides, "padding": padding, "dilation": dilation}
    agree("avg_pool2d", [randoms(1, 2, 7, 6)], ceil_mode=ceil, count_include_pad=include, **attrs)


def test_half_precision_sums_in_float32():
    """Each of these overflows or stalls when summed in float16."""
    large = np.abs(randoms(1, 2, 56, 56, dtype=np.float16)) * np.float16(100)
    for lowered in (
        agree("global_avg_pool2d", [large], tolerance=1e-3),
        agree("avg_pool2d", [large], tolerance=1e-3, pool_size=(50, 50)),
        agree("softmax", [randoms(2, 5000, dtype=np.float16)], tolerance=1e-3),
        agree("layer_norm", [large, *[np.ones(56, np.float16)] * 2], tolerance=1e-2),
    ):
        sums = [op for op in lowered.main.body.ops if op.name in ("tensor.reduce", "tensor.window")]
        assert {op.result.tensor.dtype for op in sums} == {"f32"}


def test_integer_means_round_towards_zero():
    x = np.array([[[[-3, -4], [0, 0]]]], np.int64)
    agree("avg_pool2d", [x], pool_size=(2, 2), compiled=True)


def test_where_takes_anything_but_zero_for_true():
    agree("where", [np.array([2, 0, -1]), randoms(3), randoms(2, 1)], compiled=True)
