"""Moving, repeating and padding elements: reference, tensor level and compiled kernels against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir import Builder, Func, InputError, Level, Module, TensorType, Value, dtype_name
from tilewright.ir.graph_ops.matrices import diagonal_length
from tilewright.ir.graph_ops.movement import resolve_slice
from tilewright.ir.graph_ops.sequences import range_count
from tilewright.passes import PassContext, Pipeline, run_pipeline

RNG = np.random.default_rng(0)
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def module_of(*calls):
    """A module of one graph op per call (name, operand types, attributes), each on inputs of its own."""
    b, params, results = Builder("test:op"), [], []
    for name, types, attrs in calls:
        given = [Value(t, f"x{len(params) + i}") for i, t in enumerate(types)]
        params += given
        results += b.emit(f"graph.{name}", given, attrs)
    b.emit("graph.return", results)
    func = Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results))
    return Module("m", (func,))


def numbered(*shape, dtype="float32"):
    """An array whose elements tell where they are, as far as the dtype can."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    flat = np.arange(int(np.prod(shape))) % 120
    return (flat % 2 if dtype == "bool" else flat).reshape(shape).astype(kind)


def check(*calls, compiled=False):
    """Every op (name, arrays, what it gives exactly, attributes) computes that at every level."""
    arrays = [[np.asarray(a) for a in given] for _, given, _, _ in calls]
    kinds = [[TensorType(dtype_name(a.dtype), a.shape) for a in given] for given in arrays]
    module = module_of(*((c[0], types, c[3]) for c, types in zip(calls, kinds, strict=True)))
    inputs = [a for given in arrays for a in given]
    tw.verify(module)
    lowered = run_pipeline(
        module, Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext(verify_each=True)
    )
    runs = [tw.interpret(module, *inputs), tw.interpret(lowered, *inputs)]
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(*inputs))
    for run in runs:
        for got, (name, _, wanted, attrs) in zip(run, calls, strict=True):
            said = f"{name} {attrs}"
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), said
            np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64), said)


def sliced(x, begin, size, strides):
    index = [f + np.arange(n) * s for f, n, s in zip(begin, size, strides, strict=True)]
    return x[np.ix_(*index)] if index else x


X = numbered(3, 4, 5)
CASES = {
    "transpose": ([X], X.transpose(2, 0, 1), {"axes": (2, 0, 1)}),
    "transpose-negative": ([X], X.transpose(1, 2, 0), {"axes": (-2, -1, 0)}),
    "broadcast_to": ([X[:, :1]], np.broadcast_to(X[:, :1], (2, 3, 4, 5)), {"shape": (2, 3, 4, 5)}),
    "broadcast_to-scalar": ([X[1, 2, 3]], np.full((2, 3), X[1, 2, 3]), {"shape": (2, 3)}),
    "strided_slice": (
        [X],
        X[1:3, ::2, ::-1],
        {"begin": (1, 0, 4), "size": (2, 2, 5), "strides": (1, 2, -1)},
    ),
    "strided_slice-to-first": (
        [X],
        X[::-2, 3::-3, :0],
        {"begin": (2, 3, 0), "size": (2, 2, 0), "strides": (-2, -3, 1)},
    ),
    "reverse": ([X], X[:, ::-1], {"axis": -2}),
    "tile": ([X], np.tile(X, (2, 1, 3)), {"reps": (2, 1, 3)}),
    "tile-leading": ([X[0]], np.tile(X[0], (2, 1, 3, 2)), {"reps": (2, 1, 3, 2)}),
    "repeat": ([X], np.repeat(X, 3, axis=1), {"repeats": 3, "axis": -2}),
    "pad": (
        [X],
        np.pad(X, ((1, 0), (0, 0), (2, 3)), constant_values=-np.inf),
        {"pad_before": (1, 0, 2), "pad_after": (0, 0, 3), "pad_value": -np.inf},
    ),
    "pad-operand": (
        [X, np.float32(7)],
        np.pad(X, ((1, 2), (0, 1), (3, 0)), constant_values=7),
        {"pad_before": (1, 0, 3), "pad_after": (2, 1, 0)},
    ),
    **{
        f"pad-{mode}": (
            [X],
            np.pad(X, ((2, 2), (0, 0), (3, 4)), mode=mode),
            {"pad_before": (2, 0, 3), "pad_after": (2, 0, 4), "pad_mode": mode},
        )
        for mode in ("edge", "reflect", "symmetric")
    },
    "reverse_sequence": (
        [numbered(3, 2, 4), np.array([4, 0, 9, 1], np.int64)],
        np.stack(
            [numbered(3, 2, 4)[::s, :, b] for b, s in enumerate((-1, 1, -1, 1))],
            axis=-1,
        ),
        {"seq_axis": 0, "batch_axis": 2},
    ),
    "sequence_mask": (
        [X, np.array([1, 5, 0], np.int32)],
        np.where(np.arange(4)[:, None] < np.array([1, 5, 0])[:, None, None], X, -2),
        {"axis": 1, "mask_value": -2},
    ),
    "sequence_mask-first": (
        [X, np.array([2.5, 0, 3, 1], np.float32)],
        np.where(np.arange(3)[:, None, None] < np.array([2.5, 0, 3, 1])[:, None], X, 0),
        {},
    ),
    "sliding_window": (
        [X],
        np.stack([[X[:, i : i + 2, j : j + 3] for j in (0, 1, 2)] for i in (0, 2)]).transpose(2, 0, 1, 3, 4),
        {"axis": 1, "window_shape": (2, 3), "strides": (2, 1)},
    ),
    "trilu": ([X], np.triu(X, 1), {"k": 1}),
    "trilu-lower": ([X], np.tril(X, -1), {"k": -1, "upper": False}),
    "trilu-operand": ([X, np.int64(2)], np.triu(X, 2), {}),
}  # fmt: skip


