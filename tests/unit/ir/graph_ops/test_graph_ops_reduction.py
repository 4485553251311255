"""Reductions and running folds: the reference against NumPy, and reference == lowered == compiled."""

import ml_dtypes
import numpy as np
import pytest
from folding_samples import FLOATS, agree, module_of, relay, same, sample

import tilewright as tw
from tilewright.ir import TensorType
from tilewright.ir.types import storage_dtype


def over(name, x, *, axis, keepdims=False):
    """What NumPy says."""
    return np.asarray(getattr(np, name)(x, axis=axis, keepdims=keepdims))


NUMERIC = ("sum", "prod", "max", "min", "mean")
PLACES = [
    ((), (), False),
    ((), (), True),
    ((5,), (0,), False),
    ((3, 4), (1,), True),
    ((2, 3, 4), (0, 2), False),
    ((2, 3, 4), (0, 1, 2), True),
    ((2, 1, 3, 2, 2), (1, 4), True),
    ((2, 3), (), False),
]


@pytest.mark.parametrize(("shape", "axis", "keepdims"), PLACES)
def test_every_fold_over_every_kind_of_axes(shape, axis, keepdims):
    calls = [(name, (0,), {"axis": axis, "keepdims": keepdims}) for name in NUMERIC]
    t = TensorType("f64", shape)
    x = sample(t)
    got = agree(module_of(calls, [t]), [x], compiled=keepdims and len(shape) in (0, 3))
    same(got, [over(name, x, axis=axis, keepdims=keepdims) for name in NUMERIC], 1e-12)


@pytest.mark.parametrize("dtype", [*FLOATS, "i8", "u8", "i32", "i64", "bool"])
def test_dtypes(dtype):
    t = TensorType(dtype, (3, 7))
    names = ("all", "any", "max", "sum") if dtype == "bool" else ("sum", "max", "min")
    x = sample(t)
    calls = [(name, (0,), {"axis": (1,)}) for name in names]
    got = agree(module_of(calls, [t]), [x], compiled=dtype in ("i8", "bool"))
    for name, g in zip(names, got, strict=True):
        assert g.dtype == x.dtype
        wanted = np.any(x, axis=1) if name == "sum" and dtype == "bool" else over(name, x, axis=1)
        np.testing.assert_array_equal(g.astype(np.float64), wanted.astype(np.float64))


def test_sixteen_bits_are_summed_in_thirty_two():
    x = np.full(5000, 1, ml_dtypes.bfloat16)
    (got,) = tw.interpret(module_of([("sum", (0,), {"axis": (0,)})], [TensorType("bf16", x.shape)]), x)
    assert float(got) == float(ml_dtypes.bfloat16(5000))  # a bfloat16 sum would stop at 256


def test_means_of_integers_round_towards_zero():
    t = TensorType("i8", (2, 3))
    x = np.array([[127, 127, 127], [-1, -1, 0]], np.int8)
    (got,) = agree(module_of([("mean", (0,), {"axis": (1,)})], [t]), [x], compiled=False)
    np.testing.assert_array_equal(got, [127, 0])


@pytest.mark.parametrize("unbiased", [False, True])
def test_variance(unbiased):
    x, mean = TensorType("f32", (3, 6)), TensorType("f32", (3, 1))
    attrs = {"axis": (1,), "keepdims": True, "unbiased": unbiased}
    data = sample(x)
    inputs = [data, data.mean(axis=1, keepdims=True)]
    got = agree(module_of([("variance", (0, 1), attrs)], [x, mean]), inputs)
    same(got, [data.var(axis=1, keepdims=True, ddof=int(unbiased))], 1e-5)


def test_a_nan_is_the_extreme():
    x = np.array([[1, np.nan, 3, np.nan], [4, 2, 4, 2]], np.float32)
    calls = [
        (name, (0,), {"axis": (1,), "select_last_index": last})
        for name in ("argmax", "argmin")
        for last in (False, True)
    ]
    folds = [(name, (0,), {"axis": (1,)}) for name in ("max", "min")]
    got = agree(module_of(calls + folds, [TensorType("f32", x.shape)]), [x])
    np.testing.assert_array_equal(got[:4], [[1, 0], [3, 2], [1, 1], [3, 3]])
    np.testing.assert_array_equal(got[4:], [[np.nan, 4], [np.nan, 2]])


@pytest.mark.parametrize("dtype", ["f32", "i8", "bool"])
def test_positions_over_several_axes_count_in_row_major_order(dtype):
    t = TensorType(dtype, (3, 2, 4))
    x = sample(t)
    calls = [("argmax", (0,), {"axis": (0, 2)}), ("argmin", (0,), {"axis": (1,)})]
    got = agree(module_of(calls, [t]), [x], compiled=dtype == "i8")
    rows = x.transpose(1, 0, 2).reshape(2, 12)
    np.testing.assert_array_equal(got[0], rows.argmax(axis=1))
    np.testing.assert_array_equal(got[1], x.argmin(axis=1))
    assert got[0].dtype == np.int32


