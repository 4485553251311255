"""float32 products by split factors on the emulator: errors beside chains, hard ranges, recomputed sums."""

from itertools import product as product_of

import numpy as np
import pytest
from decision_samples import with_template
from matrix_samples import (
    contraction,
    convolution,
    convolved,
    emulated,
    gemm,
    inputs_of,
    lowered,
    matrix_parameters,
    product,
    source,
)
from split_samples import KINDS, ROUNDOFF, assert_no_worse, chain, factors, pieces, truncated

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Func, InputError, parse, walk
from tilewright.ir.float_pieces import SCALE
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.view import LEAST_GROUP_SUM
from tilewright.passes.tensor.factors.allow_split import LEAST_SUM

M, N, K = 40, 24, 196
#: tiles of warps, and of a warpgroup
TILES = {"mma": (32, 16, 32, 1, 1, 3), "wgmma": (64, 16, 32, 4, 1, 2)}


def split_gemm(*sizes: int, **more) -> Func:
    return gemm("f32", *sizes, arithmetic="split", **more)


@pytest.mark.emulator
@pytest.mark.parametrize("engine", TILES)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_no_larger_than_those_of_a_chain(kind, engine):
    a, b = factors(kind, M, K, N)
    got = emulated(split_gemm(M, N, K), [a, np.ascontiguousarray(b.T)], *TILES[engine], engine=engine)
    assert_no_worse(got, a, b, kind)


@pytest.mark.emulator
def test_products_with_powers_of_two_are_exact():
    a = np.random.default_rng(3).standard_normal((M, K)).astype(np.float32)
    b = np.zeros((N, K), dtype=np.float32)
    b[np.arange(N), np.arange(N)] = 2.0 ** np.arange(-12, N - 12)
    got = emulated(split_gemm(M, N, K), [a, b], *TILES["mma"])
    np.testing.assert_array_equal(got, a.astype(np.float64) @ b.T.astype(np.float64))


@pytest.mark.emulator
@pytest.mark.parametrize("engine", TILES)
def test_what_is_not_finite_or_too_large_is_computed_as_on_the_lanes(engine):
    a, b = factors("normal", M, K, N)
    a[3, 5], b[9, 7], a[20, 2], a[33, :] = np.inf, np.nan, 3e38, 0.0
    a[21], b[:, 4] = a[21] * 1e30, b[:, 4] * 1e-30
    a[22], b[:, 5] = a[22] * 1e15, b[:, 5] * 1e15  # products of 1e30
    a[30, 30], b[30, :] = np.inf, 0.0  # inf * 0
    got = emulated(split_gemm(M, N, K), [a, np.ascontiguousarray(b.T)], *TILES[engine], engine=engine)
    want = chain(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    finite = np.isfinite(want)
    assert finite.sum() > 0.8 * (M - 2) * (N - 1)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        assert (np.abs(got - exact)[finite] <= 8 * ROUNDOFF * size[finite]).all()


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("orders", "size", "tiles", "sets", "batch"),
    [
        (("mc", "nc"), (33, 40, 76), (32, 32, 16, 1, 2, 3), 1, 0),
        (("cm", "cn"), (36, 40, 50), (32, 32, 32, 1, 1, 2), 1, 0),
        (("mc", "cn"), (17, 9, 67), (16, 16, 32, 1, 1, 4), 1, 2),  # nothing is aligned
        (("mc", "nc"), (40, 56, 200), (32, 24, 64, 1, 1, 2), 2, 0),
        (("cm", "nc"), (40, 24, 130), (16, 16, 128, 1, 1, 2), 4, 0),
    ],
)
def test_products(orders, size, tiles, sets, batch):
    """Any order in memory, a start of the sum, several sets of warps; a nan in one place stays there."""
    kernel = split_gemm(*size, first=orders[0], second=orders[1], batch=batch)
    op = contraction(kernel)
    started = [o.with_attrs(init=(3.0,)) if o is op else o for o in kernel.body.ops]
    kernel = kernel.with_body(kernel.body.with_ops(tuple(started)))
    a, b = inputs_of(kernel)
    first, second = a.astype(np.float64), b.astype(np.float64)
    first = np.swapaxes(first, -1, -2) if orders[0] == "cm" else first
    second = second if orders[1] == "cn" else np.swapaxes(second, -1, -2)
    got = emulated(kernel, [a, b], *tiles, warps_k=sets)
    assert np.abs(got - (first @ second + 3)).max() <= 1e-6 * np.abs(first @ second).max()
    row = a[..., 5] if orders[0] == "cm" else a[..., 5, :]
    row[...] = np.nan
    spoilt = emulated(kernel, [a, b], *tiles, warps_k=sets)
    assert np.isnan(spoilt[..., 5, :]).all()
    np.testing.assert_array_equal(np.delete(spoilt, 5, axis=-2), np.delete(got, 5, axis=-2))


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        ((70, 40, 204), (64, 40, 16, 4, 1, 3)),
        ((200, 20, 196), (128, 32, 32, 8, 1, 2)),
        ((70, 72, 200), (64, 80, 32, 4, 2, 4)),
    ],
)
def test_products_by_warpgroups(size, tiles):
    kernel = split_gemm(*size)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    got = emulated(kernel, [a, b], *tiles, engine="wgmma")
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.emulator
@pytest.mark.parametrize(("layout", "engine"), [("NHWC", "mma"), ("NCHW", "mma"), ("NHWC", "wgmma")])
def test_convolutions(layout, engine):
    """Windows with edges, results with an epilogue, and infinite pixels."""
    shape = (1, (9, 7), 24, 24, 3, 2, layout)
    kernel = convolution("f32", *shape, arithmetic="split")
    inputs = inputs_of(kernel)
    tiles = (32, 16, 16, 1, 1, 2) if engine == "mma" else (64, 24, 16, 4, 1, 2)
    got = emulated(kernel, inputs, *tiles, engine=engine)
    assert np.abs(got - convolved(*inputs, *shape[4:])).max() < 1e-5
    inputs[0][0, 3, 3, 3] = np.inf
    spoilt = emulated(kernel, inputs, *tiles, engine=engine)
    kept = np.isfinite(spoilt)
    assert 0.5 < kept.mean() < 1.0
    np.testing.assert_array_equal(spoilt[kept & (spoilt != 0)], got[kept & (spoilt != 0)])


