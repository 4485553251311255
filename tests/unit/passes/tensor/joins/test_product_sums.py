"""Sums over the rows of a product in its kernel: what joins, and how exact every kind of kernel is."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from attention_training import emulated

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.ir import InputError, parse, show_func
from tilewright.libraries.candidates import graphs_in, products_in
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import chosen_for, with_parameters
from tilewright.passes.kernels.matrix import problem
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.space import matrix_space
from tilewright.passes.kernels.matrix.view import matrix_view
from tilewright.passes.tensor.joins import join_product_sums
from tilewright.passes.tensor.sums import split_sums
from tilewright.tuning.kernels.search_space import search_space

TARGET = "cuda:sm_90a:h200"
CONTEXT = PassContext(TARGET, load_hardware(TARGET))
JOINED = "split-sums, inline-scalars, inline-maps, fuse-kernels, join-product-sums{when=always}, "
KERNELS = JOINED + "split-dims, merge-dims, choose-parameters"

#: a convolution, its results in 16 bits
PRODUCT = """    %0 = tensor.contract(%x, %w, par = {par}, red = (r: {r}, s: {r}, c: {c}),
                         reads = [[n, y + r - {r} // 2, x + s - {r} // 2, c], [k, r, s, c]],
                         fill = [0.0, none]) : f32[{n}, {y}, {x}, {k}] {{
      ^(%a: {dtype}, %b: {dtype}, %acc: f32)
      %c = scalar.cast(%a, dtype = "f32") : f32
      %d = scalar.cast(%b, dtype = "f32") : f32
      %e = scalar.fma(%c, %d, %acc) : f32
      scalar.yield(%e)
    }}
    %1 = tensor.map(%0, %shift, par = {par}, reads = [[n, y, x, k], [k]])
         : {dtype}[{n}, {y}, {x}, {k}] {{
      ^(%a: f32, %b: f32)
      %c = scalar.add(%a, %b) : f32
      %d = scalar.cast(%c, dtype = "{dtype}") : {dtype}
      scalar.yield(%d)
    }}
"""
MOMENTS = """    %2 = tensor.reduce(%1, par = (k: {k}), red = {rows}, reads = [[n, y, x, k]]) : f32[{k}] {{
      ^(%a: {dtype}, %acc: f32)
      %f = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%f, %acc) : f32
      scalar.yield(%s)
    }}
    %3 = tensor.map(%2, par = (k: {k}), reads = [[k]]) : f32[{k}] {{
      ^(%a: f32)
      %n = scalar.const(value = {count}.0, dtype = "f32") : f32
      %m = scalar.div(%a, %n) : f32
      scalar.yield(%m)
    }}
    %4 = tensor.reduce(%1, %3, par = (k: {k}), red = {rows}, reads = [[n, y, x, k], [k]]) : f32[{k}] {{
      ^(%a: {dtype}, %m: f32, %acc: f32)
      %f = scalar.cast(%a, dtype = "f32") : f32
      %d = scalar.sub(%f, %m) : f32
      %s = scalar.fma(%d, %d, %acc) : f32
      scalar.yield(%s)
    }}
    tensor.return(%1, %3, %4)
"""
#: sums of a gradient, and of it times what another array holds at the same points
GRADIENTS = """    %2 = tensor.reduce(%1, par = (k: {k}), red = {rows}, reads = [[n, y, x, k]]) : f32[{k}] {{
      ^(%a: {dtype}, %acc: f32)
      %f = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%f, %acc) : f32
      scalar.yield(%s)
    }}
    %3 = tensor.reduce(%1, %z, %shift, par = (k: {k}), red = {rows},
                       reads = [[n, y, x, k], [n, y, x, k], [k]]) : f32[{k}] {{
      ^(%a: {dtype}, %o: {dtype}, %m: f32, %acc: f32)
      %f = scalar.cast(%a, dtype = "f32") : f32
      %v = scalar.cast(%o, dtype = "f32") : f32
      %d = scalar.sub(%v, %m) : f32
      %s = scalar.fma(%f, %d, %acc) : f32
      scalar.yield(%s)
    }}
    tensor.return(%1, %2, %3)
"""
#: the largest element of each column of some rows, and the mean of some rows
LARGEST = """    %2 = tensor.reduce(%1, par = ({over}), red = ({within}),
                       reads = [[n, y, x, k]], init = [-inf]) : {dtype}[{result}] {{
      ^(%a: {dtype}, %acc: {dtype})
      %s = scalar.max(%a, %acc) : {dtype}
      scalar.yield(%s)
    }}
    tensor.return({stored}%2)
