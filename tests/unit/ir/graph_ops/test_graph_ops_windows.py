"""Convolutions and pools of the graph level against loops over every result element."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import InputError, TensorType, op_def, widened

RNG = np.random.default_rng(0)


def run(name, arrays, **attrs):
    """The op's result, after checking that inference says its type."""
    d = op_def(f"graph.{name}")
    full = dict(d.complete(attrs))
    names = {
        np.dtype(k): v for k, v in (("f4", "f32"), ("f2", "f16"), ("f8", "f32"), ("i1", "i8"), ("i8", "i64"))
    }
    (t,) = d.infer([TensorType(names[a.dtype], a.shape) for a in arrays], full)
    (out,) = d.evaluate(arrays, full)
    assert out.shape == t.shape
    return out


def randoms(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def padded_element(x, n, c, h, w, outside=0.0):
    return x[n, c, h, w] if 0 <= h < x.shape[2] and 0 <= w < x.shape[3] else outside


def slow_conv(x, w, strides, padding, dilation, groups):
    top, left, bottom, right = padding
    (k, i, r, s), (n, _, height, width) = w.shape, x.shape
    oh = (height + top + bottom - (r - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (width + left + right - (s - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((n, k, oh, ow))
    for b, f, y, z in np.ndindex(out.shape):
        for c, p, q in np.ndindex(i, r, s):
            channel = f // (k // groups) * i + c
            at = (y * strides[0] + p * dilation[0] - top, z * strides[1] + q * dilation[1] - left)
            out[b, f, y, z] += padded_element(x, b, channel, *at) * w[f, c, p, q]
    return out


window_attrs = {
    "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "padding": st.tuples(*[st.integers(0, 2)] * 4),
    "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
}


@settings(max_examples=25, deadline=None)
@given(groups=st.integers(1, 3), channels=st.integers(1, 2), filters=st.integers(1, 2), **window_attrs)
def test_conv2d_is_the_sum_over_its_window(groups, channels, filters, strides, padding, dilation):
    x, w = randoms(2, groups * channels, 6, 5), randoms(groups * filters, channels, 3, 2)
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    got = run("conv2d", [x, w], **attrs)
    np.testing.assert_allclose(got, slow_conv(x, w, **attrs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel_layout", ["OIHW", "HWIO", "OHWI", "HWOI"])
def test_conv2d_layouts_are_transposes_of_one_another(kernel_layout):
    x, w = randoms(1, 4, 6, 5), randoms(6, 2, 3, 3)
    wanted = run("conv2d", [x, w], groups=2)
    turned = w.transpose(["OIHW".index(c) for c in kernel_layout])
    got = run(
        "conv2d", [x.transpose(0, 2, 3, 1), turned], groups=2, data_layout="NHWC", kernel_layout=kernel_layout
    )
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2), wanted, rtol=1e-5, atol=1e-5)


def test_depthwise_kernel_may_hold_the_multiplier():
    x, w = randoms(1, 3, 5, 5), randoms(3, 2, 3, 3)
    wanted = run("conv2d", [x, w.reshape(6, 1, 3, 3)], groups=3)
    np.testing.assert_array_equal(run("conv2d", [x, w], groups=3), wanted)


def test_integer_convolution_is_summed_in_its_out_dtype():
    x = np.full((1, 8, 3, 3), 100, np.int8)
    out = run("conv2d", [x, np.full((1, 8, 3, 3), 100, np.int8)], out_dtype="i32")
    assert out.item() == 72 * 10_000


def test_half_precision_is_summed_in_float32():
    ones = np.ones((1, 4096), np.float16)
    assert run("dense", [ones * np.float16(0.1), ones]).item() == np.float16(
        np.float32(np.float16(0.1)) * 4096
    )


def test_widened_evaluation_is_float64():
    x, w = RNG.standard_normal((1, 2, 5, 5)), RNG.standard_normal((3, 2, 3, 3))
    with widened():
        got = run("conv2d", [x, w])
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, slow_conv(x, w, (1, 1), (0,) * 4, (1, 1), 1), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(groups=st.integers(1, 2), extra=st.tuples(st.integers(0, 1), st.integers(0, 1)), **window_attrs)
def test_conv2d_transpose_is_the_adjoint_of_conv2d(groups, extra, strides, padding, dilation):
    """<conv(u), x> = <u, transposed(x)> for every u, where the convolution of u has the shape of x."""
    strides = tuple(max(s, e + 1) for s, e in zip(strides, extra, strict=True))
    x, w = randoms(1, 2 * groups, 4, 5), randoms(2 * groups, 3, 3, 3)
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    image = run("conv2d_transpose", [x, w], output_padding=extra, **attrs)
    u = randoms(*image.shape)
    forward = run("conv2d", [u, w], **attrs)
    if forward.shape == x.shape:
        np.testing.assert_allclose(np.vdot(forward, x), np.vdot(u, image), rtol=1e-3, atol=1e-2)


def taps(x, y, z, pool, strides, padding, dilation):
    """Elements inside a window of one image, and how many taps lie inside the padded image."""
    inside, counted = [], 0
    for p, q in itertools.product(range(pool[0]), range(pool[1])):
        h, w = y * strides[0] + p * dilation[0] - padding[0], z * strides[1] + q * dilation[1] - padding[1]
        counted += h < x.shape[0] + padding[2] and w < x.shape[1] + padding[3]
        if 0 <= h < x.shape[0] and 0 <= w < x.shape[1]:
            inside.append(x[h, w])
    return inside, counted


@settings(max_examples=30, deadline=None)
@given(ceil=st.booleans(), include=st.booleans(), **window_attrs)
def test_pools_are_over_the_elements_of_their_window(ceil, include, strides, padding, dilation):
    x, pool = randoms(1, 1, 7, 6), (3, 2)
    attrs = {
        "pool_size": pool,
        "strides": strides,
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": ceil,
    }
    largest, mean = (
        run("max_pool2d", [x], **attrs),
        run("avg_pool2d", [x], count_include_pad=include, **attrs),
    )
    room = 7 + padding[0] + padding[2] - 2 * dilation[0] - 1 + (strides[0] - 1 if ceil else 0)
    assert mean.shape[2] == room // strides[0] + 1
    for y, z in np.ndindex(mean.shape[2:]):
        inside, counted = taps(x[0, 0], y, z, pool, strides, padding, dilation)
        assert largest[0, 0, y, z] == (max(inside) if inside else np.finfo(np.float32).min)
        divisor = counted if include else len(inside)
        np.testing.assert_allclose(mean[0, 0, y, z], sum(inside) / max(divisor, 1), rtol=1e-4, atol=1e-5)


def test_integer_means_round_towards_zero():
    x = np.array([[[[-3, -4], [0, 0]]]], np.int64)
    assert run("avg_pool2d", [x], pool_size=(2, 2)).item() == -1


@given(st.integers(1, 9), st.integers(1, 9))
def test_adaptive_cells_cover_the_image(size, cells):
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    largest = run("adaptive_max_pool2d", [x], output_size=(cells, 1)).ravel()
    mean = run("adaptive_avg_pool2d", [x], output_size=(cells, 1)).ravel()
    for i in range(cells):
        part = np.arange(int(np.floor(i * size / cells)), int(np.ceil((i + 1) * size / cells)))
        assert largest[i] == part[-1]
        np.testing.assert_allclose(mean[i], part.mean(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("conv2d", [(1, 3, 5, 5), (4, 2, 3, 3)], {}, "3 input channels per group"),
        ("conv2d", [(1, 3, 5, 5), (4, 3, 7, 7)], {}, "windows that fit"),
        ("conv2d", [(1, 3, 5, 5), (4, 3, 3, 3)], {"data_layout": "NCWH"}, "'data_layout' among NCHW, NHWC"),
        ("conv2d", [(1, 3, 5, 5), (4, 3, 3, 3)], {"strides": (0, 1)}, "two positive entries"),
        ("conv2d", [(1, 3, 5, 5), (4, 3, 3, 3)], {"groups": 2}, "divisible by 2 groups"),
        ("max_pool2d", [(1, 3, 5)], {"pool_size": (2, 2)}, "rank 4"),
        ("adaptive_avg_pool2d", [(1, 3, 5, 5)], {"output_size": (0, 2)}, "'output_size'"),
    ],
)
def test_misfits_say_what_was_expected(name, shapes, attrs, message):
    d = op_def(f"graph.{name}")
    with pytest.raises(InputError, match=message):
        d.infer([TensorType("f32", s) for s in shapes], dict(d.complete(attrs)))
