"""Shape codes, joining, elementwise semantics and normalisations of the graph level against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir import InputError, TensorType, dtype_name, op_def
from tilewright.ir.graph_ops.joining import split_points
from tilewright.ir.graph_ops.shaping import resolve_reshape

RNG = np.random.default_rng(0)


def run(name, *arrays, **attrs):
    d = op_def(f"graph.{name}")
    full = dict(d.complete(attrs))
    types = d.infer([TensorType(dtype_name(a.dtype), a.shape) for a in arrays], full)
    outs = d.evaluate(arrays, full)
    assert [(o.shape, dtype_name(o.dtype)) for o in outs] == [(t.shape, t.dtype) for t in types]
    return outs


def randoms(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "codes", "wanted"),
    [
        ((2, 3, 4), (4, 0, 2), (4, 3, 2)),
        ((2, 3, 4), (2, 0, 0), (2, 3, 4)),
        ((2, 3, 4), (6, 1, -1), (6, 1, 4)),
        ((2, 3, 4), (-1,), (24,)),
        ((2, 3, 4), (-2,), (2, 3, 4)),
        ((2, 3, 4), (2, -2), (2, 3, 4)),
        ((2, 3, 4), (-2, 1, 1), (2, 3, 4, 1, 1)),
        ((2, 3, 4), (-3, 4), (6, 4)),
        ((2, 3, 4, 5), (-3, -3), (6, 20)),
        ((2, 3, 4), (0, -3), (2, 12)),
        ((2, 3, 4), (-4, 1, 2, -2), (1, 2, 3, 4)),
        ((2, 3, 4), (2, -4, -1, 3, -2), (2, 1, 3, 4)),
        ((1,), (), ()),
        ((0, 3), (0, -2), (0, 3)),
    ],
)
def test_reshape_codes(shape, codes, wanted):
    assert resolve_reshape(shape, codes) == wanted


@pytest.mark.parametrize("codes", [(5,), (-1, -1), (-1, 5), (0, 0, 0, 0), (-4, 2, 2, -2), (-7,), (-4,)])
def test_reshape_codes_that_do_not_fit(codes):
    with pytest.raises(InputError, match="reshape"):
        resolve_reshape((2, 3, 4), codes)


def test_zero_may_be_an_extent():
    assert resolve_reshape((0, 3), (3, 0), allowzero=True) == (3, 0)


@given(st.lists(st.integers(0, 9), max_size=4).map(sorted), st.sampled_from([0, 1, -1]))
def test_split_undoes_concatenate(cuts, axis):
    x = randoms(9, 9)
    parts = run("split", x, indices=tuple(cuts), axis=axis)
    assert len(parts) == len(cuts) + 1
    np.testing.assert_array_equal(run("concatenate", *parts, axis=axis)[0], x)


def test_split_points():
    assert split_points(9, 3) == (3, 6)
    assert split_points(9, (1, 4)) == (1, 4)
    with pytest.raises(InputError, match="4 equal sections"):
        split_points(9, 4)


@pytest.mark.parametrize(
    ("name", "a", "b", "wanted"),
    [
        ("divide", [-7, 7], [2, -2], [-3, -3]),
        ("floor_divide", [-7, 7], [2, -2], [-4, -4]),
        ("mod", [-7, 7], [2, -2], [-1, 1]),
        ("floor_mod", [-7, 7], [2, -2], [1, -1]),
        ("floor_divide", [-7.0, 7.0], [2.0, -2.0], [-4.0, -4.0]),
        ("mod", [-7.5, 7.5], [2.0, -2.0], [-1.5, 1.5]),
        ("right_shift", [-5, 5], [1, 1], [-3, 2]),
    ],
)
def test_divisions_of_negative_numbers(name, a, b, wanted):
    dtype = np.float32 if isinstance(a[0], float) else np.int32
    np.testing.assert_array_equal(run(name, np.array(a, dtype), np.array(b, dtype))[0], wanted)


def test_clip_converts_its_bounds():
    out = run("clip", np.array([-9, 3, 9], np.int32), a_min=-1.5, a_max=6.0)[0]
    np.testing.assert_array_equal(out, [-1, 3, 6])


def test_where_takes_anything_but_zero_for_true():
    x = np.array([2, 0, -1]), np.float32([1, 2, 3]), np.float32([[7]])
    np.testing.assert_array_equal(run("where", *x)[0], [[1, 7, 3]])


@pytest.mark.parametrize(("name", "sign"), [("softmax", 0), ("log_softmax", 1)])
def test_softmax_of_large_numbers(name, sign):
    x = np.float32([[1000, 1001, 999], [-1e30, 0, 1]])
    shifted = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    wanted = shifted / shifted.sum(axis=1, keepdims=True)
    got = run(name, x)[0]
    np.testing.assert_allclose(np.exp(got) if sign else got, wanted, rtol=1e-5, atol=1e-7)


def test_norms_standardise():
    x, one, nought = randoms(2, 6, 5, 3), np.ones(6, np.float32), np.zeros(6, np.float32)
    for out, axes in (
        (run("layer_norm", x, one, nought, axis=1)[0], (1,)),
        (run("instance_norm", x, one, nought)[0], (2, 3)),
        (run("group_norm", x, one, nought, num_groups=3)[0].reshape(2, 3, 2, 5, 3), (2, 3, 4)),
    ):
        np.testing.assert_allclose(out.mean(axis=axes), 0, atol=1e-5)
        np.testing.assert_allclose(out.var(axis=axes), 1, atol=1e-3)


def test_batch_norm_is_affine_per_channel():
    x, gamma, beta, mean = randoms(2, 3, 4), randoms(3), randoms(3), randoms(3)
    var = np.abs(randoms(3))
    got = run("batch_norm", x, gamma, beta, mean, var, epsilon=1e-3)[0]
    scale = gamma / np.sqrt(var + 1e-3)
    np.testing.assert_allclose(got, x * scale[:, None] + (beta - mean * scale)[:, None], rtol=1e-4, atol=1e-5)


def test_lrn_sums_neighbouring_channels():
    x = randoms(1, 7, 2, 2)
    got = run("lrn", x, size=3, alpha=0.5, bias=2.0, beta=0.75)[0]
    for c in range(7):
        squares = (x[:, max(0, c - 1) : c + 2] ** 2).sum(axis=1)
        np.testing.assert_allclose(got[:, c], x[:, c] / (2 + 0.5 / 3 * squares) ** 0.75, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("add", [(2, 3), (4,)], {}, "broadcast"),
        ("dense", [(2, 3), (4, 5)], {}, r"weight \[units, K\]"),
        ("matmul", [(2, 3), (4, 5)], {}, "inner extents"),
        ("bias_add", [(2, 3), (4,)], {}, "along axis 1"),
        ("concatenate", [(2, 3), (3, 3)], {"axis": 1}, "differ in axis 1 only"),
        ("reshape", [(2, 3)], {"newshape": (7,)}, "6 elements"),
        ("squeeze", [(2, 3)], {"axis": (0,)}, "extents of 1"),
        ("softmax", [(2, 3)], {"axis": 2}, r"axis in \[-2, 1\]"),
        ("group_norm", [(2, 6, 3), (6,), (6,)], {"num_groups": 4}, "4 groups"),
    ],
)
def test_misfits_say_what_was_expected(name, shapes, attrs, message):
    d = op_def(f"graph.{name}")
    with pytest.raises(InputError, match=message):
        d.infer([TensorType("f32", s) for s in shapes], dict(d.complete(attrs)))