"""
MEAN = """    %2 = tensor.reduce(%1, par = (k: {k}, n: {n}), red = (x: {x}, y: {y}), reads = [[n, y, x, k]])
         : f32[{k}, {n}] {{
      ^(%a: {dtype}, %acc: f32)
      %f = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%f, %acc) : f32
      scalar.yield(%s)
    }}
    %3 = tensor.map(%2, par = (k: {k}, n: {n}), reads = [[k, n]]) : f32[{k}, {n}] {{
      ^(%a: f32)
      %n = scalar.const(value = 64.0, dtype = "f32") : f32
      %m = scalar.div(%a, %n) : f32
      scalar.yield(%m)
    }}
    tensor.return({stored}%3)
"""
SIZES = {"n": 3, "y": 8, "x": 8, "k": 40, "r": 3, "c": 32}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def network(sums, dtype="bf16", *, stored=True, over="nk", **sizes):
    """The product and sums of its results; over: the dimensions that number the largest ones."""
    sizes = {**SIZES, **sizes, "dtype": dtype, "rows": "(n: {n}, y: {y}, x: {x})"}
    sizes["rows"] = sizes["rows"].format(**sizes)
    sizes["par"] = f"{sizes['rows'][:-1]}, k: {sizes['k']})"
    params = "%x: {dtype}[{n}, {y}, {x}, {c}], %w: {dtype}[{k}, {r}, {r}, {c}], %shift: f32[{k}]"
    params += ", %z: {dtype}[{n}, {y}, {x}, {k}]" if "%z" in sums else ""
    results = {LARGEST: "{dtype}[{result}]", MEAN: "f32[{k}, {n}]"}.get(sums, "f32[{k}], f32[{k}]")
    results = ("{dtype}[{n}, {y}, {x}, {k}], " if stored else "") + results
    sizes["stored"] = "%1, " if stored else ""
    sizes["over"] = ", ".join(f"{d}: {sizes[d]}" for d in over)
    sizes["within"] = ", ".join(f"{d}: {sizes[d]}" for d in "nyxk" if d not in over)
    sizes["result"] = ", ".join(str(sizes[d]) for d in over)
    text = f"module @m {{{{\n  tensor.func @main({params}) -> {results} {{{{\n{PRODUCT}{sums}  }}}}\n}}}}"
    return tw.parse(text.format(count=sizes["n"] * sizes["y"] * sizes["x"], **sizes))


def inputs_of(module, far=0.0):
    rng = np.random.default_rng(5)
    found = []
    for p in module.main.params:
        array = rng.standard_normal(p.tensor.shape)
        if len(p.tensor.shape) == 1:
            array = array + far
        found.append(array.astype(DTYPES[p.tensor.dtype]))
    return found


def joined(module, pipeline=KERNELS):
    return run_pipeline(module, Pipeline.parse(pipeline), CONTEXT)


def product_of(module):
    (kernel,) = (f for f in module.funcs if f.name.endswith("sums_0"))
    return kernel


def names_of(func):
    return [op.name for op in func.body.ops[:-1]]


@pytest.fixture(autouse=True)
def cut_what_is_small(monkeypatch):
    """Sums so short are cut before, as long ones are, unless a test leaves them whole."""
    monkeypatch.setattr(split_sums, "GAIN", 100.0)
    monkeypatch.setattr(split_sums, "LONG_OVER_SAMPLES", 1)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("sums", [MOMENTS, GRADIENTS], ids=["moments", "gradients"])
def test_sums_join_whether_they_were_cut_or_not(sums, cut, monkeypatch):
    if not cut:
        monkeypatch.setattr(split_sums, "GAIN", 0.0)
    module = network(sums)
    made = joined(module)
    calls = [op for op in made.main.body.ops if op.name == "tensor.call"]
    assert len(calls) == 2  # the product, and what finishes the sums
    (end,) = (f for f in made.funcs if f.name.endswith("parts_0"))
    assert all(p.tensor.rank < 3 for p in end.params)  # parts, and nothing of the array
    x = inputs_of(module)
    for got, wanted in zip(tw.interpret(made, *x), tw.interpret(module, *x, precision="fp64"), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=1e-2, atol=0.5
        )


#: tile, warps, stages, engine, what else: every way in which kernels bring sums to memory
WAYS = {
    "warps": ((64, 32, 32), (2, 2, 1), 2, "mma", {}),
    "sets of warps": ((64, 32, 64), (1, 2, 2), 2, "mma", {}),
    "two parts in a tile": ((128, 64, 32), (4, 1, 1), 3, "mma", {}),
    "warpgroups": ((64, 48, 32), (4, 1, 1), 2, "wgmma", {}),
    "two warpgroups": ((128, 32, 32), (4, 2, 1), 2, "wgmma", {}),
    "roles": ((64, 48, 32), (4, 1, 1), 2, "wgmma", {"copiers": 4}),
    "roles that stay": ((128, 32, 32), (8, 1, 1), 2, "wgmma", {"copiers": 4, "blocks": 2}),
    "two teams": ((64, 16, 32), (4, 1, 1), 2, "wgmma", {"copiers": 4, "blocks": 2, "teams": 2}),
    "the copy engine": (
        (64, 64, 32), (4, 1, 1), 2, "wgmma", {"copiers": 4, "blocks": 2, "transport": "engine"},
    ),
    "results by the copy engine": (
        (192, 32, 32), (4, 1, 1), 2, "wgmma",
        {"copiers": 4, "blocks": 2, "transport": "engine", "stores": "engine"},
    ),
    "results of two teams by the copy engine": (
        (64, 16, 32), (4, 1, 1), 2, "wgmma",
        {"copiers": 4, "blocks": 2, "teams": 2, "transport": "engine", "stores": "engine"},
    ),
}  # fmt: skip


def with_plan(made, way):
    """The joined module, its product by the parameters of a way."""
    tile, warps, stages, engine, more = (WAYS | UNSTORED_WAYS)[way]
    kernel = product_of(made)
    found = chosen_for(kernel).parameters
    plan = MatrixParameters(MatrixTile(*tile), Warps(*warps), stages, found.channel, 1, engine, **more)
    new = with_parameters(kernel, **vars(plan))
    return made.with_funcs(tuple(new if f is kernel else f for f in made.funcs))


def close(got, wanted, rtol):
    got, wanted = (np.asarray(a, np.float64) for a in (got, wanted))
    assert np.linalg.norm(got - wanted) <= rtol * np.linalg.norm(wanted), (got, wanted)


@pytest.mark.emulator
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sums", [MOMENTS, GRADIENTS], ids=["moments", "gradients"])
def test_every_kind_of_kernel_sums_what_it_stores(sums, way):
    """Rows beyond the last tile, columns beyond it, results far from zero."""
    module = network(sums)
    made = with_plan(joined(module), way)
    far = 4000.0 if sums is MOMENTS else 0.0  # deviations are 17
    x = inputs_of(module, far)
    stored, *totals = emulated(made, x)
    close(stored, tw.interpret(module, *x, precision="fp64")[0], 4e-3)
    exact = stored.astype(np.float64).reshape(-1, stored.shape[-1])
    if sums is MOMENTS:
        mean = exact.mean(0)
        wanted = (mean, ((exact - mean) ** 2).sum(0))
        rtol = (1e-6, 1e-5)
    else:
        other = (x[3].astype(np.float64) - x[2]).reshape(exact.shape)
        wanted = (exact.sum(0), (exact * other).sum(0))
        rtol = (1e-5, 2e-3)  # the product is of what the product's kernel computed, before it is rounded
    for got, exactly, bound in zip(totals, wanted, rtol, strict=True):
        close(got, exactly, bound)


#: ways in which nothing but sums is stored
UNSTORED_WAYS = {
    **{way: plan for way, plan in WAYS.items() if plan[4].get("stores") is None},
    "laid down out of fragments": (
        (192, 32, 32), (4, 1, 1), 2, "wgmma", {"copiers": 4, "blocks": 2, "stores": "sums"},
    ),
    "laid down by two teams": (
        (64, 16, 32), (4, 1, 1), 2, "wgmma",
        {"copiers": 4, "blocks": 2, "teams": 2, "transport": "engine", "stores": "sums"},
    ),
    "laid down by two warpgroups": (
        (64, 64, 32), (4, 2, 1), 2, "wgmma", {"copiers": 4, "transport": "engine", "stores": "sums"},
    ),
}  # fmt: skip
RUNS = [
    (way, stored)
    for stored, ways in ((True, WAYS), (False, UNSTORED_WAYS))
    for way in ways
]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize(("way", "stored"), RUNS)
@pytest.mark.parametrize("sums", [LARGEST, MEAN], ids=["maxima", "means"])
def test_every_kind_of_kernel_joins_runs_of_rows(sums, way, stored):
    """Each sample has results of its own; columns beyond the last tile, samples in the last partial tile."""
    module = network(sums, stored=stored)
    made = with_plan(joined(module), way)
    product = product_of(made)
    assert [r.tensor.shape for r in product.body.ops[-1].operands][int(stored) :] == [(3, 40)]
    assert len(product.body.ops[-1].operands) == 1 + stored
    x = inputs_of(module, -100.0 if sums is LARGEST else 0.0)  # a start of zero would be the largest
    *whole, got = emulated(made, x)
    exact = tw.interpret(network(sums), *x, precision="fp64")
    if stored:
        close(whole[0], exact[0], 4e-3)
        values = whole[0].astype(np.float64)
        wanted = values.max((1, 2)) if sums is LARGEST else values.mean((1, 2)).T
        close(got, wanted, 0.0 if sums is LARGEST else 1e-6)
    close(got, exact[1], 4e-3)


@pytest.mark.emulator
@pytest.mark.parametrize("sums", [MOMENTS, GRADIENTS], ids=["moments", "gradients"])
def test_many_parts_are_joined_in_two_steps(sums, monkeypatch):
    monkeypatch.setattr(join_product_sums, "TWICE_GAIN", 100.0)
    monkeypatch.setattr(join_product_sums, "PART_ROWS", (64,))
    module = network(sums, r=1, n=4, y=16, x=16)
    made = with_plan(joined(module), "warps")
    calls = [op for op in made.main.body.ops if op.name == "tensor.call"]
    assert [len(op.results) for op in calls] == [3, 2, 2]
    assert [r.tensor.shape for op in calls[:2] for r in op.results[-2:]] == [(16, 40)] * 2 + [(4, 40)] * 2
    x = inputs_of(module, 100.0)
    for got, wanted in zip(emulated(made, x), tw.interpret(module, *x, precision="fp64"), strict=True):
        close(got, wanted, 1e-2)


@pytest.mark.emulator
@pytest.mark.parametrize("way", ["warps", "the copy engine"])
def test_products_in_tf32_sum_what_they_store(way):
    module = network(MOMENTS, "f32")
    made = with_plan(joined(module, f"allow-tf32, {KERNELS}"), way)
    x = inputs_of(module, 100.0)
    stored, mean, squares = emulated(made, x)
    exact = stored.astype(np.float64).reshape(-1, stored.shape[-1])
    close(mean, exact.mean(0), 1e-6)
    close(squares, ((exact - exact.mean(0)) ** 2).sum(0), 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": MatrixTile(32, 32, 32)}, "whole parts of 64 rows"),
        ({"parts": 2}, "whole parts of 64 rows"),
        ({"exchanged": True}, "factors in their order"),
        (
            {
                "block": MatrixTile(64, 64, 32),
                "warps": Warps(4, 1, 1),
                "engine": "wgmma",
                "copiers": 4,
                "stores": "sums",
            },
            "results that are not stored",
        ),
    ],
)
def test_parameters_that_hold_no_whole_parts_are_refused(change, message):
    kernel = product_of(joined(network(MOMENTS)))
    warps = {"block": MatrixTile(64, 32, 32), "warps": Warps(2, 1, 1), "engine": "mma"}
    plan = replace(chosen_for(kernel).parameters, **(warps | change))
    with pytest.raises(InputError, match=message):
        lower_matrix(with_parameters(kernel, **vars(plan)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("part * 64 + group * 16 + row,", "part * 64 + group * 16 + 15 - row,"),  # rows in another order
        ("part * 64 + group * 16,", "part * 64,"),  # the first row of the part, which another warp has
        ("red = (row: 16)", "red = (row: 8)"),
    ],
)
def test_sums_over_other_rows_are_no_sums_of_columns(old, new):
    kernel = product_of(joined(network(MOMENTS, r=1)))
    text = show_func(kernel, locations=False)
    assert old in text
    changed = parse(f"module @m {{\n{text.replace(old, new)}\n}}").funcs[0]
    with pytest.raises(InputError, match="sums over groups of 16 rows"):
        lower_matrix(changed)


@pytest.mark.parametrize("sizes", [{"y": 5, "x": 12}, {"dtype": "f32"}], ids=["180 rows", "no tensor cores"])
def test_other_products_keep_their_sums_apart(sizes):
    made = joined(network(MOMENTS, **sizes))
    assert not any("sums" in f.name for f in made.funcs)


@pytest.mark.parametrize(
    ("over", "sizes"),
    [
        ("n", {"n": 40}),  # of samples, of which there are as many as columns
        ("xk", {"n": 8}),  # rows that lie apart
        ("nyk", {}),  # 8 rows
    ],
)
def test_largest_elements_of_other_runs_stay_apart(over, sizes):
    made = joined(network(LARGEST, over=over, **sizes))
    assert not any("sums" in f.name for f in made.funcs)


@pytest.mark.parametrize("over", ["nk", "kn", "k"])
def test_largest_elements_of_runs_of_rows_join_in_any_order_of_results(over):
    module = network(LARGEST, over=over, stored=False)
    made = joined(module)
    assert product_of(made).body.ops[-1].operands[0].tensor.shape == (3, 40)
    x = inputs_of(module)
    close(tw.interpret(made, *x)[0], tw.interpret(module, *x)[0], 0.0)


@pytest.mark.parametrize(("sums", "further"), [(MOMENTS, 0), (GRADIENTS, 1)], ids=["moments", "gradients"])
def test_the_estimate_waits_for_what_sums_alone_read(sums, further, monkeypatch):
    monkeypatch.setattr(problem, "MOST_SMALL_BYTES", 1000)
    kernel = product_of(joined(network(sums, r=1)))
    (op,) = (op for op in kernel.body.ops if op.name == "tensor.contract")
    found = problem.matrix_problem(kernel, matrix_view(kernel, op))
    assert found.summed.further == further
    less = replace(found, summed=replace(found.summed, further=0))
    space = matrix_space(found, CONTEXT.hardware)
    waiting, others = (estimate_matrix(p, space, CONTEXT.hardware) for p in (found, less))
    assert ((waiting > others) if further else (waiting == others)).all()


def test_a_product_that_stores_sums_alone_moves_no_results():
    stored, alone = (
        problem.matrix_problem(kernel, matrix_view(kernel, kernel.body.ops[0]))
        for kernel in (product_of(joined(network(LARGEST, r=1, stored=stored))) for stored in (True, False))
    )
    assert alone.result_bytes == 3 * 40 * 2 + 40 * 4  # largest elements, and what is added to the columns
    assert stored.result_bytes == alone.result_bytes + 192 * 40 * 2


@pytest.mark.parametrize(
    ("stored", "stores"), [(True, "engine"), (False, "sums")], ids=["stored", "sums alone"]
)
def test_warps_of_roles_lay_down_what_is_summed(stored, stores):
    kernel = product_of(joined(network(LARGEST, r=1, stored=stored)))
    view = matrix_view(kernel, kernel.body.ops[0])
    plan = MatrixParameters(
        MatrixTile(64, 64, 32), Warps(4, 1, 1), 3, view.channel, 1, "wgmma", copiers=4, transport="engine"
    )
    assert problem.parameters_for(kernel, view, plan, CONTEXT.hardware).stores == stores


def test_a_sum_that_reads_results_at_two_places_stays_apart():
    """The other array is the product's own result, mirrored."""
    mirrored = """    %4 = tensor.map(%1, par = {par}, reads = [[n, y, {x} - 1 - x, k]])
         : {dtype}[{n}, {y}, {x}, {k}] {{
      ^(%a: {dtype})
      scalar.yield(%a)
    }}
    %3 = tensor.reduce(%1, %4,"""
    made = joined(network(GRADIENTS.replace("    %3 = tensor.reduce(%1, %z,", mirrored)))
    assert not any("sums" in f.name for f in made.funcs)


