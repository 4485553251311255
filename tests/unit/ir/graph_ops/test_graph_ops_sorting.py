"""Orders along an axis: the reference against NumPy, and reference == lowered == compiled."""

import numpy as np
import pytest
from folding_samples import agree, module_of, relay, same, sample

import tilewright as tw
from tilewright.ir import TensorType
from tilewright.passes.lower.rules import orders, sorting


def with_nan(t):
    """A sample with nans, infinities and both zeros, where the dtype has them."""
    x = sample(t)
    if t.dtype in ("f16", "bf16", "f32", "f64"):
        x.reshape(-1)[:5] = [np.nan, np.inf, -np.inf, -0.0, np.nan]
    return x


def stable(x, axis, ascending):
    """Indices of a stable order by Python's sort, a nan counting as largest."""
    keys = x.astype(np.float64)
    ranks = np.unique(np.where(np.isnan(keys), np.inf, keys), return_inverse=True)[1].reshape(x.shape)
    ranks = np.where(np.isnan(keys), ranks.max() + 1, ranks) * (1 if ascending else -1)
    return np.argsort(ranks, axis=axis, kind="stable")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "u8", "i64", "bool"])
@pytest.mark.parametrize("ascending", [True, False])
def test_orders_are_stable(dtype, ascending):
    t = TensorType(dtype, (7, 3))
    x = with_nan(t)
    order = {"axis": 0, "is_ascend": ascending}
    calls = [
        ("sort", (0,), order),
        ("argsort", (0,), {**order, "dtype": "i64"}),
        ("topk", (0,), {**order, "k": 2}),
    ]
    compiled = (dtype, ascending) == ("bf16", True)
    got = agree(module_of(calls, [t]), [x], compiled=compiled)
    places = stable(x, 0, ascending)
    ordered = np.take_along_axis(x, places, 0)
    same(got, [ordered, places, ordered[:2], places[:2].astype(np.int32)])


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("ascending", [True, False])
def test_the_first_k(k, ascending):
    t = TensorType("f32", (2, 3, 4))
    x = with_nan(t)
    attrs = {"axis": 2, "k": k, "is_ascend": ascending}
    got = agree(module_of([("topk", (0,), attrs)], [t]), [x], compiled=k == 0 and ascending)
    places = stable(x, 2, ascending)[..., :k]
    same(got, [np.take_along_axis(x, places, 2), places.astype(np.int32)])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_orders_of_no_elements(shape):
    t, axis = TensorType("f32", shape), len(shape) - 1
    calls = [("sort", (0,), {"axis": axis}), ("argsort", (0,), {"axis": axis})]
    agree(module_of(calls, [t]), [np.zeros(shape, np.float32)], compiled=shape == (3, 0))


@pytest.mark.parametrize(("shape", "axis", "ascending"), [((3000,), 0, True), ((2049, 2), 0, False)])
def test_long_axes(shape, axis, ascending):
    t = TensorType("f32", shape)
    x = with_nan(t)
    order = {"axis": axis, "is_ascend": ascending}
    calls = [("sort", (0,), order), ("argsort", (0,), order)]
    got = agree(module_of(calls, [t]), [x], compiled=False)
    places = stable(x, axis, ascending)
    same(got, [np.take_along_axis(x, places, axis), places.astype(np.int32)])


@pytest.fixture
def short_chunks(monkeypatch):
    """Axes count as long from a few elements on, which keeps kernels small."""
    for module in (sorting, orders):
        monkeypatch.setattr(module, "CHUNK", 8)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("shape", [(13,), (2, 9), (3, 61)])
def test_merges_of_sorted_chunks(shape):
    t = TensorType("i8", shape)
    x = sample(t)
    order = {"axis": len(shape) - 1, "is_ascend": False}
    got = agree(module_of([("argsort", (0,), order)], [t]), [x], compiled=shape == (2, 9))
    same(got, [stable(x, -1, False).astype(np.int32)])


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("ascending", [True, False])
def test_the_first_k_of_a_long_axis(k, ascending):
    t = TensorType("f16", (2, 45))
    x = with_nan(t)
    attrs = {"axis": 1, "k": k, "is_ascend": ascending}
    got = agree(module_of([("topk", (0,), attrs)], [t]), [x], compiled=False)
    places = stable(x, 1, ascending)[:, :k]
    same(got, [np.take_along_axis(x, places, 1), places.astype(np.int32)])


@pytest.mark.parametrize("dtype", ["f32", "i32", "bf16"])
@pytest.mark.parametrize("right", [False, True])
def test_places_in_sorted_sequences(dtype, right):
    rows, values = TensorType(dtype, (2, 6)), TensorType(dtype, (2, 3))
    one, many = TensorType(dtype, (6,)), TensorType(dtype, ())
    inputs = [np.sort(sample(rows).astype("f4"), axis=1).astype(sample(rows).dtype), sample(values, 1)]
    inputs += [inputs[0][0], sample(many, 2)]
    attrs = {"right": right}
    calls = [("searchsorted", pair, {**attrs, "dtype": "i64"}) for pair in ((0, 1), (2, 1), (2, 3))]
    got = agree(module_of(calls, [rows, values, one, many]), inputs, compiled=dtype == "i32" and right)
    side = "right" if right else "left"
    seqs, vals = inputs[0].astype("f4"), inputs[1].astype("f4")
    wanted = np.stack([np.searchsorted(s, v, side) for s, v in zip(seqs, vals, strict=True)])
    last = np.searchsorted(seqs[0], inputs[3].astype("f4"), side)
    same(got, [wanted, np.searchsorted(seqs[0], vals, side), np.asarray(last)])


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dtype", ["i64", "f32"])
def test_distinct_elements(in_order, dtype):
    t = TensorType(dtype, (9,))
    x = np.array([4, 2, 4, 9, 2, 2, 7, 9, 1]).astype(sample(t).dtype)
    attrs = {"sorted": in_order, "return_counts": True}
    got = agree(module_of([("unique", (0,), attrs)], [t]), [x], compiled=dtype == "i64" and not in_order)
    values, first, inverse, number, counts = got
    wanted = [1, 2, 4, 7, 9] if in_order else [4, 2, 9, 7, 1]
    assert number.tolist() == [5]
    assert values.tolist() == [*wanted, 0, 0, 0, 0]
    assert first.tolist() == [*(x.tolist().index(v) for v in wanted), 9, 9, 9, 9]
    assert counts.tolist() == [*(x.tolist().count(v) for v in wanted), 0, 0, 0, 0]
    np.testing.assert_array_equal(values[inverse], x)


def test_relay_topk_returns_what_is_asked_for():
    params, x = "%x: Tensor[(3, 5), float32]", sample(TensorType("f32", (3, 5)))
    places = stable(x, 1, False)
    values = np.take_along_axis(x, places, 1)
    both = tw.interpret(relay(params, "%0 = topk(%x, k=2); (%0.0, %0.1)"), x)
    same(both, [values[:, :2], places[:, :2].astype(np.int32)])
    same(tw.interpret(relay(params, 'topk(%x, k=0, ret_type="values")'), x), [values])
    got = tw.interpret(relay(params, 'topk(%x, k=1, axis=-1, ret_type="indices", dtype="int64")'), x)
    same(got, [places[:, :1]])


def test_more_elements_than_there_are_is_one_clear_error():
    with pytest.raises(tw.InputError, match=r"k in \[0, 5\]"):
        relay("%x: Tensor[(3, 5), float32]", "topk(%x, k=6)")
