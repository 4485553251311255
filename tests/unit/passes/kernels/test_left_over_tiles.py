"""Products whose blocks share the tiles that full turns leave over: emulated, checked, chosen by model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import (
    CTX,
    THREAD,
    assert_close,
    check_orders,
    convolution,
    convolved,
    gemm,
    inputs_of,
    matrix_parameters,
    planned,
    product,
    split_of,
    stored,
    view_of,
)

from tilewright.codegen import emit_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Block, Func, InputError, Module, Op, Sym, walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.bound import matrix_bound
from tilewright.passes.kernels.matrix.choice import LEFT_OVER_GAIN, best_point, choose_matrix, likely_matrix
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, shares_left_over
from tilewright.passes.kernels.matrix.problem import matrix_problem, parameters_for
from tilewright.passes.kernels.matrix.space import (
    MatrixProblem,
    clusters_at_once,
    in_whole_waves,
    laid_stages,
    matrix_space,
    matrix_space_of,
    shared_bytes,
)
from tilewright.passes.kernels.matrix.view import LEAST_STORED_SUM
from tilewright.passes.thread.place_barriers import place_barriers

pytestmark = pytest.mark.emulator
H200 = load_hardware("H200")
#: a role that turns the second factor
TURNS = {"turners": 4}


def parameters(channel: str, *tiles: int, **more: int | str) -> MatrixParameters:
    plan = matrix_parameters(*tiles, channel, engine="wgmma")
    given = {"copiers": 4, "transport": "engine", "left_over": True} | more
    return replace(plan, **given)  # type: ignore[arg-type]


def left_over(kernel: Func, *tiles: int, **more: int | str) -> Func:
    """The thread-level kernel whose blocks share what full turns leave over."""
    plan = parameters(view_of(kernel).channel, *tiles, **more)
    return planned(kernel, plan)


def emulated(
    kernel: Func, inputs: list[np.ndarray], *tiles: int, seed: int = 1, **more: int | str
) -> np.ndarray:
    (got,) = run(left_over(kernel, *tiles, **more), "emulator", inputs, seed=seed).values()
    return got.astype(np.float64)


@pytest.mark.parametrize(
    ("dtype", "orders", "size", "tiles", "more"),
    [
        # 12 tiles: a turn of 9, a tile for each of three clusters; 3, 3 and 1 chunks
        ("f16", ("mc", "nc"), (210, 80, 392), (64, 32, 64, 4, 1, 4), {"blocks": 9, "parts": 3}),
        # two of five clusters have a tile, all blocks meet
        ("bf16", ("mc", "nc"), (210, 80, 200), (64, 32, 64, 4, 1, 2), {"blocks": 10, "parts": 2}),
        # two full turns
        ("f16", ("mc", "nc"), (300, 60, 136), (64, 32, 64, 4, 1, 3), {"blocks": 4, "parts": 2}),
        # both factors in columns, two warpgroups along m, ragged everywhere
        ("bf16", ("cm", "cn"), (264, 200, 264), (128, 64, 64, 8, 1, 3), {"blocks": 10, "parts": 5}),
        ("f16", ("mc", "cn"), (140, 136, 264), (128, 64, 64, 8, 1, 3), {"blocks": 4, "parts": 2}),
        ("bf16", ("cm", "nc"), (200, 264, 192), (192, 96, 64, 12, 1, 2), {"blocks": 4, "parts": 2}),
        # TF32 factors from registers, and with a second one that a role turns
        ("f32", ("cm", "nc"), (200, 72, 264), (64, 32, 32, 4, 1, 3), {"blocks": 8, "parts": 2}),
        ("f32", ("cm", "cn"), (200, 72, 264), (64, 32, 32, 4, 1, 3), TURNS | {"blocks": 10, "parts": 2}),
        ("f32", ("cm", "cn"), (136, 100, 160), (128, 48, 32, 8, 1, 4), TURNS | {"blocks": 4, "parts": 2}),
        # the copy engine writes whole tiles
        ("f16", ("mc", "nc"), (140, 136, 264), (128, 64, 64, 8, 1, 3),
         {"blocks": 4, "parts": 2, "stores": "engine"}),
    ],
)  # fmt: skip
def test_products_in_every_order_of_threads(dtype, orders, size, tiles, more):
    check_orders(lambda k, x, seed: emulated(k, x, *tiles, seed=seed, **more), dtype, orders, size)


def test_batches_are_tiles_too():
    kernel = gemm("f16", 70, 40, 200, batch=3)  # 2 x 2 tiles each
    a, b = inputs_of(kernel)
    want = np.einsum("bmc,bnc->bmn", a.astype(np.float64), b.astype(np.float64))
    assert_close(emulated(kernel, [a, b], 64, 32, 64, 4, 1, 3, blocks=10, parts=2), want, "f16")


@pytest.mark.parametrize("stores", ["threads", "engine"])
def test_epilogues_see_whole_sums_of_all_tiles(stores):
    """Windows of three by three with bias, residual and ReLU: 27 chunks, one of three parts has 9."""
    kernel = convolution("f16", 3, (8, 8), 72, 72, 3, 1, "NHWC")  # 3 x 2 tiles
    inputs = inputs_of(kernel)
    tiles, more = (64, 64, 32, 4, 1, 3), {"blocks": 4, "parts": 2, "stores": stores}
    func = left_over(kernel, *tiles, **more)
    assert ("thread.store_tile" in {op.name for op in walk(func.body)}) == (stores == "engine")
    (got,) = run(func, "emulator", inputs, seed=3).values()
    assert_close(got.astype(np.float64), convolved(*inputs, 3, 1, "NHWC"), "f16")


def test_pieces_of_float32_compute_what_is_not_finite_once_more_in_all_tiles():
    kernel = stored(gemm("f32", 70, 40, LEAST_STORED_SUM, arithmetic="split"))  # 2 x 2 tiles
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((n, LEAST_STORED_SUM), dtype=np.float32) for n in (70, 40))
    a[3, 5], a[69, 7] = np.inf, np.float32(2.0**126)
    with np.errstate(all="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64).T
    got = emulated(kernel, split_of(a, b), 64, 32, 32, 4, 1, 2, blocks=3, parts=3)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    scale = np.abs(np.where(finite, want, 0.0)).max(axis=1, keepdims=True)
    difference = np.where(finite, got, 0.0) - np.where(finite, want, 0.0)
    assert (np.abs(difference) <= 1e-5 * scale).all()


# -- what place-barriers refuses -----------------------------------------------------------------------------
def edited(func: Func, role: str, edit: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> Func:
    """The kernel with other ops at the top of one role."""
    ops = tuple(
        replace(op, body=op.body.with_ops(edit(op.body.ops)))
        if op.name == "thread.role" and op["name"] == role and op.body is not None
        else op
        for op in func.body.ops
    )
    return func.with_body(func.body.with_ops(ops))


def within(block: Block, edit: Callable[[Op], Op]) -> Block:
    """The block with every op in it replaced, the innermost first."""
    return block.with_ops(
        tuple(edit(op if op.body is None else replace(op, body=within(op.body, edit))) for op in block.ops)
    )


def without(name: str, number: int) -> Callable[[tuple[Op, ...]], tuple[Op, ...]]:
    """Leave out the op of a name that comes at that place at the top of the role."""

    def edit(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        at = [i for i, op in enumerate(ops) if op.name == name]
        return tuple(op for i, op in enumerate(ops) if i != at[number])

    return edit


def by_block(number: int) -> Callable[[tuple[Op, ...]], tuple[Op, ...]]:
    """Let a condition at the top of the role ask for the block where it asked for the cluster."""

    def edit(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        at = [i for i, op in enumerate(ops) if op.name == "thread.if"][number]
        ((_, low, high),) = ops[at]["mask"]  # type: ignore[misc]
        asked = ops[at].with_attrs(mask=((Sym("bid.x"), low, high),))
        return (*ops[:at], asked, *ops[at + 1 :])

    return edit


def laid_down_first(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Write the tile of sums before the shared tile's chunks are multiplied."""
    conditions = [i for i, op in enumerate(ops) if op.name == "thread.if"]
    assert len(conditions) == 3  # multiply, lay down, finish
    barrier = next(i for i, op in enumerate(ops) if op.name == "thread.barrier")
    tile, chunks = ops[barrier + 1 : conditions[1] + 1], ops[conditions[0] : barrier + 1]
    return (*ops[: conditions[0]], *tile, *chunks, *ops[conditions[1] + 1 :])