def test_a_walk_along_another_array_besides_stays_as_it_is(monkeypatch):
    """Two sums share a walk along the other array; one of them does not read the product."""
    monkeypatch.setattr(split_sums, "GAIN", 0.0)
    other = GRADIENTS.replace("%2 = tensor.reduce(%1,", "%2 = tensor.reduce(%z,")
    beside = joined(network(other), JOINED)
    assert sorted(map(len, map(names_of, beside.funcs))) == [2, 2, 2]  # the product, both sums, the calls
    assert not any("sums" in f.name for f in beside.funcs)


def test_nothing_joins_where_that_is_not_asked_for():
    apart = joined(network(MOMENTS), JOINED.replace("always", "never"))
    assert not any("sums" in f.name for f in apart.funcs)
    with pytest.raises(InputError, match="expects one of auto, always, never"):
        joined(network(MOMENTS), JOINED.replace("always", "sometimes"))


def test_only_tensor_cores_compute_a_product_with_sums():
    """Neither lanes nor libraries are candidates where kernels are measured."""
    kernel = product_of(joined(network(MOMENTS, r=1)))
    space = search_space(kernel, CONTEXT.hardware)
    assert space is not None
    assert {chosen_for(space.variant(i)).template for i in range(0, len(space), 50)} == {"matrix"}
    assert not products_in(kernel)
    assert not graphs_in(kernel)
    without = joined(network(MOMENTS, r=1), JOINED.replace("always", "never") + "choose-parameters")
    assert any(products_in(f) for f in without.funcs if f.name != "main")
