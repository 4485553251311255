"""Tensor cores in the cost model: whole space, sound bound, estimate, and which engine is chosen when."""

from dataclasses import replace

import numpy as np
import pytest
from decision_samples import template, with_template
from matrix_samples import contraction, gemm, matrix_parameters, product, view_of

from tilewright.costmodel import load_hardware
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.devices.targets import resolve_target
from tilewright.ir import Func, InputError, Module
from tilewright.measuring.kernel_program import kernel_program
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.contract.choice import contract_candidates
from tilewright.passes.kernels.decision import decision_of, estimate_of
from tilewright.passes.kernels.matrix import space as spaces
from tilewright.passes.kernels.matrix.bound import least_matrix_s, matrix_bound, tensor_flops_per_s
from tilewright.passes.kernels.matrix.choice import (
    SETS_GAIN,
    best_point,
    choose_matrix,
    has_tensor_cores,
    likely_matrix,
)
from tilewright.passes.kernels.matrix.estimator import estimate_matrix, least_matrix_estimate_s
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import (
    MatrixProblem,
    legal,
    matrix_space,
    matrix_space_of,
    raster_of,
    registers_of,
    shared_bytes,
)
from tilewright.passes.kernels.registry import least_s
from tilewright.passes.kernels.weight_order import round_to_tf32

H100 = load_hardware("H100")
GPUS = [load_hardware(name) for name in ("H100", "A100")]


def gemm_problem(m: int, n: int, k: int, size: int = 2, batch: int = 1) -> MatrixProblem:
    return MatrixProblem(
        batch, m, n, k, 1, size, size * batch * m * k, size * batch * n * k, size * batch * m * n,
        first_copy=16 // size, second_copy=16 // size,
    )  # fmt: skip


PROBLEMS = {
    "square": gemm_problem(4096, 4096, 4096),
    "tf32": gemm_problem(2048, 2048, 2048, 4),
    "tf32 in columns": replace(gemm_problem(2048, 2048, 2048, 4), boxes=True, first_rows=False),
    "split": replace(gemm_problem(2048, 2048, 2048, 4), split=True),
    "skinny": gemm_problem(128, 768, 768),
    "batch": gemm_problem(128, 128, 64, batch=96),
    "image": MatrixProblem(1, 3136, 64, 64, 9, 2, 401408, 73728, 401408, fetched=0.976),
    "alone": MatrixProblem(1, 49, 512, 512, 9, 2, 50176, 4718592, 50176, first_copy=0),
}


@pytest.mark.parametrize("hardware", GPUS, ids=lambda h: h.name)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bound_lies_below_every_estimate(name, hardware):
    problem = PROBLEMS[name]
    space = matrix_space(problem, hardware)
    assert len(space) > 100
    bounds, estimates = matrix_bound(problem, space, hardware), estimate_matrix(problem, space, hardware)
    assert np.all(bounds.ub > 0)
    assert np.all(bounds.ub <= 1)
    finite = np.isfinite(estimates)
    assert finite.all()
    assert np.all(bounds.seconds[finite] <= estimates[finite])
    loop = matrix_bound(problem, space, hardware, MEASURED_LOOP)
    assert np.all(loop.seconds <= bounds.seconds * (1 + 1e-9))
    assert least_matrix_s(problem, hardware, MEASURED_LOOP) <= loop.seconds.min() * (1 + 1e-9)