def call(name):
    arrays, wanted, attrs = CASES[name]
    return name.split("-")[0], arrays, wanted.astype(np.asarray(arrays[0]).dtype), attrs


@pytest.mark.parametrize("name", CASES)
def test_op(name):
    check(call(name))


def test_ops_compiled():
    check(*map(call, CASES), compiled=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    x = numbered(3, 4, dtype=dtype)
    zeros, ones = np.zeros((5, 7), x.dtype), np.full((4, 4), x[1, 1])
    zeros[1:4, 2:6], ones[1:] = x, x
    check(
        ("transpose", [x], x.T, {"axes": (1, 0)}),
        ("pad", [x], zeros, {"pad_before": (1, 2), "pad_after": (1, 1), "pad_value": 0}),
        ("trilu", [x], np.triu(x), {}),
    )
    attrs = {"pad_before": (1, 0), "pad_after": (0, 0)}
    check(("pad", [x, x[1, 1]], ones, attrs), compiled=dtype not in ("float32", "int32", "uint8"))


@pytest.mark.parametrize("rank", range(6))
def test_every_rank(rank):
    x = numbered(*(2, 3, 1, 2, 3)[:rank])
    ones = (1,) * rank
    check(
        ("transpose", [x], x.T, {"axes": tuple(range(rank))[::-1]}),
        ("tile", [x], np.tile(x, (2,) * rank), {"reps": (2,) * rank}),
        ("strided_slice", [x], x, {"begin": (0,) * rank, "size": x.shape, "strides": ones}),
        ("pad", [x], np.pad(x, 1) if rank else x, {"pad_before": ones, "pad_after": ones}),
        ("broadcast_to", [x], np.broadcast_to(x, (2, *x.shape)), {"shape": (2, *x.shape)}),
    )


def test_no_elements():
    x, y = numbered(0, 3), numbered(2, 3)
    check(
        ("transpose", [x], x.T, {"axes": (1, 0)}),
        ("tile", [x], np.tile(x, (2, 2)), {"reps": (2, 2)}),
        ("pad", [x], np.ones_like(y), {"pad_before": (1, 0), "pad_after": (1, 0), "pad_value": 1.0}),
        ("repeat", [y], y[:, :0], {"repeats": 0, "axis": 1}),
        ("tile", [y], y[:0], {"reps": (0, 1)}),
        ("strided_slice", [y], y[:0], {"begin": (0, 0), "size": (0, 3), "strides": (1, 1)}),
        compiled=True,
    )


@settings(max_examples=30)
@given(st.sampled_from(["edge", "reflect", "symmetric"]), *[st.integers(0, 9)] * 4, st.integers(1, 4))
def test_mirrors_repeat_as_in_numpy(mode, top, bottom, left, right, size):
    x = numbered(size, 3)
    wanted = np.pad(x, ((top, bottom), (left, right)), mode=mode)
    attrs = {"pad_before": (top, left), "pad_after": (bottom, right), "pad_mode": mode}
    check(("pad", [x], wanted, attrs))


@settings(max_examples=60)
@given(st.integers(0, 7), st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool))
def test_slices_are_those_of_numpy(extent, begin, end, step):
    x = np.arange(extent)
    # NumPy has no end before the first element for negative steps; far enough below it does.
    stop = end if end >= -extent or step > 0 else None
    wanted = x[begin:stop:step]
    try:
        first, size, strides = resolve_slice((extent,), (begin,), (end,), (step,))
    except InputError:
        assert wanted.size == 0
        return
    np.testing.assert_array_equal(sliced(x, first, size, strides), wanted)


