"""float32 products by roles of which one splits both factors: on the emulator, beside chains, refused."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import (
    CTX,
    THREAD,
    convolution,
    convolved,
    gemm,
    inputs_of,
    matrix_parameters,
    view_of,
)
from split_samples import KINDS, assert_no_worse, chain, factors

from tilewright.costmodel import load_hardware
from tilewright.ir import Block, Func, InputError, Module, Op, walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.choice import choose_matrix
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import matrix_space_of, shared_bytes
from tilewright.passes.kernels.matrix.view import LEAST_GROUP_SUM, LEAST_STORED_SUM
from tilewright.passes.thread.place_barriers import place_barriers

H200 = load_hardware("H200")
#: sums that are promoted in two parts, and in one
LENGTHS = (LEAST_GROUP_SUM, LEAST_STORED_SUM)
M, N = 70, 40


def split_gemm(m: int, n: int, k: int, **more) -> Func:
    return gemm("f32", m, n, k, arithmetic="split", **more)


def thread_of(kernel: Func, *tiles: int, **more: int | str) -> Func:
    plan = matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma")
    plan = replace(plan, **({"copiers": 4, "turners": 4, "transport": "engine"} | more))
    return lower_matrix(with_template(kernel, "matrix", plan))


def by_roles(kernel: Func, *tiles: int, **more: int | str) -> Func:
    thread = thread_of(kernel, *tiles, **more)
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


@pytest.mark.emulator
@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_no_larger_than_those_of_a_chain(kind, k):
    a, b = factors(kind, M, k, N)
    func = by_roles(split_gemm(M, N, k), 64, 48, 32, 4, 1, 2, blocks=1)
    (got,) = run(func, "emulator", [a, np.ascontiguousarray(b.T)]).values()
    assert_no_worse(got, a, b, kind)


@pytest.mark.emulator
@pytest.mark.parametrize("k", LENGTHS)
def test_what_is_not_finite_or_too_large_is_computed_as_on_the_lanes(k):
    a, b = factors("normal", M, k, N)
    a[3, 5], b[9, 7], a[20, 2], a[33, :] = np.inf, np.nan, 3e38, 0.0
    a[21], b[:, 4] = a[21] * 1e30, b[:, 4] * 1e-30
    a[30, 30], b[30, :] = -np.inf, 0.0  # -inf * 0
    func = by_roles(split_gemm(M, N, k), 128, 32, 32, 8, 1, 3, blocks=2)
    (got,) = run(func, "emulator", [a, np.ascontiguousarray(b.T)]).values()
    want = chain(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    rows, columns = np.delete(np.arange(M), [3, 20, 21, 30]), np.delete(np.arange(N), [4, 7])
    assert_no_worse(got[np.ix_(rows, columns)], a[rows], b[:, columns], "normal")
    exact, size = a[21].astype(float) @ b.astype(float), np.abs(a[21].astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(got[21] - exact) <= 2.0**-22 * size)[columns].all()


@pytest.mark.emulator
def test_sums_start_where_they_are_told_to():
    kernel = split_gemm(M, N, 228)  # the last chunk is not whole
    ops = [o.with_attrs(init=(3.0,)) if o.name == "tensor.contract" else o for o in kernel.body.ops]
    kernel = kernel.with_body(kernel.body.with_ops(tuple(ops)))
    a, b = inputs_of(kernel)
    (got,) = run(by_roles(kernel, 64, 16, 32, 4, 1, 4), "emulator", [a, b]).values()
    want = a.astype(np.float64) @ b.astype(np.float64).T + 3
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.emulator
@pytest.mark.parametrize("channels", [24, 64])
def test_windows_with_edges_and_an_epilogue(channels):
    """Infinite pixels spoil what reads them, and nothing else."""
    shape = (2, (7, 7), channels, 24, 3, 1, "NHWC")
    kernel = convolution("f32", *shape, arithmetic="split")
    inputs = inputs_of(kernel)
    func = by_roles(kernel, 64, 32, 32, 4, 1, 3, blocks=1)
    assert "thread.copy_window" in [op.name for op in walk(func.body)]
    (got,) = run(func, "emulator", inputs).values()
    assert np.abs(got - convolved(*inputs, *shape[4:])).max() < 4e-5
    inputs[0][0, 3, 3, 3] = np.inf
    (spoilt,) = run(func, "emulator", inputs).values()
    kept = np.isfinite(spoilt)
    assert 0.5 < kept.mean() < 1.0
    np.testing.assert_array_equal(spoilt[kept & (spoilt != 0)], got[kept & (spoilt != 0)])


def without(block: Block, dropped: Op) -> Block:
    """The block without an op, wherever in it that stands."""
    ops = (
        op if op.body is None else replace(op, body=without(op.body, dropped))
        for op in block.ops
        if op is not dropped
    )
    return block.with_ops(tuple(ops))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thread.receive", "role split reads slot 0 of a_tiles, which holds no item of channel ring"),
        ("thread.acquire", "role split fills slot 0 of a_pieces, which holds no item of channel split"),
        ("thread.release", "channel ring"),
    ],
)
def test_chunks_that_are_split_without_waiting_are_refused(name, message):
    func = by_roles(split_gemm(M, N, 256), 64, 48, 32, 4, 1, 2, blocks=1)
    split = next(op for op in func.body.ops if op.get("name") == "split")
    waits = next(op for op in walk(split.body) if op.name == name)
    with pytest.raises(InputError, match=message):
        place_barriers.run(func.with_body(without(func.body, waits)), CTX)


@pytest.mark.parametrize(
    ("more", "orders", "what"),
    [
        ({"turners": 0}, ("mc", "nc"), "4 warps that split"),
        ({"transport": "threads"}, ("mc", "nc"), "copy engine"),
        ({"teams": 2, "blocks": 1}, ("mc", "nc"), "one team"),
        ({"parts": 2}, ("mc", "nc"), "one team"),
        ({}, ("cm", "nc"), "rows of the channel"),
    ],
)
def test_what_no_role_splits_is_refused(more, orders, what):
    kernel = split_gemm(128, 128, 256, first=orders[0], second=orders[1])
    with pytest.raises(InputError, match=what):
        thread_of(kernel, 64, 32, 32, 4, 1, 2, **more)


def test_the_model_knows_the_bytes_of_both_rings():
    kernel = split_gemm(4096, 4096, 4096)
    plan = matrix_parameters(128, 144, 32, 8, 1, 2, engine="wgmma")
    plan = replace(plan, copiers=4, turners=4, transport="engine", blocks=132)
    func = by_roles(kernel, 128, 144, 32, 8, 1, 2, blocks=132)
    held = sum(
        op.result.tensor.nbytes
        for op in walk(func.body)
        if op.name == "thread.alloc" and op.result.tensor.space == "shared"
    )
    (counted,) = shared_bytes(matrix_problem(kernel, view_of(kernel)), matrix_space_of(plan))
    assert held <= counted <= held + 8192


@pytest.mark.parametrize(("m", "n", "k"), [(25088, 128, 512), (12544, 256, 2304), (8192, 768, 3072)])
def test_roles_are_chosen_where_they_save_a_tenth(m, n, k):
    kernel = split_gemm(m, n, k)
    choice = choose_matrix(matrix_problem(kernel, view_of(kernel)), H200)
    assert (choice.parameters.copiers, choice.parameters.turners) == (4, 4)
