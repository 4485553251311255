"""Products whose results are computed from several sums each: emulated kernels against the interpreter."""

import re
from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from interpreted_kernels import interpreted, values_of
from matrix_samples import CTX, ERRORS, THREAD, matrix_parameters, source, split_of, stored, view_of

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Module, parse, show_func, walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.column_members import members_of
from tilewright.passes.kernels.contract.choice import lanes_engine, least_lanes_s
from tilewright.passes.kernels.matrix.bound import matrix_bound
from tilewright.passes.kernels.matrix.choice import likely_matrix
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import matrix_space, matrix_space_of, shared_bytes
from tilewright.passes.kernels.registry import choices_in_order
from tilewright.passes.kernels.rows.choice import least_rows_s
from tilewright.passes.tensor.joins.interleave_columns import interleaved

H200 = load_hardware("H200")


def gated(
    dtype: str,
    rows: int,
    hidden: int,
    terms: int,
    *,
    members: int = 2,
    result: str = "",
    orders: str = "mc nc",
    results: str = "mn",
    batch: int = 0,
    factors: str = "",
    start: float = 0.0,
) -> Func:
    """A product of `members` x `hidden` columns, a bias, and a map that makes a result of one column of each.

    The first column goes through a sigmoid. result: the dtype of results, that of factors unless it is given.
    """
    sizes = {"m": rows, "n": members * hidden, "c": terms, "b": batch}
    lead, out = ("b" if batch else ""), result or dtype
    first, second = (lead + order for order in orders.split())
    shape = {o: ", ".join(str(sizes[d]) for d in o) for o in (first, second)}
    order = lead + results
    wide = ", ".join(str(sizes[d]) for d in order)
    par = ", ".join(f"{d}: {sizes[d]}" for d in order)
    sizes["n"] = hidden
    narrow = ", ".join(str(sizes[d]) for d in order)
    small = ", ".join(f"{d}: {sizes[d]}" for d in order)
    at = [", ".join(f"n + {i * hidden}" if d == "n" else d for d in order) for i in range(members)]
    casts = '%u = scalar.cast(%s, dtype = "f32") : f32 %v = scalar.cast(%t, dtype = "f32") : f32'
    allowed = f', factors = "{factors}"' if factors else ""
    init = f", init = [{start}]" if start else ""
    sums = [f"%t{i} = scalar.add(%t{i - 1}, %x{i + 1}) : f32" for i in range(1, members - 1)]
    narrowed = "" if out == "f32" else f'%r = scalar.cast(%t{members - 2}, dtype = "{out}") : {out}'
    last = f"%t{members - 2}" if out == "f32" else "%r"
    text = f"""module @m {{
  tensor.func @k(%x: {dtype}[{shape[first]}], %w: {dtype}[{shape[second]}],
                 %bias: f32[{members * hidden}]) -> {out}[{narrow}] {{
    %p = tensor.contract(%x, %w, par = ({par}), red = (c: {terms}), reads = [[{", ".join(first)}],
                         [{", ".join(second)}]]{allowed}{init}) : f32[{wide}] {{
      ^(%s: {dtype}, %t: {dtype}, %sum: f32)
      {"" if dtype == "f32" else casts}
      %r = scalar.fma({"%s, %t" if dtype == "f32" else "%u, %v"}, %sum) : f32
      scalar.yield(%r)
    }}
    %g = tensor.map(%p, %bias, par = ({par}), reads = [[{", ".join(order)}], [n]]) : f32[{wide}] {{
      ^(%a: f32, %b: f32)
      %c = scalar.add(%a, %b) : f32
      scalar.yield(%c)
    }}
    %y = tensor.map({", ".join(["%g"] * members)}, par = ({small}),
                    reads = [{", ".join(f"[{place}]" for place in at)}]) : {out}[{narrow}] {{
      ^({", ".join(f"%x{i}: f32" for i in range(members))})
      %e = scalar.sigmoid(%x0) : f32
      %f = scalar.mul(%e, %x0) : f32
      %t0 = scalar.mul(%f, %x1) : f32
      {" ".join(sums)}
      {narrowed}
      scalar.yield({last})
    }}
    tensor.return(%y)
  }}
}}"""
    found = interleaved(parse(text).funcs[0])
    assert found is not None
    return found.kernel