def test_no_position_among_no_elements():
    with pytest.raises(tw.InputError, match="from 1 to"):
        module_of([("argmax", (0,), {"axis": (1,)})], [TensorType("f32", (2, 0))])


def test_folds_of_no_elements():
    t = TensorType("f32", (2, 0))
    calls = [(name, (0,), {"axis": (1,)}) for name in ("sum", "prod", "max", "min")]
    got = agree(module_of(calls, [t]), [np.zeros(t.shape, np.float32)], compiled=False)
    np.testing.assert_array_equal([g[0] for g in got], [0, 1, -np.inf, np.inf])


def test_running_folds():
    t = TensorType("f32", (3, 5))
    x = sample(t)
    every = [(axis, exclusive) for axis in (0, 1) for exclusive in (False, True)]
    calls = [
        (name, (0,), {"axis": axis, "exclusive": exclusive})
        for name in ("cumsum", "cumprod")
        for axis, exclusive in every
    ]
    got = agree(module_of(calls, [t]), [x], compiled=False)
    agree(module_of(calls[1:5:3], [t]), [x])
    wanted = []
    for fold, start in ((np.cumsum, 0), (np.cumprod, 1)):
        for axis, exclusive in every:
            moved = np.insert(x, 0, start, axis=axis).take(range(x.shape[axis]), axis=axis)
            wanted.append(fold(moved if exclusive else x, axis=axis))
    same(got, wanted, 1e-6)


@pytest.mark.parametrize(("dtype", "into"), [("i8", "f32"), ("bool", "i32"), ("bf16", None), ("bool", None)])
def test_running_sums_of_dtypes(dtype, into):
    t = TensorType(dtype, (2, 6))
    x = sample(t)
    attrs = {"axis": 1} | ({"dtype": into} if into else {})
    (got,) = agree(module_of([("cumsum", (0,), attrs)], [t]), [x], compiled=into == "f32")
    assert got.dtype == storage_dtype(into or dtype)
    wanted = np.logical_or.accumulate(x, axis=1) if dtype == "bool" and not into else np.cumsum(x, axis=1)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


X = "%x: Tensor[(2, 3, 4), float32]"


@pytest.mark.parametrize(
    ("call", "axis", "keepdims"),
    [
        ("sum(%x)", (0, 1, 2), False),
        ("sum(%x, axis=[-1])", (2,), False),
        ("max(%x, axis=[-1, 0], keepdims=True)", (0, 2), True),
        ("mean(%x, axis=[1], exclude=True)", (0, 2), False),
        ("min(%x, axis=[-1], keepdims=True, exclude=True)", (0, 1), True),
    ],
)
def test_relay_axes(call, axis, keepdims):
    x = sample(TensorType("f32", (2, 3, 4)))
    got = tw.interpret(relay(X, call), x)
    same(got, [over(call.split("(")[0], x, axis=axis, keepdims=keepdims)], 1e-6)


def test_relay_scans_flatten_without_an_axis():
    x = sample(TensorType("f32", (2, 3, 4)))
    (got,) = tw.interpret(relay(X, "cumsum(%x)"), x)
    np.testing.assert_allclose(got, x.cumsum())


def test_relay_losses():
    p = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3)).astype(np.float32)
    t, w = np.array([0, 2, 1, 2], np.int32), np.array([0.5, 1, 2], np.float32)
    params = "%p: Tensor[(4, 3), float32], %t: Tensor[(4), int32], %w: Tensor[(3), float32]"
    each = np.where(t == 1, 0, -p[range(4), t] * w[t])
    wanted = {"none": each, "sum": each.sum(), "mean": each.sum() / w[t][t != 1].sum()}
    for reduction, loss in wanted.items():
        call = f'nn.nll_loss(%p, %t, %w, reduction="{reduction}", ignore_index=1)'
        np.testing.assert_allclose(tw.interpret(relay(params, call), p, t, w)[0], loss, rtol=1e-6)
    pair = "%p: Tensor[(4, 3), float32], %y: Tensor[(4, 3), float32]"
    for name, logs in (("cross_entropy", np.log(p)), ("cross_entropy_with_logits", p)):
        (got,) = tw.interpret(relay(pair, f"nn.{name}(%p, %y)"), p, p[::-1])
        np.testing.assert_allclose(got, -(logs * p[::-1]).sum() / 4, rtol=1e-6)
