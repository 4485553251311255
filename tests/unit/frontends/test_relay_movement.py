"""Relay operators that move elements, most made of several graph ops, against NumPy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import InputError, UnsupportedError, verify

HEADER = '#[version = "0.0.5"]\n'
X = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)


def net(body, *arrays):
    params = ", ".join(f"%x{i}: Tensor[{a.shape}, {a.dtype}]" for i, a in enumerate(arrays))
    module = import_module(read_source(f"{HEADER}def @main({params}) {{ {body} }}", "t.relay"))
    verify(module)
    return module


def run(body, *arrays):
    arrays = [np.asarray(a) for a in arrays]
    return tw.interpret(net(body, *arrays), *arrays)


def check(body, wanted, *arrays):
    (got,) = run(body, *arrays)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(got, wanted)


CASES = {
    "transpose": ("transpose(%x0)", X.transpose(3, 2, 1, 0)),
    "transpose-axes": ("transpose(%x0, axes=[0, -1, 1, 2])", X.transpose(0, 3, 1, 2)),
    "broadcast_to": ("broadcast_to(%x0, shape=[2, 2, 3, 4, 5])", np.broadcast_to(X, (2, 2, 3, 4, 5))),
    "strided_slice": ("strided_slice(%x0, begin=[0, 1], end=[2, -1], strides=[1])", X[0:2, 1:-1]),
    "strided_slice-axes": (
        "strided_slice(%x0, begin=[4], end=[-9], strides=[-2], axes=[-1])",
        X[..., ::-2],
    ),
    "strided_slice-size": (
        'strided_slice(%x0, begin=[0, 1, 2], end=[1, -1, 1], strides=[2], slice_mode="size")',
        X[0:1, 1:, 2:3],
    ),
    "reverse": ("reverse(%x0, axis=-1)", X[..., ::-1]),
    "tile": ("tile(%x0, reps=[2, 1])", np.tile(X, (2, 1))),
    "repeat": ("repeat(%x0, repeats=2)", np.repeat(X, 2, axis=0)),
    "pad-negative": (
        "nn.pad(%x0, 7f, pad_width=[[1, 0], [-1, 1], [0, 0], [-2, -1]])",
        np.pad(X[:, 1:, :, 2:4], ((1, 0), (0, 1), (0, 0), (0, 0)), constant_values=7),
    ),
    "pad-edge": (
        'nn.pad(%x0, 0f, pad_width=[[0, 0], [0, 0], [2, 1], [-1, 3]], pad_mode="edge")',
        np.pad(X[..., 1:], ((0, 0), (0, 0), (2, 1), (0, 3)), mode="edge"),
    ),
    "mirror-reflect": (
        'nn.mirror_pad(%x0, pad_width=[[0, 0], [0, 0], [2, 1], [3, 3]], mode="REFLECT")',
        np.pad(X, ((0, 0), (0, 0), (2, 1), (3, 3)), mode="reflect"),
    ),
    "mirror-symmetric": (
        "nn.mirror_pad(%x0, pad_width=[[0, 0], [0, 0], [2, 1], [3, 3]])",
        np.pad(X, ((0, 0), (0, 0), (2, 1), (3, 3)), mode="symmetric"),
    ),
    "space_to_batch": (
        "nn.space_to_batch_nd(%x0, block_shape=[2, 2], paddings=[[1, 0], [0, 2]], pad_value=9f)",
        np.concatenate(
            [
                np.pad(X, ((0, 0), (1, 0), (0, 2), (0, 0)), constant_values=9)[:, i::2, j::2]
                for i in (0, 1)
                for j in (0, 1)
            ]
        ),
    ),
    "there-and-back": (
        "nn.batch_to_space_nd(nn.space_to_batch_nd(%x0, block_shape=[2, 3], paddings=[[1, 0], [2, 0]]),"
        " block_shape=[2, 3], crops=[[1, 0], [2, 0]])",
        X,
    ),
    "layout": ('layout_transform(%x0, src_layout="NCHW", dst_layout="NHWC")', X.transpose(0, 2, 3, 1)),
    "layout-blocks": (
        'layout_transform(%x0, src_layout="NCHW", dst_layout="NCHW2h")',
        X.reshape(2, 3, 2, 2, 5).transpose(0, 1, 2, 4, 3),
    ),
    "layout-filled": (
        'layout_transform(%x0, src_layout="NCHW", dst_layout="NCHW4c")',
        np.pad(X, ((0, 0), (0, 1), (0, 0), (0, 0))).reshape(2, 1, 4, 4, 5).transpose(0, 1, 3, 4, 2),
    ),
    "layout-and-back": (
        "layout_transform(layout_transform(%x0,"
        ' src_layout="NCHW", dst_layout="NHWC3c"), src_layout="NHWC3c", dst_layout="NCHW")',
        X,
    ),
    "layout-same": ('layout_transform(%x0, src_layout="NCHW", dst_layout="NCHW")', X),
    "dilate": (
        "nn.dilate(%x0, strides=[1, 1, 2, 3], dilation_value=5f)",
        np.where(
            (np.arange(7) % 2 == 0)[:, None] & (np.arange(13) % 3 == 0),
            np.repeat(np.repeat(X, 2, axis=2)[:, :, :7], 3, axis=3)[..., :13],
            np.float32(5),
        ),
    ),
    "shape_of": ("shape_of(%x0)", np.array([2, 3, 4, 5], np.int32)),
    "ndarray_size": ('ndarray_size(%x0, dtype="int64")', np.array(120, np.int64)),
    "reverse_reshape": ("contrib_reverse_reshape(%x0, newshape=[-1, 0])", X.reshape(24, 5)),
    "sliding_window": (
        "sliding_window(%x0, axis=3, window_shape=[2], strides=[3])",
        np.stack([X[..., 0:2], X[..., 3:5]], axis=3),
    ),
    "trilu": ("trilu(%x0, 1, upper=False)", np.tril(X, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_operand(name):
    body, wanted = CASES[name]
    check(body, wanted, X)


def test_operands_that_lend_their_shape():
    y = np.zeros((3, 1, 5), np.float32)
    check("broadcast_to_like(%x1, %x0)", np.broadcast_to(y, X.shape), X, y)
    check("slice_like(%x0, %x1)", X[0], X[0], np.zeros((9, 9, 9), np.float32)[:3, :4, :5])
    check("slice_like(%x0, %x1, axes=[-1, 0])", X[:1, ..., :3], X, np.zeros((1, 9, 9, 3), np.float32))
    check("collapse_sum_like(%x0, %x1)", X.sum((0, 2)).reshape(3, 1, 5), X, y)
    check("collapse_sum_like(%x0, %x1)", X, X, X)
    check("reshape_like(%x0, %x1)", X.reshape(10, 12), X, np.zeros((10, 12), np.float32))
    check(
        "reshape_like(%x0, %x1, lhs_begin=1, lhs_end=3, rhs_begin=-2, rhs_end=-1)",
        X.reshape(2, 12, 5),
        X,
        np.zeros((7, 12, 9), np.float32),
    )


def test_fills_with_a_value_known_at_run_time():
    check("full(%x0, shape=[2, 3])", np.full((2, 3), 4, np.int64), np.int64(4))
    check('full(%x0, shape=[2], dtype="float32")', np.full(2, 4, np.float32), np.array([4], np.int32))
    check("full_like(%x0, %x1)", np.full(X.shape, 3, np.float32), X, np.int32(3))


def test_large_fills_and_ranges_are_made_where_they_are_read():
    module = net('zeros(shape=[1024, 1024], dtype="float32")')
    assert [op.name for op in module.main.body.ops[:-1]] == ["graph.constant", "graph.broadcast_to"]
    module = net('zeros(shape=[64, 64], dtype="float32")')
    assert [op.name for op in module.main.body.ops[:-1]] == ["graph.constant"]


def test_meshgrid_and_permutations():
    a, b, c = np.arange(3), np.arange(4), np.arange(2)
    for indexing in ("ij", "xy"):
        got = run(f'meshgrid((%x0, %x1, %x2), indexing="{indexing}")', a, b, c)
        for g, w in zip(got, np.meshgrid(a, b, c, indexing=indexing), strict=True):
            np.testing.assert_array_equal(g, w)
    order = np.array([2, 0, 3, 1])
    check("invert_permutation(%x0)", np.array([1, 3, 0, 2]), order)


@pytest.mark.parametrize("shift", [-3, 0, 2])
def test_fixed_point_multiply(shift):
    x = np.array([0, 1, -1, 1 << 30, -(1 << 31), 12345], np.int32)
    factor = 1395864371
    exact = [int(v) * (factor << max(shift, 0)) for v in x]
    places = 31 + max(-shift, 0)
    wanted = np.array([(v + (1 << (places - 1))) >> places for v in exact], np.int64).astype(np.int32)
    check(f"fixed_point_multiply(%x0, multiplier={factor}, shift={shift})", wanted, x)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_fixed_point_multiply_per_axis(left, right):
    x = np.array([[1 << 20, -7], [12345, -(1 << 22)], [3, 1 << 25]], np.int32)
    factor, up, down = np.array([[1395864371, 1 << 30, 77], [1, 2, 3], [0, 4, 1]], np.int32)
    wanted = np.empty_like(x)
    for row, f, lo, hi in zip(range(3), factor.tolist(), up.tolist(), down.tolist(), strict=True):
        for column in range(2):
            wide = (int(x[row, column]) << (lo if left else 0)) * f
            places = 31 + hi
            wanted[row, column] = (wide + (1 << (places - 1))) >> places
    flags = f"is_lshift_required={left}, is_rshift_required={right}"
    check(
        f"fixed_point_multiply_per_axis(%x0, %x1, %x2, %x3, {flags}, axes=[0])", wanted, x, factor, up, down
    )


def test_a_buffer_first_in_first_out():
    new = np.full((2, 3, 1, 5), -1, np.float32)
    check("nn.fifo_buffer(%x0, %x1, axis=2)", np.concatenate([X[:, :, 1:], new], axis=2), new, X)


def test_shapes_computed_from_shapes():
    """`dyn` operators work where what they ask for is known, also through operators on it."""
    same = "multiply(shape_of(%x1), 1)"
    y = np.zeros((2, 12, 5), np.float32)
    check(f"dyn.reshape(%x0, {same})", X.reshape(2, 12, 5), X, y)
    check(f"dyn.broadcast_to(%x0, {same})", np.broadcast_to(X[0, 0, 0], (2, 12, 5)), X[0, 0, 0], y)
    check(f'dyn.zeros({same}, dtype="int32")', y.astype(np.int32), X, y)
    check(f"dyn.full(3f, {same})", y + 3, X, y)
    check(f"dyn.tile(%x0, {same})", np.tile(X[0], (2, 12, 5)), X[0], y)
    check("dyn.expand_dims(%x0, 1)", X[:, None], X)
    begin, one = "multiply(shape_of(%x0), 0)", "add(multiply(shape_of(%x0), 0), 1)"
    check(f"dyn.strided_slice(%x0, {begin}, {one}, {one})", X[:1, :1, :1, :1], X)


def test_strided_set_and_sums_to_a_shape():
    begin, one = "add(multiply(shape_of(%x0), 0), 1)", "add(multiply(shape_of(%x0), 0), 1)"
    x, v = X[0], -X[0, 1:, 1:, 1:]
    wanted = x.copy()
    wanted[1:, 1:, 1:] = v
    check(f"strided_set(%x0, %x1, {begin}, shape_of(%x0), {one})", wanted, x, v)
    check("collapse_sum_to(%x0, shape_of(%x1))", X.sum((0, 1)), X, X[0, 0])


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("strided_slice(%x0, begin=[2], end=[1], strides=[1])", InputError, "end not before its begin"),
        ('layout_transform(%x0, src_layout="NCHW", dst_layout="NCHc")', UnsupportedError, "layout such as"),
        ('layout_transform(%x0, src_layout="NCHW", dst_layout="NHW")', InputError, "same dimensions"),
        ('layout_transform(%x0, src_layout="NC", dst_layout="CN")', InputError, "rank 2"),
        ("nn.space_to_batch_nd(%x0, block_shape=[2], paddings=[[0, 0]])", InputError, "divide into blocks"),
        ("nn.batch_to_space_nd(%x0, block_shape=[3], crops=[[0, 0]])", InputError, "multiple of 3"),
        ('nn.mirror_pad(%x0, pad_width=[[0, 0]], mode="WRAP")', InputError, "among SYMMETRIC, REFLECT"),
        ("nn.pad(%x0, 0f, pad_width=[[0, 0]])", InputError, "4 pairs"),
        ("nn.pad(%x0, 0f, pad_width=[[-2, -1], [0, 0], [0, 0], [0, 0]])", InputError, "crop at most"),
        ("slice_like(%x0, %x0, axes=[4])", InputError, "axis in"),
        ("nn.dilate(%x0, strides=[1])", InputError, "4 positive strides"),
        ("dyn.reshape(%x0, %x0)", UnsupportedError, "depends on inputs"),
        ("full(%x0, shape=[2])", InputError, "one element"),
        ("meshgrid((%x0, %x0))", InputError, "rank 0 or 1"),
        ("fixed_point_multiply(%x0, multiplier=1, shift=0)", InputError, "int32"),
    ],
)
def test_errors(body, kind, said):
    with pytest.raises(kind, match=said):
        net(body, X)