DOUBLED = """%x = tensor.map(%a, par = (m: 24, c: 72), reads = [[m, c]]) : f32[24, 72] {
  ^(%1: f32)
  %2 = scalar.add(%1, %1) : f32
  scalar.yield(%2)
}"""


@pytest.mark.emulator
def test_factors_that_the_threads_compute():
    kernel = product(
        "f32", ["24, 72", "16, 72"], "m: 24, n: 16", "c: 72", ["[m, c]", "[n, c]"],
        before=DOUBLED, given="f32[24, 72]", arithmetic="split",
    )  # fmt: skip
    a, b = inputs_of(kernel)
    got = emulated(kernel, [a, b], 16, 16, 16, 1, 1, 2)
    want = 2 * a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
    a[3, 70] = 3e38  # twice as much is infinite
    assert np.isinf(emulated(kernel, [a, b], 16, 16, 16, 1, 1, 2)[3]).all()


@pytest.mark.parametrize(
    ("arch", "engine", "tiles"),
    [("sm_80", "mma", (64, 32, 32, 2, 1, 3)), ("sm_90a", "wgmma", (64, 128, 32, 4, 1, 3))],
)
def test_kernels_build_without_spills(arch, engine, tiles):
    text = source(lowered(split_gemm(512, 512, 512), *tiles, engine=engine))
    built = compile_cuda(text, arch=arch)
    assert not any(k.spill_bytes for k in built.kernels.values())
    assert "serializ" not in built.log


def test_warpgroups_take_long_sums_only():
    tiles = matrix_parameters(64, 16, 32, 4, 1, 2, engine="wgmma")
    kernel = with_template(split_gemm(M, N, LEAST_GROUP_SUM - 1), "matrix", tiles)
    with pytest.raises(InputError, match="warpgroups"):
        lower_matrix(kernel)
    kernel = with_template(
        split_gemm(M, N, 256), "matrix", matrix_parameters(64, 16, 64, 4, 1, 2, engine="wgmma")
    )
    with pytest.raises(InputError, match="at most 32"):
        lower_matrix(kernel)


def test_steps_are_of_sixteen_elements():
    kernel = with_template(split_gemm(M, N, K), "matrix", matrix_parameters(32, 16, 8, 1, 1, 2))
    with pytest.raises(InputError, match="multiples of 16 x 8 x 16"):
        lower_matrix(kernel)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "interval"), [(LEAST_SUM, 16), (LEAST_GROUP_SUM, 32)])
def test_the_shortest_sum_is_long_enough_even_if_hardware_truncates(kind, k, interval):
    a, b = factors(kind, 64, k, 64)
    first, second = pieces(a), pieces(b)
    total = np.zeros((64, 64), dtype=np.float32)
    for at in range(0, k, interval):
        parts = np.zeros((len(PRODUCTS), *total.shape), dtype=np.float32)
        for group, products in enumerate(PRODUCTS):
            for (i, j), inner in product_of(products, range(at, at + interval, 16)):
                step = slice(inner, inner + 16)
                exact = first[i][:, step].astype(np.float64) @ second[j][step].astype(np.float64)
                parts[group] = truncated(parts[group].astype(np.float64) + exact)
        total = total + (parts[0] + parts[1])
    assert_no_worse(total * np.float32(SCALE**-2), a, b, kind)


NETWORK = """module @net {
  graph.func @main(%x: f32[512, K], %w: f32[512, K]) -> f32[512, 512] {
    %0 = graph.dense(%x, %w) : f32[512, 512]
    graph.return(%0)
  }
}"""


@pytest.mark.parametrize(
    ("target", "precision", "k", "factors"),
    [
        ("cuda:sm_90a", "fp32", 512, "split"),
        ("cuda:sm_86", "fp32", LEAST_SUM, "split"),
        ("cuda:sm_90a", "fp32", LEAST_SUM - 1, ""),
        ("cuda:sm_90a", "fp32-strict", 512, ""),
        ("cuda:sm_75", "fp32", 512, ""),
        ("opencl", "fp32", 512, ""),
    ],
)
def test_precision_decides(target, precision, k, factors):
    module = lower(parse(NETWORK.replace("K", str(k))), resolve_target(target), precision=precision).tensor
    ops = [op for f in module.funcs for op in walk(f.body) if op.name == "tensor.contract"]
    assert [op["factors"] for op in ops] == [factors]
    if not factors:
        assert "matrix" not in tw.show(module)
