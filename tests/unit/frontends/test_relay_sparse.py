"""Relay's sparse matrices and Relay's operators on indices, imported and run against SciPy and NumPy."""

import numpy as np
import pytest
import scipy.sparse

import tilewright as tw
from tilewright.frontends.importing.call import Call
from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.frontends.relay.rules.indexing import RULES
from tilewright.ir import Func, Level, Module, TensorType, UnsupportedError, Value
from tilewright.ir.constants import Constants

RNG = np.random.default_rng(3)
CSR = "%d: Tensor[(7), float32], %i: Tensor[(7), int32], %p: Tensor[(7), int32]"


def imported(signature, body):
    source = f'#[version = "0.0.5"]\ndef @main({signature}) {{\n  {body}\n}}\n'
    return import_module(read_source(source, "t.relay"))


def randoms(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def sparse_matrix(rows, columns, count):
    """Compressed rows with `count` elements; some rows are empty."""
    places = np.sort(RNG.choice(rows * columns, count, replace=False))
    starts = np.searchsorted(places // columns, np.arange(rows + 1)).astype(np.int32)
    return scipy.sparse.csr_matrix(
        (randoms(count), (places % columns).astype(np.int32), starts), (rows, columns)
    )


def parts(matrix):
    return matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)


@pytest.mark.parametrize("sparse_lhs", [False, True])
def test_product_with_compressed_rows(sparse_lhs):
    w, x = sparse_matrix(6, 5, 7), randoms(4, 5)
    module = imported(
        f"%x: Tensor[(4, 5), float32], {CSR}", f"nn.sparse_dense(%x, %d, %i, %p, sparse_lhs={sparse_lhs})"
    )
    wanted = w @ x.T if sparse_lhs else (w @ x.T).T
    (got,) = tw.interpret(module, x, *parts(w))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    with tw.compile(module, target="opencl") as exe:
        np.testing.assert_allclose(exe(x, *parts(w))[0], wanted, rtol=1e-5, atol=1e-6)


def test_product_with_compressed_rows_of_blocks():
    blocks, columns, starts = (
        randoms(3, 2, 4),
        np.array([1, 0, 1], np.int32),
        np.array([0, 1, 1, 3], np.int32),
    )
    w, x = scipy.sparse.bsr_matrix((blocks, columns, starts), (6, 8)), randoms(5, 8)
    module = imported(
        "%x: Tensor[(5, 8), float32], %d: Tensor[(3, 2, 4), float32], %i: Tensor[(3), int32], "
        "%p: Tensor[(4), int32]",
        "nn.sparse_dense(%x, %d, %i, %p)",
    )
    (got,) = tw.interpret(module, x, blocks, columns, starts)
    np.testing.assert_allclose(got, x @ w.toarray().T, rtol=1e-5, atol=1e-6)


def test_sum_with_compressed_rows():
    w, x = sparse_matrix(6, 5, 7), randoms(6, 5)
    module = imported(f"%x: Tensor[(6, 5), float32], {CSR}", "nn.sparse_add(%x, %d, %i, %p)")
    np.testing.assert_allclose(tw.interpret(module, x, *parts(w))[0], x + w.toarray(), rtol=1e-6)


def test_transposed_compressed_rows():
    w = sparse_matrix(6, 6, 7)
    got = tw.interpret(imported(CSR, "nn.sparse_transpose(%d, %i, %p)"), *parts(w))
    for g, wanted in zip(got, parts(w.T.tocsr()), strict=True):
        np.testing.assert_array_equal(g, wanted)


def test_take_with_a_negative_axis_and_batch():
    module = imported(
        "%x: Tensor[(2, 3, 4), float32], %i: Tensor[(2, 5), int32]", "take(%x, %i, axis=-1, batch_dims=-1)"
    )
    x, at = randoms(2, 3, 4), RNG.integers(0, 4, (2, 5)).astype(np.int32)
    (got,) = tw.interpret(module, x, at)
    np.testing.assert_allclose(got, np.stack([x[b][:, at[b]] for b in range(2)]), rtol=1e-6)


def test_einsum_spells_out_ellipses():
    module = imported(
        "%x: Tensor[(2, 3, 4), float32], %y: Tensor[(4, 5), float32]",
        '%0 = (%x, %y);\n  einsum(%0, equation="...ij,jk->...ik")',
    )
    x, y = randoms(2, 3, 4), randoms(4, 5)
    np.testing.assert_allclose(tw.interpret(module, x, y)[0], x @ y, rtol=1e-5, atol=1e-5)


def test_empty_rows_are_filled_where_indices_are_known():
    emit = Emitter(taken=())
    values, default = (Value(TensorType("f32", shape), "v") for shape in ((4,), (1,)))
    rows = np.array([[0, 1], [2, 0], [2, 3], [3, 1]])
    indices, shape = emit.constant(rows), emit.constant(np.array([5, 4]))
    results = RULES["sparse_fill_empty_rows"](emit, Call([indices, values, shape, default]))
    emit.builder.do("graph.return", *results)
    block = emit.builder.block((values, default))
    func = Func(Level.GRAPH, "main", block, tuple(v.type for v in results))
    module = Module("m", (func,), (), Constants(emit.constants))
    got = tw.interpret(module, np.arange(1, 5, dtype=np.float32), np.array([9], np.float32))
    np.testing.assert_array_equal(got[0], [[0, 1], [1, 0], [2, 0], [2, 3], [3, 1], [4, 0]])
    np.testing.assert_array_equal(got[1], [1, 9, 2, 3, 4, 9])
    np.testing.assert_array_equal(got[2], [False, True, False, False, True])


def test_unknown_indices_leave_the_size_of_filled_rows_open():
    declared = "%i: Tensor[(3, 2), int64], %v: Tensor[(3), float32], %s: Tensor[(2), int64]"
    with pytest.raises(
        UnsupportedError, match="constant indices and a constant shape of sparse_fill_empty_rows"
    ):
        imported(f"{declared}, %z: Tensor[(1), float32]", "sparse_fill_empty_rows(%i, %v, %s, %z)")