@pytest.mark.parametrize("hardware", GPUS, ids=lambda h: h.name)
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_estimate_is_below_the_least_one(name, hardware):
    problem = PROBLEMS[name]
    estimates = estimate_matrix(problem, matrix_space(problem, hardware), hardware)
    assert 0 < least_matrix_estimate_s(problem, hardware) <= estimates.min() * (1 + 1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_chosen_is_the_best_of_the_whole_space(name):
    # `choose_matrix` takes bounds of the least estimates alone; points of equal estimates need them.
    problem = PROBLEMS[name]
    space = matrix_space(problem, H100)
    bounds, estimates = matrix_bound(problem, space, H100), estimate_matrix(problem, space, H100)
    best, chosen = best_point(problem, space, bounds, estimates), choose_matrix(problem, H100)
    assert (chosen.parameters, chosen.bound) == (space.at(best), bounds.at(best))
    assert (chosen.estimate_s, chosen.candidates_considered) == (estimates[best], len(space))


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_tile_that_is_left_out_early_is_legal(name, monkeypatch):
    known = matrix_space(PROBLEMS[name], H100)

    def every(ways, tables, depth):
        points = np.concatenate([spaces._all_points((*t, spaces._STAGES)) for t in tables], axis=1)
        return points[:, np.lexsort(points[::-1])]

    monkeypatch.setattr(spaces, "_whole_tiles", every)
    whole = matrix_space(PROBLEMS[name], H100)
    assert all(np.array_equal(getattr(known, c), getattr(whole, c)) for c in spaces.COLUMNS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_point_has_the_numbers_of_all(name):
    problem = PROBLEMS[name]
    space = matrix_space(problem, H100)
    bounds, estimates = matrix_bound(problem, space, H100), estimate_matrix(problem, space, H100)
    for i in np.random.default_rng(0).integers(0, len(space), 8):
        one = matrix_space_of(space.at(int(i)))
        alone = matrix_bound(problem, one, H100)
        assert alone.seconds[0] == bounds.seconds[i]
        assert alone.at(0) == bounds.at(int(i))
        assert estimate_matrix(problem, one, H100)[0] == estimates[i]


def test_mma_sync_is_what_limits_a_large_product():
    problem = PROBLEMS["square"]
    best = choose_matrix(problem, replace(H100, wgmma_share=0.0))
    assert best.bound.limit in ("RATE", "WB")
    assert best.bound.ub <= H100.mma_sync_share
    assert 0.35 < problem.flops / best.estimate_s / tensor_flops_per_s(problem, H100) < H100.mma_sync_share
    assert best.parameters.block.m * best.parameters.block.n >= 128 * 128


def test_warpgroups_are_taken_where_a_device_has_them():
    problem = PROBLEMS["square"]
    with_groups, without = (
        choose_matrix(problem, replace(H100, wgmma_share=share)) for share in (H100.wgmma_share, 0.0)
    )
    assert with_groups.parameters.engine == "wgmma"
    assert with_groups.estimate_s < 0.8 * without.estimate_s
    assert least_matrix_s(problem, H100) < least_matrix_s(problem, replace(H100, wgmma_share=0.0))
    by_columns = choose_matrix(replace(problem, first_rows=False, second_rows=False), H100)
    assert by_columns.parameters.engine == "wgmma"
    assert by_columns.parameters.block.k == 64
    assert by_columns.estimate_s == pytest.approx(choose_matrix(problem, H100).estimate_s, rel=0.05)
    wide = choose_matrix(replace(PROBLEMS["tf32"], second_rows=False), H100)
    assert wide.parameters.engine == "mma"


def test_tf32_by_roles():
    """Rows as they lie, a first factor in columns from registers, a second one turned: faster than mma."""
    rows = replace(PROBLEMS["tf32"], boxes=True)
    by_rows, columns = (choose_matrix(p, H100) for p in (rows, PROBLEMS["tf32 in columns"]))
    assert min(by_rows.parameters.copiers, columns.parameters.copiers) > 0
    assert by_rows.estimate_s <= columns.estimate_s < 1.1 * by_rows.estimate_s
    both = choose_matrix(replace(PROBLEMS["tf32 in columns"], second_rows=False), H100)
    assert (both.parameters.copiers, both.parameters.turners) == (4, 4)
    # Turning costs loads and stores of shared memory, which limits it then, but less than mma.sync does.
    assert both.bound.limit == "SMB"
    assert columns.estimate_s < both.estimate_s
    alike = choose_matrix(replace(PROBLEMS["tf32 in columns"], second_rows=False, boxes=False), H100)
    assert alike.parameters.engine == "mma"
    assert both.estimate_s < 0.8 * alike.estimate_s


@pytest.mark.parametrize(
    ("second", "weights", "exchanged"), [("nc", (), False), ("cn", (), True), ("cn", (1,), False)]
)
def test_products_are_taken_the_other_way_around(second, weights, exchanged):
    """Where the second factor lies in columns, unless it is packed to rows as a constant."""
    func = gemm("f32", 2048, 2048, 2048, "mc", second).with_attrs(weights=weights)
    plan = decision_of(chosen_for(func, "cuda:sm_90a")).parameters
    assert plan.copiers > 0
    assert plan.exchanged is exchanged


def test_the_factor_with_fewer_columns_is_turned():
    """Of two factors in columns: tiles are higher than wide, so that less is turned."""
    plans = [
        decision_of(chosen_for(gemm("f32", m, n, 16384, "cm", "cn"), "cuda:sm_90a")).parameters
        for m, n in ((2048, 256), (256, 2048))
    ]
    assert [plan.exchanged for plan in plans] == [True, False]
    assert all(plan.turners and plan.block.m > plan.block.n for plan in plans)


def test_split_factors_cost_six_products():
    """Of 16-bit factors, beside what splits them; warpgroups take no short sums of them."""
    split = choose_matrix(PROBLEMS["split"], H100)
    narrow = choose_matrix(gemm_problem(2048, 2048, 2048), H100)
    assert split.parameters.engine == "wgmma"
    assert 4 * narrow.estimate_s < split.estimate_s < 12 * narrow.estimate_s
    short = replace(PROBLEMS["split"], channel=128)
    assert choose_matrix(short, H100).parameters.engine == "mma"
    space = matrix_space(PROBLEMS["split"], H100)
    assert (space.k % 16 == 0).all()
    assert (registers_of(PROBLEMS["split"], space) <= 255).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100a", "sm_120"])
def test_warpgroups_are_of_one_architecture(arch):
    """Devices without a record of their own take another one's, but not its instructions."""
    assert resolve_target(f"cuda:{arch}").hardware.wgmma_share == 0
    assert resolve_target("cuda:sm_90a").hardware.wgmma_share == load_hardware("H100").wgmma_share > 0
    assert load_hardware("cuda:sm_90").wgmma_share == 0


@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_120a"])
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_relatives_without_a_record_have_less_shared_memory(arch, name):
    hardware = resolve_target(f"cuda:{arch}").hardware
    assert hardware.smem_per_block_max_bytes == 99 << 10
    chosen = choose_matrix(PROBLEMS[name], hardware).parameters
    assert shared_bytes(PROBLEMS[name], matrix_space_of(chosen))[0] <= 99 << 10


def test_likely_points_differ_and_come_in_order():
    found = likely_matrix(PROBLEMS["skinny"], H100, 10)
    points = [c.parameters for c in found]
    assert len({(p.block.m, p.block.n, p.warps, p.engine) for p in points}) == 10
    assert [c.estimate_s for c in found[1:]] == sorted(c.estimate_s for c in found[1:])
    assert found[0] == choose_matrix(PROBLEMS["skinny"], H100)


def test_few_blocks_with_long_sums_get_sets_of_warps():
    """3 x 3 windows on 7 x 7 pixels: 16-bit products of 64 blocks at most wait for their copies otherwise."""
    deep = MatrixProblem(1, 49, 512, 512, 9, 2, 50176, 4718592, 50176, fetched=0.8)
    space = matrix_space(deep, H100)
    estimates = estimate_matrix(deep, space, H100)
    assert choose_matrix(deep, H100).parameters.warps.k > 1
    one_set = (space.warps_k == 1) & (space.parts == 1)
    assert estimates.min() < 0.6 * estimates[one_set].min()
    assert choose_matrix(PROBLEMS["square"], H100).parameters.warps.k == 1
    assert np.all(space.k % (16 * space.warps_k) == 0)


def test_sets_of_warps_must_clearly_pay():
    """A little faster by the estimate is within its errors."""
    problem = PROBLEMS["square"]
    space = matrix_space(problem, H100)
    bounds, one = matrix_bound(problem, space, H100), space.warps_k == 1
    for gain, wanted in ((SETS_GAIN + 0.01, True), (SETS_GAIN - 0.01, False)):
        estimates = np.where(one, 1.0, gain)
        assert one[best_point(problem, space, bounds, estimates)] == wanted


def test_groups_of_blocks_are_whole():
    assert [raster_of(n) for n in (1, 8, 12, 49, 53)] == [1, 8, 6, 7, 1]


def test_space_holds_only_what_fits():
    problem = PROBLEMS["square"]
    space = matrix_space(problem, H100)
    assert legal(problem, space, H100).all()
    assert shared_bytes(problem, space).max() <= H100.smem_per_block_max_bytes
    small = replace(H100, smem_per_block_max_bytes=1024)
    with pytest.raises(InputError, match="fit"):
        matrix_space(problem, small)
    with pytest.raises(InputError, match="elements of 1, 2 or 4 bytes, or 6 in pieces"):
        gemm_problem(8, 8, 8, 8)


def test_devices_without_tensor_cores_of_ours():
    assert has_tensor_cores(H100, PROBLEMS["square"])
    for name in ("cuda:sm_75", "V100", "opencl"):
        assert not has_tensor_cores(load_hardware(name), PROBLEMS["square"])


def kernel(dtype: str, m: int = 512, n: int = 512, k: int = 512, tf32: bool = True):
    found = product(dtype, (f"{m}, {k}", f"{n}, {k}"), f"m: {m}, n: {n}", f"c: {k}", ("[m, c]", "[n, c]"))
    op = contraction(found)
    if dtype == "f32" and not tf32:
        ops = [o.with_attrs(factors="") if o is op else o for o in found.body.ops]
        found = found.with_body(found.body.with_ops(tuple(ops)))
    return found


def chosen_for(func: Func, target: str) -> Func:
    context = PassContext(target=target, reproducer_folder=None)
    return run_pipeline(Module("m", (func,)), Pipeline.parse("choose-parameters"), context).funcs[0]


@pytest.mark.parametrize(
    ("dtype", "tf32", "target", "kind"),
    [
        ("f16", True, "cuda:sm_90a", "matrix"),
        ("bf16", True, "cuda:sm_80", "matrix"),
        ("f32", True, "cuda:sm_80", "matrix"),
        ("f32", False, "cuda:sm_90a", "contract"),
        ("f16", True, "cuda:sm_75", "contract"),
        ("f16", True, "opencl", "contract"),
    ],
)
def test_engine_by_precision_and_device(dtype, tf32, target, kind):
    chosen = chosen_for(kernel(dtype, tf32=tf32), target)
    assert template(chosen) == kind
    assert estimate_of(chosen) >= least_s(chosen, load_hardware(target))


def test_candidates_are_of_both_engines():
    chosen = chosen_for(kernel("f16", 64, 64, 64), "cuda:sm_90a")
    found = contract_candidates(chosen, H100, 40)
    assert {template(f) for f in found} == {"contract", "matrix"}
    assert found[0] is chosen
    for f in found:
        if template(f) == "matrix":
            assert lower_matrix(f)["block"] % 32 == 0


def test_problem_of_a_convolution():
    conv = product(
        "f16", ("2, 14, 14, 64", "3, 3, 32, 64"), "n: 2, y: 14, x: 14, k: 32", "c: 64, r: 3, s: 3",
        ("[n, y + r - 1, x + s - 1, c]", "[r, s, k, c]"), fill="[0.0, none]",
    )  # fmt: skip
    problem = matrix_problem(conv, view_of(conv))
    assert (problem.batch, problem.m, problem.n, problem.channel, problem.taps) == (1, 392, 32, 64, 9)
    assert problem.fetched == pytest.approx((40 / 42) ** 2)
    assert (problem.first_copy, problem.second_copy) == (8, 8)
    assert problem.compulsory_bytes == sum(v.tensor.nbytes for v in conv.params) + 4 * 392 * 32


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_weights_are_packed_by_channel(dtype):
    func = product(dtype, ("40, 64", "64, 24"), "m: 40, n: 24", "c: 64", ("[m, c]", "[c, n]"))
    plan = matrix_parameters(16, 16, 16, 1, 1, 2)
    module = kernel_program(with_template(func, "matrix", plan), {1})
    context = PassContext(target="cuda:sm_90a", reproducer_folder=None)
    packed = run_pipeline(module, Pipeline.parse("pack-weights"), context)
    (found,) = (f for f in packed.funcs if f.name != "main")
    assert found.params[1].tensor.shape == (24, 64)
    (name,) = module.constants
    (new,) = set(packed.constants) - {name}
    old = module.constants[name].T
    np.testing.assert_array_equal(packed.constants[new], round_to_tf32(old) if dtype == "f32" else old)
    assert found["decision"].parameters.rounded == (dtype == "f32")
    again = run_pipeline(packed, Pipeline.parse("pack-weights"), context)
    assert again.funcs == packed.funcs


def test_rounding_to_tf32():
    ulp = 2.0**-10
    numbers = np.array([1 + ulp / 2, 1 + ulp * 0.49, -(1 + ulp / 2), 3.0, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(
        round_to_tf32(numbers), np.array([1 + ulp, 1, -(1 + ulp), 3, np.inf, np.nan], np.float32)
    )
