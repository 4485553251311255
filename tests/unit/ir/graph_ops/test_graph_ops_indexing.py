"""Operators on indices against plain NumPy: reference, tensor level and compiled."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Builder, Func, InputError, Level, Module, TensorType, Value, dtype_name
from tilewright.ir.graph_ops.einsum import explicit_equation
from tilewright.passes import PassContext, Pipeline, run_pipeline

RNG = np.random.default_rng(7)
INTEGER_DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def randoms(*shape, dtype=np.float32):
    if np.issubdtype(dtype, np.integer):
        return RNG.integers(-9, 9, shape).astype(dtype)
    return RNG.uniform(-1, 1, shape).astype(dtype)


def indices(low, high, *shape, dtype=np.int32):
    return RNG.integers(low, high, shape).astype(dtype)


def module_of(name, arrays, attrs):
    """A module with one graph op on inputs like these arrays."""
    params = tuple(Value(TensorType(dtype_name(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.emit("graph.return", results)
    return Module("m", (Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results)),))


def check(name, arrays, wanted=None, *, compiled=False, tolerance=1e-5, **attrs):
    """Reference, tensor level and (if `compiled`) kernels agree with `wanted`; returns the reference."""
    module = module_of(name, arrays, attrs)
    tw.verify(module)
    reference = tw.interpret(module, *arrays)
    lowered = run_pipeline(
        module, Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext(verify_each=True)
    )
    runs = [reference, tw.interpret(lowered, *arrays)]
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(*arrays))
    for got in runs:
        for g, w in zip(got, reference if wanted is None else wanted, strict=True):
            w = np.asarray(w)
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=tolerance, atol=tolerance
            )
    return reference


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("mode", ["clip", "wrap", "fast"])
def test_take_brings_any_index_into_bounds(dtype, mode):
    x = randoms(3, 4, 2)
    at = np.array([[0, 3, 4], [9, 1, 100]]).astype(dtype)
    if np.issubdtype(dtype, np.signedinteger):
        at[0] = [-1, -4, -5]
    signed = at.astype(np.int64)
    wanted = np.take(x, signed % 4 if mode == "wrap" else signed.clip(0, 3), axis=1)
    check("take", [x, at], [wanted], axis=1, mode=mode)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 3, 2)])
def test_take_without_an_axis_counts_all_elements(mode, shape):
    x = randoms(*shape)
    at = indices(-2 * x.size, 2 * x.size + 1, 6, 2, dtype=np.int64)
    wanted = x.reshape(-1)[at % x.size if mode == "wrap" else at.clip(0, x.size - 1)]
    check("take", [x, at], [wanted], compiled=len(shape) == 4 and mode == "wrap", mode=mode)


@pytest.mark.parametrize(("axis", "batch"), [(1, 1), (2, 1), (2, 2), (-1, 1), (3, 2)])
def test_take_pairs_batch_dimensions(axis, batch):
    x, at = randoms(2, 3, 4, 5), indices(0, 3, 2, 3, 2, 2)
    axis %= 4
    found = []
    for lead in np.ndindex(*x.shape[:batch]):
        found.append(np.take(x[lead], at[lead], axis=axis - batch))
    wanted = np.stack(found).reshape(*x.shape[:batch], *found[0].shape)
    check("take", [x, at], [wanted], compiled=axis == 2, axis=axis, batch_dims=batch)


def test_take_of_scalar_indices_and_of_nothing():
    x = randoms(3, 4)
    check("take", [x, np.array(2)], [x[:, 2]], axis=1, compiled=True)
    check("take", [x, np.zeros((0, 2), np.int32)], [np.empty((3, 0, 2), np.float32)], axis=1)
    check("take", [randoms(0, 4), indices(0, 4, 2)], [np.empty((0, 2), np.float32)], axis=1)
    with pytest.raises(InputError, match="expected elements to pick from"):
        check("take", [randoms(0, 4), indices(0, 4, 2)], axis=0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.bool_])
def test_elements_of_any_dtype_are_picked(dtype):
    x = randoms(4, 3).astype(dtype)
    at = indices(0, 4, 5, dtype=np.uint8)
    check("take", [x, at], [x[at]], axis=0)


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_gather_reads_an_index_per_element(axis):
    x = randoms(3, 4, 5)
    shape = [2, 3, 4]
    shape[axis] = 7
    at = indices(-x.shape[axis], x.shape[axis], *shape)
    wanted = np.empty(shape, np.float32)
    for p in np.ndindex(*shape):
        q = list(p)
        q[axis] = at[p]
        wanted[p] = x[tuple(q)]
    check("gather", [x, at], [wanted], compiled=axis == 1, axis=axis)


@pytest.mark.parametrize(
    ("x", "at", "batch"),
    [
        ((3, 2), (2, 4), 0),
        ((3, 2, 4), (1, 5), 0),
        ((2, 3, 4), (2, 2), 1),
        ((2, 3, 4, 5), (1, 2, 3, 6), 2),
        ((2, 3, 4), (0, 2, 3), 2),
        ((2, 3), (0, 4), 0),
        ((2, 3), (2,), 0),
    ],
)
def test_gather_nd_lists_coordinates_in_dimension_0(x, at, batch):
    data, places = randoms(*x), indices(-2, 2, *at, dtype=np.int64)
    points, depth = at[1:], at[0]
    wanted = np.empty((*points, *x[batch + depth :]), np.float32)
    for p in np.ndindex(*points):
        wanted[p] = data[(*p[:batch], *places[(slice(None), *p)])]
    check("gather_nd", [data, places], [wanted], compiled=batch == 1, batch_dims=batch)


def test_adv_index_broadcasts_its_indices():
    x = randoms(4, 5, 6)
    a, c, d = indices(-4, 4, 3, 1), indices(0, 5, 2, dtype=np.uint8), indices(-6, 6, 1, 1, dtype=np.int64)
    check("adv_index", [x, a], [x[a]])
    check("adv_index", [x, a, c], [x[a, c]], compiled=True)
    check("adv_index", [x, a, c, d], [x[a, c, d]])
    with pytest.raises(InputError, match="from 1 to 2 index operands"):
        check("adv_index", [randoms(4, 5), a, c, d])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_one_hot_leaves_off_where_no_place_is_named(axis, dtype):
    at = indices(0, 9, 3, 4, dtype=dtype)
    places = np.moveaxis(at[..., None] == np.arange(6), -1, axis)
    on, off = np.float32(2.5), np.float32(-1)
    check("one_hot", [at, on, off], [np.where(places, on, off)], depth=6, axis=axis)
    wanted = np.where(places, 2, -1).astype(np.int64)
    check(
        "one_hot",
        [at, on, off],
        [wanted],
        depth=6,
        axis=axis,
        dtype="i64",
        compiled=dtype is np.int64 and axis == 1,
    )


def test_one_hot_compares_beyond_the_range_of_the_index_dtype():
    at = np.array([44], np.uint8)
    (got,) = check("one_hot", [at, np.int32(1), np.int32(0)], depth=400, dtype="i32")
    assert np.flatnonzero(got) == [44]


COMBINE = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": min,
    "max": max,
    "mean": lambda old, new: (old + new) / 2,
}


@pytest.mark.parametrize("mode", list(COMBINE))
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements_applies_updates_in_order(mode, axis):
    x, shape = randoms(4, 5), [3, 4]
    shape[axis] = 8
    at = indices(-x.shape[axis], x.shape[axis], *shape, dtype=np.int64)
    at[0, 0], at[1, 1] = x.shape[axis], -x.shape[axis] - 1
    updates = randoms(*shape)
    wanted = x.astype(np.float64)
    for p in np.ndindex(*shape):
        q = list(p)
        q[axis] = at[p]
        if -x.shape[axis] <= at[p] < x.shape[axis]:
            wanted[tuple(q)] = COMBINE[mode](wanted[tuple(q)], updates[p])
    wanted, compiled = [wanted.astype(np.float32)], axis == 0 and mode in ("mul", "mean")
    check("scatter_elements", [x, at, updates], wanted, compiled=compiled, axis=axis, reduction=mode)


@pytest.mark.parametrize("mode", ["update", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize(
    ("shape", "places"), [((3, 4), (2, 6)), ((3, 4), (1, 5)), ((2, 3, 4), (1, 2, 2)), ((4,), (1, 9))]
)
def test_scatter_nd_applies_updates_in_order(mode, dtype, shape, places):
    x, at = randoms(*shape, dtype=dtype), indices(-2, 2, *places)
    depth, points = places[0], places[1:]
    updates = randoms(*points, *shape[depth:], dtype=dtype)
    wanted = x.astype(np.float64)
    for p in np.ndindex(*points):
        where = tuple(at[(slice(None), *p)])
        old, new = np.atleast_1d(wanted[where]), np.atleast_1d(updates[p])
        combined = [COMBINE[mode](o, n) for o, n in zip(old.ravel(), new.ravel(), strict=True)]
        wanted[where] = np.reshape(combined, np.shape(wanted[where]))
    compiled = dtype is np.float32 and len(shape) == 3 and mode in ("update", "add")
    check("scatter_nd", [x, at, updates], [wanted.astype(dtype)], compiled=compiled, mode=mode)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_16_bit_floats_are_rounded_once(dtype):
    x, updates = np.ones(2, dtype), np.full(1000, 1 / 512, dtype)
    at = np.zeros((1, 1000), np.int32)
    (got,) = check("scatter_nd", [x, at, updates], mode="add")
    assert float(got[0]) == pytest.approx(1 + 1000 / 512, rel=1e-2)


def test_integer_means_round_towards_zero():
    x = np.array([-4, 4, 0], np.int32)
    at, updates = np.array([0, 1, 1]), np.array([1, 1, 7], np.int32)
    check("scatter_elements", [x, at, updates], [np.array([-1, 4, 0], np.int32)], reduction="mean")


def test_scatter_faults_name_what_was_expected():
    x, at = randoms(3, 4), indices(0, 3, 2, 4)
    with pytest.raises(InputError, match="one update per index"):
        check("scatter_elements", [x, at, randoms(3, 4)])
    with pytest.raises(InputError, match="expected one of update, add, mul, min, max, mean, got 'sub'"):
        check("scatter_elements", [x, at, randoms(2, 4)], reduction="sub")
    with pytest.raises(InputError, match="no larger than"):
        check("scatter_elements", [x, indices(0, 3, 2, 5), randoms(2, 5)])
    with pytest.raises(InputError, match=r"updates of shape \(4,\)"):
        check("scatter_nd", [x, at[:2], randoms(3)])
    with pytest.raises(InputError, match="expected numbers to add"):
        check("scatter_nd", [x > 0, at[:1], randoms(4, 4) > 0], mode="add")


def test_sparse_to_dense_drops_rows_out_of_bounds():
    rows = np.array([[0, 1], [2, 2], [0, 1], [3, 0], [-1, 0]])
    values = np.array([1, 2, 3, 4, 5], np.float32)
    wanted = np.full((3, 4), 9, np.float32)
    wanted[0, 1], wanted[2, 2] = 3, 2
    check("sparse_to_dense", [rows, values, np.float32(9)], [wanted], output_shape=(3, 4), compiled=True)
    wanted = np.array([0, 7, 7], np.int64)
    check("sparse_to_dense", [np.array([1, 2]), np.int64(7), np.int64(0)], [wanted], output_shape=(3,))
    wanted = np.array([0, 7, 0], np.int64)
    check("sparse_to_dense", [np.array(1), np.int64(7), np.int64(0)], [wanted], output_shape=(3,))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_unravel_index(dtype):
    places, shape = indices(0, 24, 5, 2, dtype=dtype), np.array([2, 3, 4], dtype)
    wanted = np.stack(np.unravel_index(places, (2, 3, 4))).astype(dtype)
    check("unravel_index", [places, shape], [wanted], compiled=True)
    check("unravel_index", [dtype(25), shape], [np.array([0, 0, 1], dtype)])


@pytest.mark.parametrize("new", [(4, -1), (-1,), (2, 3, 4), (2, 2, 6), (-1, 3, 4)])
def test_sparse_reshape_keeps_places(new):
    rows = np.stack(np.unravel_index(indices(0, 24, 7), (2, 3, 4)), axis=1).astype(np.int64)
    shape = np.empty(24).reshape(new).shape
    places = np.ravel_multi_index(tuple(rows.T), (2, 3, 4))
    wanted = np.stack(np.unravel_index(places, shape), axis=1).astype(np.int64)
    before, after = np.array([2, 3, 4]), np.array(new)
    check("sparse_reshape", [rows, before, after], [wanted, np.array(shape)], compiled=new == (4, -1))


EQUATIONS = [
    ("ab,bc->ac", [(4, 5), (5, 6)]),
    ("ij->ji", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii->", [(4, 4)]),
    ("iij,jk->ik", [(3, 3, 4), (4, 5)]),
    ("i,i->", [(7,), (7,)]),
    ("ij,j->i", [(4, 5), (5,)]),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 8), (2, 6, 3, 8)]),
    ("i,j->ji", [(3,), (4,)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
    ("ijk->", [(2, 3, 4)]),
    ("ab,cd->", [(2, 3), (4, 5)]),
    ("ij,kj->ki", [(1, 4), (3, 4)]),
    ("ab,ab->a", [(3, 1), (3, 7)]),
    (",a->a", [(), (3,)]),
    ("ab,b->b", [(0, 3), (3,)]),
    ("xy,yz->xz", [(3, 0), (0, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation, shapes):
    arrays = [randoms(*s) for s in shapes]
    compiled = equation in ("xy,yz->xz", "bqhd,bkhd->bhqk", "iij,jk->ik", "ij,jk,kl->il")
    check("einsum", arrays, [np.einsum(equation, *arrays)], equation=equation, compiled=compiled)
    whole = [(a * 10).astype(np.int32) for a in arrays]
    check("einsum", whole, [np.einsum(equation, *whole)], equation=equation)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ij,jk", [(3, 4), (4, 5)]), ("ba", [(2, 3)]), ("...ij,jk", [(2, 6, 3, 4), (4, 5)]), ("ii", [(3, 3)]),
     ("a...,...->a...", [(4, 2, 3), (3,)]), (" i j , j -> i", [(3, 4), (4,)]), ("...,...", [(2, 3), (3,)])],
)  # fmt: skip
def test_explicit_equations_mean_what_numpy_means(equation, shapes):
    arrays = [randoms(*s) for s in shapes]
    spelt = explicit_equation(equation, [a.ndim for a in arrays])
    assert "." not in spelt
    assert " " not in spelt
    check("einsum", arrays, [np.einsum(equation, *arrays)], equation=spelt)


def test_einsum_faults():
    x = randoms(3, 4)
    for equation, message in (
        ("ab,bc->ac", "one extent of 'b'"), ("ab,ab->aa", "distinct labels"), ("ab,cd->e", "distinct labels"),
        ("abc,de->a", "a dimension per label"), ("ab,cd", "an equation such as"), ("a?,cd->a", "such as"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            check("einsum", [x, randoms(3, 4)], equation=equation)


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 17), (2, 2, 30)])
def test_dft_and_its_inverse(shape):
    real, imaginary = randoms(*shape), randoms(*shape)
    for inverse, transform in ((False, np.fft.fft), (True, np.fft.ifft)):
        out = transform(real + 1j * imaginary.astype(np.float64))
        wanted = [out.real.astype(np.float32), out.imag.astype(np.float32)]
        check(
            "dft",
            [real, imaginary],
            wanted,
            tolerance=1e-4,
            compiled=shape == (3, 17) and not inverse,
            inverse=inverse,
        )


@pytest.mark.parametrize(("normalized", "onesided"), list(itertools.product([False, True], repeat=2)))
def test_stft_transforms_windowed_frames(normalized, onesided):
    x, window = randoms(2, 50), randoms(16)
    frames = np.stack([x[:, t : t + 16] * window for t in range(0, 35, 5)], axis=-1)
    out = np.fft.fft(frames, axis=1)[:, : 9 if onesided else 16] / (4 if normalized else 1)
    wanted = np.stack([out.real, out.imag], axis=-1).astype(np.float32)
    check(
        "stft", [x, window], [wanted], tolerance=1e-4, compiled=onesided and normalized, n_fft=16,
        hop_length=5, win_length=16, normalized=normalized, onesided=onesided,
    )  # fmt: skip


def test_stft_of_one_signal_with_a_short_window():
    (got,) = check("stft", [randoms(20), indices(0, 3, 3)], n_fft=4, hop_length=2, win_length=3)
    assert got.shape == (3, 9, 2)
    with pytest.raises(InputError, match="win_length <= n_fft"):
        check("stft", [randoms(20), indices(0, 3, 5)], n_fft=4, hop_length=2, win_length=5)