def thread_of(kernel: Func, *tiles: int, **more: int | str) -> Func:
    plan = matrix_parameters(*tiles, view_of(kernel).channel)
    thread = lower_matrix(with_template(kernel, "matrix", replace(plan, **more)))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def assert_as_interpreted(kernel: Func, *tiles: int, seed: int = 1, **more: int | str) -> None:
    inputs = values_of(kernel)
    (want,) = interpreted(kernel, inputs)
    (got,) = run(thread_of(kernel, *tiles, **more), "emulator", inputs, seed=seed).values()
    want, got = want.astype(np.float64), got.astype(np.float64)
    assert got.shape == want.shape
    tolerance = ERRORS[str(kernel.params[0].tensor.dtype)]
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


ROLES = {"engine": "wgmma", "copiers": 4, "transport": "engine"}
WRITTEN = ROLES | {"stores": "engine"}


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("dtype", "size", "tiles", "more"),
    [
        # fragments: rows and columns at edges, two sets of warps, warps along both
        ("f16", (70, 40, 200), (32, 32, 64, 2, 1, 3), {}),
        ("bf16", (40, 24, 72), (32, 64, 32, 1, 2, 2), {}),
        ("f16", (48, 32, 96), (16, 32, 64, 1, 1, 3), {"warps": 2}),
        ("f32", (40, 24, 72), (32, 32, 16, 2, 1, 3), {}),
        ("f16", (40, 30, 72), (32, 32, 32, 2, 1, 3), {}),  # eight does not divide the columns of results
        # warpgroups without roles
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 3), {"engine": "wgmma"}),
        ("bf16", (130, 56, 72), (128, 96, 32, 4, 2, 2), {"engine": "wgmma"}),
        ("f32", (70, 40, 76), (64, 32, 32, 4, 1, 3), {"engine": "wgmma"}),
        # roles whose threads store: pieces of 32 and of 48 columns, of several tiles, in turn
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 3), ROLES | {"blocks": 2}),
        ("f16", (70, 72, 72), (64, 144, 64, 4, 1, 3), ROLES),
        ("bf16", (130, 56, 72), (128, 32, 32, 8, 1, 4), ROLES | {"blocks": 2, "raster": 2}),
        ("f16", (70, 40, 72), (64, 32, 32, 4, 1, 3), ROLES | {"blocks": 1, "teams": 2}),
        ("f32", (70, 40, 72), (64, 32, 32, 4, 1, 3), ROLES | {"blocks": 3}),
        ("f16", (70, 40, 72), (64, 64, 32, 4, 1, 3), ROLES | {"transport": "threads"}),
        ("f16", (70, 61, 72), (64, 64, 32, 4, 1, 3), ROLES | {"blocks": 2}),
        # roles whose results the copy engine writes
        ("f16", (70, 40, 200), (64, 64, 64, 4, 1, 3), WRITTEN | {"blocks": 2}),
        ("bf16", (130, 200, 72), (128, 128, 32, 8, 1, 3), WRITTEN | {"blocks": 1}),
        ("f16", (140, 104, 72), (128, 128, 32, 4, 1, 3), WRITTEN | {"blocks": 1, "teams": 2}),
        ("f16", (72, 64, 72), (64, 128, 32, 4, 1, 3), WRITTEN | {"cluster": 2, "raster": 2}),
        ("f16", (70, 60, 72), (64, 128, 32, 4, 1, 3), WRITTEN),  # columns beyond results fill the last tile
    ],
)
def test_emulated_kernels_are_those_of_the_interpreter(dtype, size, tiles, more):
    kernel = gated(dtype, *size, factors="tf32" if dtype == "f32" else "")
    more = dict(more)
    if sets := more.pop("warps", 0):
        plan = matrix_parameters(*tiles, "c", warps_k=sets)
        more["warps"] = plan.warps
    assert_as_interpreted(kernel, *tiles, **more)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("members", "tiles", "more"),
    [
        (3, (32, 48, 32, 2, 1, 3), {}),
        (3, (64, 48, 32, 4, 1, 3), ROLES | {"blocks": 2}),
        (3, (64, 96, 32, 4, 1, 3), {"engine": "wgmma"}),
        (4, (64, 64, 32, 4, 1, 3), ROLES),
        (4, (64, 64, 32, 4, 1, 3), WRITTEN),
    ],
)
def test_more_than_two_sums_make_a_result(members, tiles, more):
    assert_as_interpreted(gated("f16", 70, 40, 72, members=members), *tiles, **more)


