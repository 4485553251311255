"""Products whose tiles blocks of a cluster share: emulated against float64, the same in every run."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from matrix_samples import (
    CTX,
    assert_close,
    check_orders,
    contraction,
    convolution,
    convolved,
    gemm,
    inputs_of,
    matrix_parameters,
    planned,
)

from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Op
from tilewright.passes.kernels.matrix.bound import matrix_bound
from tilewright.passes.kernels.matrix.choice import SHARING_GAIN, best_point, choose_matrix
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.space import MatrixProblem, matrix_space
from tilewright.passes.kernels.matrix.view import matrix_view
from tilewright.passes.thread.place_barriers import place_barriers

pytestmark = pytest.mark.emulator
ROLES = {"engine": "wgmma", "copiers": 4, "transport": "engine"}
H200 = load_hardware("H200")


def shared(kernel: Func, *tiles: int, parts: int, engine: str = "mma", warps_k: int = 1, **more) -> Func:
    """The thread-level kernel whose tiles `parts` blocks share."""
    view = matrix_view(kernel, contraction(kernel))
    assert view is not None
    plan = matrix_parameters(*tiles, view.channel, engine=engine, warps_k=warps_k)
    plan = replace(plan, parts=parts, **more)
    return planned(kernel, plan)


def emulated(kernel: Func, inputs: list[np.ndarray], *tiles: int, seed: int = 1, **more) -> np.ndarray:
    (got,) = run(shared(kernel, *tiles, **more), "emulator", inputs, seed=seed).values()
    return got.astype(np.float64)


@pytest.mark.parametrize(
    ("dtype", "orders", "size", "tiles", "more"),
    [
        ("f16", ("mc", "nc"), (70, 40, 392), (64, 32, 64, 4, 1, 2), {"parts": 3, **ROLES}),  # 3, 3, 1 chunks
        ("bf16", ("cm", "cn"), (136, 72, 320), (128, 64, 64, 8, 1, 2), {"parts": 5, **ROLES}),
        ("bf16", ("cm", "cn"), (200, 64, 256), (192, 64, 64, 12, 1, 2), {"parts": 2, **ROLES}),
        ("f16", ("mc", "nc"), (70, 40, 200), (32, 32, 64, 1, 2, 3), {"parts": 2, "warps_k": 2}),
        ("f32", ("cm", "cn"), (72, 40, 196), (64, 32, 32, 4, 1, 3), {"parts": 3, "turners": 4, **ROLES}),
        ("f32", ("cm", "cn"), (136, 104, 160), (128, 96, 32, 8, 1, 3), {"parts": 2, "turners": 4, **ROLES}),
    ],
)  # fmt: skip
def test_products_in_every_order_of_threads(dtype, orders, size, tiles, more):
    check_orders(lambda k, x, seed: emulated(k, x, *tiles, seed=seed, **more), dtype, orders, size)


def test_taps_are_parts_too_and_epilogues_see_the_whole_sum():
    kernel = convolution("f16", 2, (7, 7), 24, 40, 3, 1, "NHWC")
    inputs = inputs_of(kernel)
    assert_close(
        emulated(kernel, inputs, 64, 64, 16, 4, 1, 3, parts=4, **ROLES),
        convolved(*inputs, 3, 1, "NHWC"),
        "f16",
    )


def test_float32_in_pieces_computes_what_is_not_finite_once_more():
    kernel = gemm("f32", 40, 24, 256, arithmetic="split")
    a, b = inputs_of(kernel)
    a[3, 5], a[7, 200] = np.inf, np.float32(2.0**112)
    with np.errstate(all="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64).T
    got = emulated(kernel, [a, b], 32, 32, 16, 1, 2, 3, parts=3)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert np.abs(got[finite] - want[finite]).max() < 1e-5 * np.abs(want[finite]).max()


def test_tiles_of_three_warpgroups_and_panels_that_are_filled_up():
    kernel = gemm("bf16", 200, 152, 72, "cm", "cn")
    a, b = inputs_of(kernel)
    want = a.astype(np.float64).T @ b.astype(np.float64)
    assert_close(emulated(kernel, [a, b], 192, 144, 64, 12, 1, 2, parts=1, **ROLES), want, "bf16")


def dropped(func: Func, name: str, number: int) -> Func:
    """Without the op of that name which comes at that place, of each role or of the kernel."""

    def without(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        at = [i for i, op in enumerate(ops) if op.name == name]
        out = [op for i, op in enumerate(ops) if not at or i != at[number]]
        return tuple(
            replace(op, body=op.body.with_ops(without(op.body.ops)))
            if op.name == "thread.role" and op.body is not None
            else op
            for op in out
        )

    return func.with_body(func.body.with_ops(without(func.body.ops)))


@pytest.mark.parametrize("more", [ROLES, {"engine": "wgmma"}], ids=["roles", "one program"])
@pytest.mark.parametrize(
    ("number", "message"), [(0, "before these have met"), (1, "ends while other blocks may still read")]
)
def test_blocks_that_do_not_meet_are_refused(more, number, message):
    func = shared(gemm("f16", 70, 40, 200), 64, 32, 64, 4, 1, 3, parts=2, **more)
    with pytest.raises(InputError, match=message):
        place_barriers.run(dropped(func, "thread.meet_cluster", number), CTX)


def test_the_bytes_of_the_ring_are_not_used_while_some_thread_still_multiplies():
    func = shared(gemm("f16", 70, 40, 200), 64, 32, 64, 4, 1, 3, parts=2, **ROLES)
    with pytest.raises(InputError, match=r"uses sum_tile .* before all its threads are done"):
        place_barriers.run(dropped(func, "thread.barrier", 0), CTX)


def test_parts_without_a_chunk_are_refused():
    with pytest.raises(InputError, match="at most 8 parts with a chunk each, got 3 parts of 4"):
        shared(gemm("f16", 70, 40, 200), 64, 32, 64, 4, 1, 3, parts=3, **ROLES)


def weight_gradient(m: int, n: int, rows: int) -> MatrixProblem:
    return MatrixProblem(
        1, m, n, rows, 1, 2, 2 * m * rows, 2 * n * rows, 4 * m * n,
        first_rows=False, second_rows=False, boxes=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "least"),
    [((768, 768, 4096), 1.3), ((768, 768, 8192), 1.7), ((768, 3072, 8192), 1.15), ((3072, 768, 8192), 1.15),
     ((256, 512, 8192), 1.8), ((512, 1024, 65536), 1.6), ((128, 512, 65536), 3.8)],
)  # fmt: skip
def test_weight_gradients_come_out_in_whole_waves(size, least):
    """Against tiles that one block computes, in the extents that were there before."""
    problem = weight_gradient(*size)
    space = matrix_space(problem, H200)
    estimates = estimate_matrix(problem, space, H200)
    before = (space.parts == 1) & (space.resident == 1) & (space.warps < 16)
    before &= np.isin(space.n, (16, 32, 48, 64, 96, 128, 192, 256))
    choice = choose_matrix(problem, H200)
    assert estimates[before].min() > least * choice.estimate_s
    assert choice.bound.seconds < choice.estimate_s


def test_sharing_must_clearly_pay():
    problem = weight_gradient(768, 768, 8192)
    space = matrix_space(problem, H200)
    bounds, own = matrix_bound(problem, space, H200), space.parts == 1
    for gain, wanted in ((SHARING_GAIN + 0.01, True), (SHARING_GAIN - 0.01, False)):
        assert own[best_point(problem, space, bounds, np.where(own, 1.0, gain))] == wanted