def counted_anew(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Number the items of the shared tile as if the channel had carried none before."""
    last = max(i for i, op in enumerate(ops) if op.name == "thread.if")

    def edit(op: Op) -> Op:
        return op.with_attrs(item=op.expr("item") - 4) if op.get("item") is not None else op

    assert ops[last].body is not None
    body = within(ops[last].body, edit)
    return (*ops[:last], replace(ops[last], body=body), *ops[last + 1 :])


FAULTS = {
    "no barrier before the bytes of the ring": (
        "multiply", without("thread.barrier", 0), r"uses sum_tile .* before all its threads are done",
    ),
    "sums laid down before the last tile": (
        "multiply", laid_down_first, r"uses sum_tile .* before all its threads are done",
    ),
    "no meeting before sums": ("multiply", without("thread.meet_cluster", 0), "before these have met"),
    "no meeting at the end": (
        "multiply", without("thread.meet_cluster", 1), "ends while other blocks may still read",
    ),
    "blocks of a cluster that do not agree on writing": (
        "multiply", by_block(1), "which some block of the cluster has not written",
    ),
    "items that are counted anew": ("copy", counted_anew, "no item of channel ring that it has acquired"),
    "a tile that some blocks of a cluster copy": ("copy", by_block(0), "items 0 to .* of channel ring"),
    "a tile that nobody multiplies": ("multiply", without("thread.if", 0), "items 0 to .* of channel ring"),
}  # fmt: skip


@pytest.fixture(scope="module")
def correct() -> Func:
    """Five tiles for four blocks: a full turn, a tile for one of two clusters."""
    return left_over(gemm("f16", 300, 30, 200), 64, 32, 64, 4, 1, 3, blocks=4, parts=2)


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_faults_are_refused(fault, correct):
    role, edit, message = FAULTS[fault]
    place_barriers.run(correct, CTX)
    with pytest.raises(InputError, match=message):
        place_barriers.run(edited(correct, role, edit), CTX)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"blocks": 8, "parts": 2}, "got 6 tiles for 8 blocks"),  # no full turn
        ({"blocks": 6, "parts": 2}, "got 6 tiles for 6 blocks"),  # nothing is left over
        ({"blocks": 4, "parts": 4}, "got 6 tiles for 4 blocks"),  # two tiles for one cluster
        ({"blocks": 5, "parts": 2}, "clusters of 2"),
        ({"parts": 2}, "got 6 tiles for 0 blocks"),
        ({"blocks": 4}, "several parts, one team"),
        ({"blocks": 4, "parts": 2, "teams": 2}, "several parts, one team"),
        ({"blocks": 4, "parts": 2, "left_over": False}, "a block per tile and part"),
    ],
)
def test_parameters_without_a_tile_for_every_block_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        left_over(gemm("f16", 140, 60, 200), 64, 32, 64, 4, 1, 3, **more)


# -- the model -----------------------------------------------------------------------------------------------
def problem_of(m: int, n: int, k: int, *, columns: bool = False, result_bytes: int = 2) -> MatrixProblem:
    return MatrixProblem(
        1, m, n, k, 1, 2, 2 * m * k, 2 * n * k, result_bytes * m * n,
        first_rows=not columns, second_rows=not columns, boxes=True,
    )  # fmt: skip


#: both are 224 or 200 large tiles
PAYS = {
    "square": problem_of(2560, 2560, 8192, columns=True),
    "wide": problem_of(1280, 5120, 8192, columns=True),
}


@pytest.mark.parametrize("name", PAYS)
def test_what_is_left_over_of_long_sums_is_shared(name):
    problem = PAYS[name]
    space = matrix_space(problem, H200)
    bounds, estimates = matrix_bound(problem, space, H200), estimate_matrix(problem, space, H200)
    own = space.take(space.left_over == 0)
    before = estimates[space.left_over == 0][
        best_point(problem, own, bounds.take(space.left_over == 0), estimates[space.left_over == 0])
    ]
    choice = choose_matrix(problem, H200)
    assert choice.parameters.left_over
    assert choice.estimate_s <= LEFT_OVER_GAIN * before
    assert choice.bound.seconds < choice.estimate_s


def test_it_must_clearly_pay_against_whatever_else_is_best():
    """Tiles for whole waves save a part of what sharing would, and stay unless it saves an eighth more."""
    problem = PAYS["wide"]
    space = matrix_space(problem, H200)
    bounds, left = matrix_bound(problem, space, H200), space.left_over > 0
    waves = in_whole_waves(problem, space) & (space.parts == 1)
    for gain, taken in ((LEFT_OVER_GAIN - 0.01, True), (LEFT_OVER_GAIN + 0.01, False)):
        estimates = np.where(left, 0.8 * gain, np.where(waves, 0.8, 1.0))
        best = best_point(problem, space, bounds, estimates)
        assert left[best] == taken
        assert left[best] or waves[best]


@pytest.mark.parametrize(
    "size",
    [(8192, 768, 768), (2048, 3072, 768), (4096, 4096, 4096), (12544, 256, 1024), (2304, 2304, 6144)],
)
def test_where_little_is_gained_the_choice_is_what_it_is_without(size):
    problem = problem_of(*size)
    space = matrix_space(problem, H200)
    own = np.flatnonzero(space.left_over == 0)
    assert 0 < len(own) < len(space)
    taken = space.take(own)
    bounds, estimates = matrix_bound(problem, taken, H200), estimate_matrix(problem, taken, H200)
    assert choose_matrix(problem, H200).parameters == taken.at(best_point(problem, taken, bounds, estimates))


@pytest.mark.parametrize(
    "size", [(8192, 768, 768), (2560, 2560, 8192), (5120, 5120, 5120), (2000, 2000, 300)]
)
def test_points_hold_their_bounds_and_describe_kernels(size):
    """Every point leaves tiles to clusters that all run at once, and no bound exceeds its estimate."""
    problem = problem_of(*size)
    space = matrix_space(problem, H200)
    space = space.take(space.left_over > 0)
    assert len(space)
    bounds, estimates = matrix_bound(problem, space, H200), estimate_matrix(problem, space, H200)
    assert (bounds.ub > 0).all()
    assert (bounds.seconds <= estimates).all()
    np.testing.assert_array_equal(space.blocks, clusters_at_once(space.parts, H200) * space.parts)
    tiles = -(-problem.m // space.m) * -(-problem.n // space.n)
    for i in range(len(space)):
        p = space.at(i)
        assert p.left_over
        assert shares_left_over(int(tiles[i]), p.blocks, p.parts)
        assert matrix_space_of(p).named(0) == space.named(i)


def test_a_part_of_a_tile_costs_less_than_a_turn_and_more_than_none():
    """14 x 12 tiles of 128 x 128 for 132 blocks, against one full turn and two."""
    problem = problem_of(14 * 128, 12 * 128, 8192)
    point = replace(parameters("", 128, 128, 64, 8, 1, 5), blocks=132, parts=2)
    whole = replace(point, parts=1, left_over=False)
    points = matrix_space_of(point, replace(point, parts=3), whole)
    two, three, alone = estimate_matrix(problem, points, H200)
    turn = estimate_matrix(problem_of(12 * 128, 11 * 128, 8192), matrix_space_of(whole), H200)[0]
    assert turn < three < two < alone
    assert (two - turn) / (alone - turn) == pytest.approx(0.5, abs=0.12)


def test_blocks_meet_twice_and_read_sums_once_however_many_turns_are_full():
    problem = problem_of(27 * 128, 12 * 128, 8192)  # 324 tiles
    point = replace(parameters("", 128, 128, 64, 8, 1, 5), blocks=132, parts=2)
    points, fit = matrix_space_of(point), H200.matrix
    before = estimate_matrix(problem, points, H200)[0]
    for changes, clk in (
        ({"meet_clk": fit.meet_clk + 1000.0}, 2000.0),
        ({"cluster_start_clk": fit.cluster_start_clk + 100.0}, 200.0),
        # half of 128 x 128 sums come from the other block
        ({"cluster_bytes_per_sm_per_clk": fit.cluster_bytes_per_sm_per_clk / 2}, 128 * 128 * 2 / 12.0),
        ({"role_turn_clk": fit.role_turn_clk + 100.0}, 300.0),  # two full turns, and one of a part
    ):
        slower = estimate_matrix(problem, points, replace(H200, matrix=replace(fit, **changes)))[0]
        assert (slower - before) * H200.clock_hz == pytest.approx(clk)


@pytest.mark.parametrize(
    ("kernel", "tiles", "more"),
    [
        (gemm("bf16", 2560, 2560, 8192, "cm", "cn"), (192, 192, 64, 12, 1, 3), {}),
        (gemm("f16", 2304, 2304, 4096), (128, 128, 64, 8, 1, 5), {}),
        # sums find no room where the first factor was
        (gemm("f32", 2560, 2560, 4096, "cm", "cn"), (128, 128, 32, 8, 1, 3), {"turners": 4}),
        (gemm("f32", 2560, 2560, 4096, "cm", "cn"), (128, 96, 32, 8, 1, 4), {"turners": 4}),
    ],
)
def test_the_model_counts_shared_memory(kernel, tiles, more):
    view = view_of(kernel)
    plan = parameters(view.channel, *tiles, parts=2, **more)
    each = -(-view.size(view.rows) // plan.block.m) * -(-view.size(view.columns) // plan.block.n)
    plan = replace(plan, blocks=next(b for b in range(132, 8, -2) if shares_left_over(each, b, 2)))
    func = lower_matrix(with_template(kernel, "matrix", plan))
    func = run_pipeline(Module("m", (func,)), Pipeline.parse(THREAD), CTX).funcs[0]
    counted = shared_bytes(matrix_problem(kernel, view), matrix_space_of(plan))[0]
    assert 0.9 * counted < emit_cuda(func).shared_bytes_dynamic <= counted


@pytest.mark.parametrize(("columns", "stores"), [(256, "engine"), (192, "engine"), (128, "engine")])
def test_results_that_the_engine_writes_lie_beside_sums(columns, stores):
    """The tile of sums lies on the ring alone, however many stages the pieces of results leave it."""
    kernel = product(
        "f16", ("2560, 8192", "2560, 8192"), "m: 2560, n: 2560", "c: 8192", ("[m, c]", "[n, c]"),
        result="f16", epilogue=ROUND,
    )  # fmt: skip
    view = view_of(kernel)
    point = replace(parameters("", 128, columns, 64, 8, 1, 4), parts=2)
    tiles = 20 * -(-2560 // columns)
    point = replace(point, blocks=next(b for b in range(132, 8, -2) if shares_left_over(tiles, b, 2)))
    plan = parameters_for(kernel, view, point, H200)
    assert plan.stores == stores
    func = lower_matrix(with_template(kernel, "matrix", plan))
    func = run_pipeline(Module("m", (func,)), Pipeline.parse(THREAD), CTX).funcs[0]
    assert emit_cuda(func).shared_bytes_dynamic <= H200.smem_per_block_max_bytes


@pytest.mark.parametrize(
    ("tile", "warps", "laid"),
    [
        ((128, 256), 8, True),
        # beside pieces the ring keeps three stages of 48 KB, too few for 150 KB of sums: threads store
        ((192, 192), 12, False),
    ],
)
def test_whole_tiles_are_laid_down_and_parts_of_one_pass_through_rows(tile, warps, laid):
    """The estimate counts results of full turns as their way out is, and those of a part as threads store."""
    kernel = product(
        "f16", ("2560, 8192", "2560, 8192"), "m: 2560, n: 2560", "c: 8192", ("[m, c]", "[n, c]"),
        result="f16", epilogue=ROUND,
    )  # fmt: skip
    problem, fit = matrix_problem(kernel, view_of(kernel)), H200.matrix
    tiles = -(-2560 // tile[0]) * -(-2560 // tile[1])
    blocks = next(b for b in range(132, 8, -2) if shares_left_over(tiles, b, 2))
    point = replace(parameters("", *tile, 64, warps, 1, 4), parts=2, blocks=blocks)
    points = matrix_space_of(point)
    assert (laid_stages(problem, points, H200)[0] > 0) == laid
    assert (laid_stages(problem, matrix_space_of(replace(point, parts=1, left_over=False)), H200) > 0).all()
    before = estimate_matrix(problem, points, H200)[0]
    vectors = tile[0] * tile[1] / 128
    whole = vectors * fit.tail_warps / warps  # cycles of an instruction for each of them
    part = whole * (fit.laid_down_share + (1.0 - fit.laid_down_share) / 2)
    turns = tiles // blocks
    for name, clk in (
        ("laid_instructions", turns * whole if laid else 0.0),
        ("result_instructions", part if laid else turns * whole + part),
    ):
        more = replace(H200, matrix=replace(fit, **{name: getattr(fit, name) + 1.0}))
        assert (estimate_matrix(problem, points, more)[0] - before) * H200.clock_hz == pytest.approx(clk)


ROUND = """%y = tensor.map(%p, par = (m: 2560, n: 2560), reads = [[m, n]]) : f16[2560, 2560] {
  ^(%1: f32)
  %2 = scalar.cast(%1, dtype = "f16") : f16
  scalar.yield(%2)
}"""


def test_likely_points_tell_both_ways_of_sharing_apart():
    """Of two points that differ in what is shared alone, both are worth to be measured."""
    kinds = {(c.parameters.parts > 1, c.parameters.left_over) for c in likely_matrix(PAYS["wide"], H200, 60)}
    assert (True, True) in kinds
    assert (False, False) in kinds