@pytest.mark.emulator
@pytest.mark.parametrize("more", [{}, {"engine": "wgmma"}, ROLES])
@pytest.mark.parametrize("change", [{"results": "nm"}, {"batch": 2, "result": "f32"}, {"orders": "mc cn"}])
def test_results_in_columns_batches_and_factors_in_columns(more, change):
    if change.get("orders") and more is ROLES:
        more = {**ROLES, "transport": "threads"}
    tiles = (64, 32, 32, 4, 1, 3)
    assert_as_interpreted(gated("f16", 72, 40, 72, **change), *tiles, **more)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        ((32, 32, 16, 2, 1, 2), {}),
        ((64, 32, 32, 4, 1, 2), {"engine": "wgmma"}),
        ((64, 48, 32, 4, 1, 2), ROLES | {"turners": 4, "blocks": 1}),
    ],
)
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_float32_factors_in_pieces_and_sums_that_are_not_finite(tiles, more, start):
    """Infinite sums are those of float32, in the results that they belong to and in no other."""
    kernel = gated("f32", 70, 40, 192, factors="split", start=start)
    inputs = values_of(kernel)
    inputs[0][3, 5], inputs[1][9, 7] = np.inf, np.nan
    (want,) = interpreted(kernel, inputs)
    (got,) = run(thread_of(kernel, *tiles, **more), "emulator", inputs).values()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    finite = np.isfinite(want)
    assert finite.any()
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=2e-6 * np.abs(want[finite]).max())


@pytest.mark.emulator
@pytest.mark.parametrize("columns", [32, 48])
def test_factors_that_are_stored_in_pieces(columns):
    whole = gated("f32", 70, 48, 512, factors="split")
    kernel = stored(whole)
    assert view_of(kernel).stored
    assert view_of(kernel).sums_of_result == 2
    x, w, bias = values_of(whole)
    x[3, 5] = np.inf
    (want,) = interpreted(whole, [x, w, bias])
    func = thread_of(kernel, 64, columns, 32, 4, 1, 3, **ROLES, blocks=1)
    (got,) = run(func, "emulator", [bias, *split_of(x, w)]).values()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=2e-6 * np.abs(want[finite]).max())


def test_only_results_are_stored_and_sums_are_read_by_vectors():
    """A thread reads four sums of each member side by side; or it has them, and the engine writes rows."""
    kernel = gated("f16", 1024, 256, 512)
    engine = thread_of(kernel, 128, 128, 64, 4, 1, 3, **WRITTEN, blocks=8)
    assert {op["tile"] for op in walk(engine.body) if op.name == "thread.store_tile"} == {(16, 64)}
    text = source(thread_of(kernel, 128, 128, 64, 4, 1, 3, **ROLES, blocks=8))
    assert len(re.findall(r"float4 pieces\w* = \*\(const float4\*\)&pieces", text)) == 2
    assert re.search(r"\*\(uint2\*\)&y\[", text)