def test_slices_by_size_and_axes():
    assert resolve_slice((3, 4, 3), (1, 0, 0), (-1, 2, 3), (2, 2, 2), slice_mode="size") == (
        (1, 0, 0),
        (2, 2, 3),
        (1, 1, 1),
    )
    assert resolve_slice((3, 4, 5), (-2,), (9,), (), axes=(-1,)) == ((0, 0, 3), (3, 4, 2), (1, 1, 1))
    assert resolve_slice((3, 4), (1, 1), (3,)) == ((1, 1), (2, 3), (1, 1))


@pytest.mark.parametrize(
    "given",
    [
        ((3,), (2,), (1,)),
        ((3,), (0,), (2,), (0,)),
        ((3,), (0, 0), (1, 1)),
        ((3,), (0,), (1,), (), (4,)),
        ((3,), (0,), (1,), (), None, "begin"),
    ],
)
def test_slices_that_are_none(given):
    with pytest.raises(InputError):
        resolve_slice(*given)


@pytest.mark.parametrize(
    ("begin", "size", "strides"),
    [
        ((0, 0), (3, 4), (1, 1)),
        ((1, 0), (2, 2), (1, 3)),
        ((2, 3), (2, 4), (-2, -1)),
        ((1, 2), (1, 1), (2, 5)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_strided_set(begin, size, strides, dtype):
    x, v = numbered(3, 4, dtype=dtype), 1 - numbered(*size, dtype=dtype).astype(np.int8)
    v, wanted = v.astype(x.dtype), x.copy()
    index = [f + np.arange(n) * s for f, n, s in zip(begin, size, strides, strict=True)]
    wanted[np.ix_(*index)] = v
    check(("strided_set", [x, v], wanted, {"begin": begin, "strides": strides}), compiled=dtype == "float32")


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_blocks_of_pixels(layout, mode):
    x = numbered(2, 8, 3, 4)
    depth = np.empty((2, 2, 6, 8), np.float32)
    for c in range(2):
        for row in range(2):
            for column in range(2):
                channel = (row * 2 + column) * 2 + c if mode == "DCR" else (c * 2 + row) * 2 + column
                depth[:, c, row::2, column::2] = x[:, channel]
    if layout == "NHWC":
        x, depth = x.transpose(0, 2, 3, 1).copy(), depth.transpose(0, 2, 3, 1).copy()
    attrs = {"block_size": 2, "layout": layout, "mode": mode}
    check(
        ("depth_to_space", [x], depth, attrs),
        ("space_to_depth", [depth], x, attrs),
        compiled=(layout, mode) == ("NHWC", "CRD"),
    )


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 3, 3)])
@pytest.mark.parametrize("k1", [-2, -1, 0, 2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("right", [True, False])
def test_matrix_set_diag(shape, k1, count, right):
    rows, columns, k2 = *shape[-2:], k1 + count - 1
    if k2 >= columns:
        return
    lengths = [diagonal_length(rows, columns, k) for k in range(k1, k2 + 1)]
    diagonal = -1 - numbered(*shape[:-2], *((count,) if count > 1 else ()), max(lengths))
    wanted = numbered(*shape)
    for k, n in zip(range(k1, k2 + 1), lengths, strict=True):
        row = diagonal if count == 1 else diagonal[..., k2 - k, :]
        row = row[..., row.shape[-1] - n :] if right else row[..., :n]
        for j in range(n):
            wanted[..., j + max(0, -k), j + max(0, k)] = row[..., j]
    align = {"super_diag_right_align": right, "sub_diag_right_align": right}
    attrs = {"k1": k1, "k2": k2, **align}
    compiled = shape == (3, 4) and right and k1 < 0
    check(("matrix_set_diag", [numbered(*shape), diagonal], wanted, attrs), compiled=compiled)


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [
        (0, 10, 1, "i32"),
        (5, -6, -3, "i64"),
        (1 << 40, (1 << 40) + 3, 1, "i64"),
        (3, 3, 1, "f32"),
        (1.5, 9, 2.5, "f32"),
        (0, 40, 1, "f16"),
        (0.5, 6, 1, "i32"),
        (0, 200, 7, "u8"),
    ],
)
def test_arange(start, stop, step, dtype):
    kind = {"i32": "i4", "i64": "i8", "f32": "f4", "f16": "f2", "u8": "u1"}[dtype]
    wanted = np.asarray([start + step * i for i in range(range_count(start, stop, step))]).astype(kind)
    assert wanted.size == np.arange(start, stop, step).size
    attrs = {"start": start, "stop": stop, "step": step, "dtype": dtype}
    check(("arange", [], wanted, attrs), compiled=step in (-3, 2.5))


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "said"),
    [
        ("transpose", [(2, 3)], {"axes": (0,)}, "2 axes"),
        ("transpose", [(2, 3)], {"axes": (0, 0)}, "distinct"),
        ("broadcast_to", [(2, 3)], {"shape": (2, 1)}, "broadcasts to"),
        ("broadcast_to", [(2, 3)], {"shape": (2, 4)}, "broadcast"),
        ("strided_slice", [(3,)], {"begin": (1,), "size": (3,), "strides": (1,)}, "within dimension 0"),
        ("strided_slice", [(3,)], {"begin": (1,), "size": (1,), "strides": (0,)}, "within dimension 0"),
        ("strided_slice", [(3,)], {"begin": (), "size": (), "strides": ()}, "1 entries"),
        ("strided_set", [(3,), (4,)], {"begin": (0,), "strides": (1,)}, "within dimension 0"),
        ("tile", [(2, 3)], {"reps": (2,)}, "at least 2"),
        ("repeat", [(2, 3)], {"repeats": -1, "axis": 0}, "number of repeats"),
        ("sliding_window", [(3,)], {"axis": 0, "window_shape": (4,), "strides": (1,)}, "windows that fit"),
        ("pad", [(2,)], {"pad_before": (-1,), "pad_after": (0,)}, "at least 0"),
        ("pad", [(2,)], {"pad_before": (1,), "pad_after": (0,), "pad_mode": "wrap"}, "pad_mode"),
        ("pad", [(0,)], {"pad_before": (1,), "pad_after": (0,), "pad_mode": "edge"}, "elements to repeat"),
        ("pad", [(2,), (2,)], {"pad_before": (1,), "pad_after": (0,)}, "one f32"),
        ("depth_to_space", [(1, 6, 2, 2)], {"block_size": 2}, "multiple of 4"),
        ("space_to_depth", [(1, 1, 3, 2)], {"block_size": 2}, "divide into blocks"),
        ("space_to_depth", [(1, 1, 2, 2)], {"block_size": 2, "mode": "ABC"}, "mode"),
        ("sequence_mask", [(2, 3), (2,)], {}, "lengths of shape"),
        ("reverse_sequence", [(2, 3), (2,)], {}, "integer"),
        ("trilu", [(3,)], {}, "rank 2"),
        ("matrix_set_diag", [(3, 3), (3,)], {"k1": 1, "k2": 0}, "k1 <= k2"),
        ("matrix_set_diag", [(3, 3), (3,)], {"k1": 1, "k2": 1}, r"diagonals f32\[2\]"),
        ("arange", [], {"stop": 3, "step": 0}, "step other than 0"),
    ],
)
def test_errors(name, shapes, attrs, said):
    with pytest.raises(InputError, match=said):
        module_of((name, [TensorType("f32", shape) for shape in shapes], attrs))