@pytest.mark.parametrize("rows", [1, 2, 1024])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_only_tensor_cores_take_such_kernels(rows, dtype):
    """Of a single row, which other families multiply as a vector, nothing does."""
    kernel = gated(dtype, rows, 256, 512, factors="tf32" if dtype == "f32" else "")
    assert lanes_engine(kernel, kernel.body.ops[0], H200, 0.0) is None
    (whole,) = run_pipeline(Module("m", (kernel,)), Pipeline.parse("split-dims, merge-dims"), CTX).funcs
    chosen = [c.family for c in choices_in_order() if c.choose(whole, H200) is not None]
    assert chosen == (["matrix"] if rows > 1 else [])
    assert (least_lanes_s(whole, H200), least_rows_s(whole, H200)) == (None, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n // 8 * 16 + n % 8 + 8", "n // 8 * 16 + n % 8 + 4"),  # within a group of the first member
        ("n // 8 * 16 + n % 8 + 8", "n // 4 * 8 + n % 4"),  # other groups
        ("[m, n // 8 * 16 + n % 8 + 8]", "[0, n // 8 * 16 + n % 8 + 8]"),  # another row
    ],
)
def test_columns_in_another_order_are_no_members(old, new):
    kernel = gated("f16", 64, 32, 64)
    found = members_of(kernel, kernel.body.ops[0])
    assert found is not None
    assert (found.count, found.column, found.extent) == (2, "n", 32)
    text = show_func(kernel)
    assert old in text
    (other,) = parse(f"module @m {{ {text.replace(old, new)} }}").funcs
    assert members_of(other, other.body.ops[0]) is None


@pytest.mark.parametrize(
    ("tiles", "more", "message"),
    [
        ((32, 48, 32, 2, 2, 3), {}, "multiples of 2 groups of 8"),
        ((64, 48, 32, 4, 1, 3), ROLES | {"parts": 2}, "a block per tile"),
        ((64, 48, 64, 4, 2, 3), {"engine": "wgmma"}, "multiples of 2 groups of 8"),
    ],
)
def test_tiles_that_hold_no_whole_results_are_refused(tiles, more, message):
    with pytest.raises(InputError, match=message):
        thread_of(gated("f16", 64, 48, 1024), *tiles, **more)


@pytest.mark.parametrize("size", [(16384, 2816, 1024), (16384, 5632, 2048), (512, 512, 512), (64, 40, 72)])
@pytest.mark.parametrize("members", [2, 3])
def test_the_bound_holds_and_every_point_can_be_built(size, members):
    """The bound of a point lies below its estimate; what results do not need to move is not counted."""
    kernel = gated("f16", *size, members=members)
    problem = matrix_problem(kernel, view_of(kernel))
    assert problem.members == members
    m, n, _ = size
    assert 2 * m * n < problem.result_bytes <= 2 * m * n + 4 * members * n  # the bias is of all columns
    space = matrix_space(problem, H200)
    assert (space.parts == 1).all()
    assert (matrix_bound(problem, space, H200).seconds <= 1.001 * estimate_matrix(problem, space, H200)).all()
    for choice in likely_matrix(problem, H200, 12):
        replace(choice.parameters, channel="c").check(view_of(kernel))


def test_the_model_counts_what_such_a_block_has_in_shared_memory():
    kernel = gated("f16", 16384, 2816, 1024)
    func = thread_of(kernel, 128, 128, 64, 4, 1, 4, **ROLES, blocks=132, teams=2)
    plan = replace(matrix_parameters(128, 128, 64, 4, 1, 4, engine="wgmma"), copiers=4, blocks=132, teams=2)
    counted = shared_bytes(matrix_problem(kernel, view_of(kernel)), matrix_space_of(plan))[0]
    assert 0.95 * counted < emit_cuda(func).shared_bytes_dynamic <= counted


@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        ((128, 128, 64, 4, 1, 5), WRITTEN | {"blocks": 132, "teams": 2, "raster": 8}),
        ((128, 256, 64, 8, 1, 3), WRITTEN | {"blocks": 132, "raster": 8}),
        ((128, 128, 64, 4, 1, 4), ROLES | {"blocks": 132, "teams": 2, "raster": 8}),
    ],
)
def test_sums_of_large_tiles_stay_in_registers(tiles, more):
    text = source(thread_of(gated("f16", 16384, 2816, 1024), *tiles, **more))
    built = compile_cuda(text, arch="sm_90a")
    assert built.kernels["k"].spill_bytes == 0
    assert "serialized" not in built.log
