"""Fusion by index sets: what shares a kernel, what must not, and results that stay the same."""

import numpy as np
import pytest

from tilewright.ir import interpret, parse, verify
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.tensor.fusion.kernel_groups import partition

CONV = "{ ^(%a: f32, %b: f32, %acc: f32) %m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m) }"
ADD = "{ ^(%p: f32, %q: f32) %s = scalar.add(%p, %q) : f32 scalar.yield(%s) }"
COPY = "{ ^(%c: f32) scalar.yield(%c) }"
EXP = "{ ^(%e: f32) %f = scalar.exp(%e) : f32 scalar.yield(%f) }"
TWICE = "{ ^(%e: f32) %f = scalar.add(%e, %e) : f32 scalar.yield(%f) }"
SUM = "{ ^(%e: f32, %acc: f32) %f = scalar.add(%e, %acc) : f32 scalar.yield(%f) }"
DOMAIN = "par = (k: 4, y: 5)"


def program(
    *lines: str, params: str = "%x: f32[3, 5], %w: f32[4, 3], %r: f32[4, 5]", results: str = "f32[4, 5]"
) -> str:
    body = "\n".join(lines)
    return f"module @m {{ tensor.func @main({params}) -> {results} {{\n{body}\n}} }}"


MATMUL = f"%0 = tensor.contract(%x, %w, {DOMAIN}, red = (c: 3), reads = [[c, y], [k, c]]) : f32[4, 5] {CONV}"


def fused(text: str, passes: str = "forward-copies, dce, fuse-kernels, merge-dims, share-kernels"):
    module = parse(text)
    verify(module)
    out = run_pipeline(module, Pipeline.parse(passes), PassContext(verify_each=True))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    for a, b in zip(interpret(module, *inputs), interpret(out, *inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return out


def kernels(module) -> int:
    return sum(1 for op in module.main.body.ops if op.name == "tensor.call")


def test_an_identity_read_joins_the_producer():
    text = program(
        MATMUL,
        f"%1 = tensor.map(%0, %r, {DOMAIN}, reads = [[k, y], [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%1)",
    )
    assert kernels(fused(text)) == 1


LEFT = f"%0 = tensor.map(%r, {DOMAIN}, reads = [[k, y]]) : f32[4, 5] {EXP}"
RIGHT = f"%1 = tensor.map(%w, {DOMAIN}, reads = [[k, y]]) : f32[4, 5] {EXP}"
BOTH = "%r: f32[4, 5], %w: f32[4, 5]"


@pytest.mark.parametrize(
    ("reads", "returned", "expected"),
    [
        ("[k, y]", "%2", 1),
        ("[3 - k, y]", "%2", 2),  # another thread's element
        ("[k, y]", "%2, %0", 1),  # it is stored as well: a small map waits for nothing more there
    ],
)
def test_maps_of_two_sources_join_what_reads_both(reads, returned, expected):
    results = ", ".join(["f32[4, 5]"] * (1 + returned.count(",")))
    text = program(
        LEFT,
        RIGHT,
        f"%2 = tensor.map(%0, %1, {DOMAIN}, reads = [{reads}, [k, y]]) : f32[4, 5] {ADD}",
        f"tensor.return({returned})",
        params=BOTH,
        results=results,
    )
    assert kernels(fused(text)) == expected


def test_a_map_that_is_also_read_elsewhere_is_stored():
    """Steps of a scan read an element and one before it: joined, each would compute all before it anew."""
    text = program(
        LEFT,
        f"%1 = tensor.map(%0, %0, {DOMAIN}, reads = [[k, y], [3 - k, y]]) : f32[4, 5] {ADD}",
        f"%2 = tensor.map(%1, %1, {DOMAIN}, reads = [[k, y], [3 - k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%2)",
        params="%r: f32[4, 5]",
    )
    assert kernels(fused(text)) == 3


def test_maps_join_only_where_no_kernel_waits_for_itself():
    """%1 needs all of %0 by way of a sum, so the two maps cannot be one kernel."""
    text = program(
        LEFT,
        f"%9 = tensor.reduce(%0, par = (k: 4), red = (y: 5), reads = [[k, y]]) : f32[4] {SUM}",
        f"%1 = tensor.map(%r, %9, {DOMAIN}, reads = [[k, y], [3 - k]]) : f32[4, 5] {ADD}",
        f"%2 = tensor.map(%0, %1, {DOMAIN}, reads = [[k, y], [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%2)",
        params="%r: f32[4, 5]",
    )
    assert kernels(fused(text)) >= 2


def test_both_results_leave_one_kernel():
    text = program(
        MATMUL,
        f"%1 = tensor.map(%0, %r, {DOMAIN}, reads = [[k, y], [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%1, %0)",
        results="f32[4, 5], f32[4, 5]",
    )
    assert kernels(fused(text)) == 1


@pytest.mark.parametrize("read", ["[k, 4 - y]", "[3 - k, y]", "[k, 0]"])
def test_reading_another_thread_s_element_does_not_join(read):
    text = program(
        MATMUL,
        f"%1 = tensor.map(%0, %r, {DOMAIN}, reads = [{read}, [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%1)",
    )
    assert kernels(fused(text)) == 2


def test_no_cycle_between_kernels():
    """b reads a through a reduction that needs all of a: {a, b} in one kernel would wait for itself."""
    text = program(
        MATMUL,
        f"%1 = tensor.reduce(%0, par = (k: 4), red = (y: 5), reads = [[k, y]]) : f32[4] {SUM}",
        f"%2 = tensor.map(%0, %1, {DOMAIN}, reads = [[k, y], [k]]) : f32[4, 5] {ADD}",
        "tensor.return(%2)",
    )
    out = fused(text)
    assert kernels(out) == 2
    verify(out)


def test_a_softmax_is_one_kernel():
    text = program(
        f"%0 = tensor.map(%r, par = (i: 4, j: 5), reads = [[i, j]]) : f32[4, 5] {EXP}",
        f"%1 = tensor.reduce(%0, par = (i: 4), red = (j: 5), reads = [[i, j]]) : f32[4] {SUM}",
        f"%2 = tensor.map(%0, %1, par = (i: 4, j: 5), reads = [[i, j], [i]]) : f32[4, 5] {ADD}",
        "tensor.return(%2)",
        params="%r: f32[4, 5]",
    )
    out = fused(text)
    assert kernels(out) <= 2


def test_a_transpose_becomes_an_index():
    text = program(
        f"%t = tensor.map(%r, par = (a: 5, b: 4), reads = [[b, a]]) : f32[5, 4] {COPY}",
        f"%1 = tensor.map(%t, %r, {DOMAIN}, reads = [[y, k], [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%1)",
        params="%r: f32[4, 5]",
    )
    out = fused(text)
    assert kernels(out) == 1


def test_views_cost_no_kernel_but_a_returned_view_is_written():
    view = f"%v = tensor.map(%r, par = (i: 20), reads = [[i // 5, i % 5]]) : f32[20] {COPY}"
    used = program(
        view,
        f"%1 = tensor.map(%v, par = (i: 20), reads = [[i]]) : f32[20] {EXP}",
        "tensor.return(%1)",
        params="%r: f32[4, 5]",
        results="f32[20]",
    )
    assert kernels(fused(used)) == 1
    assert kernels(fused(program(view, "tensor.return(%v)", params="%r: f32[4, 5]", results="f32[20]"))) == 1


def test_equal_kernels_are_shared():
    text = program(
        f"%0 = tensor.map(%r, {DOMAIN}, reads = [[k, y]]) : f32[4, 5] {EXP}",
        f"%1 = tensor.map(%0, {DOMAIN}, reads = [[3 - k, y]]) : f32[4, 5] {EXP}",
        f"%2 = tensor.map(%1, {DOMAIN}, reads = [[3 - k, y]]) : f32[4, 5] {EXP}",
        "tensor.return(%2)",
        params="%r: f32[4, 5]",
    )
    out = fused(text)
    assert kernels(out) == 3
    assert len(out.funcs) == 3  # main and two different kernels


def test_without_fusion_every_op_has_its_kernel():
    text = program(
        MATMUL,
        f"%1 = tensor.map(%0, %r, {DOMAIN}, reads = [[k, y], [k, y]]) : f32[4, 5] {ADD}",
        "tensor.return(%1)",
    )
    assert kernels(fused(text, "fuse-kernels{partitioner=none}")) == 2


@pytest.mark.parametrize(("prologues", "hosts"), [(True, "contract"), (False, "map")])
def test_a_large_map_of_a_stored_value_is_left_to_the_product_that_reads_it(prologues: bool, hosts: str):
    large, par = "f32[1024, 2100]", "par = (c: 1024, y: 2100)"
    product = "par = (k: 4, y: 2100), red = (c: 1024), reads = [[c, y], [k, c]]"
    text = program(
        f"%0 = tensor.map(%x, {par}, reads = [[c, y]]) : {large} {TWICE}",
        f"%1 = tensor.map(%0, {par}, reads = [[c, y]]) : {large} {TWICE}",
        f"%2 = tensor.contract(%1, %w, {product}) : f32[4, 2100] {CONV}",
        "tensor.return(%0, %2)",
        params=f"%x: {large}, %w: f32[4, 1024]",
        results=f"{large}, f32[4, 2100]",
    )
    func = parse(text).main
    made = func.body.ops[1].result
    groups = partition(func, prologues=prologues).groups
    (host,) = (g for g in groups if any(made in op.results for op in g.ops))
    assert host.anchor.name == f"tensor.{hosts}"


STEP = """module @m {
  tensor.func @main(%d: f32[3, 5], %x: f32[3, 4], %w: f32[5, 4], %v: f32[5, 4], %u: f32[5, 4],
                    updates = [[2, 0], [3, 1], [4, 2]]) -> f32[5, 4], f32[5, 4], f32[5, 4] {
    %g = tensor.contract(%d, %x, par = (k: 5, y: 4), red = (c: 3), reads = [[c, k], [c, y]]) : f32[5, 4] CONV
    %0 = tensor.map(%g, par = (k: 5, y: 4), reads = [[k, y]]) : f32[5, 4] TWICE
    %1 = tensor.map(%v, %0, par = (k: 5, y: 4), reads = [[k, y], [k, y]]) : f32[5, 4] ADD
    %2 = tensor.map(%g, par = (k: 5, y: 4), reads = [[k, y]]) : f32[5, 4] EXP
    %3 = tensor.map(%1, %2, par = (k: 5, y: 4), reads = [[k, y], [k, y]]) : f32[5, 4] ADD
    %4 = tensor.map(%w, %3, par = (k: 5, y: 4), reads = [[k, y], [k, y]]) : f32[5, 4] ADD
    %5 = tensor.map(%u, par = (k: 5, y: 4), reads = [[k, y]]) : f32[5, 4] TWICE
    tensor.return(%4, %1, %5)
  }
}"""


def test_what_updates_state_of_one_shape_is_one_kernel():
    text = STEP.replace("CONV", CONV).replace("TWICE", TWICE).replace("ADD", ADD).replace("EXP", EXP)
    out = fused(text)
    calls = [op for op in out.main.body.ops if op.name == "tensor.call"]
    assert [len(op.results) for op in calls] == [1, 3]
    without = fused(text.replace("updates =", "others ="))
    assert max(len(op.results) for op in without.main.body.ops if op.name == "tensor.call") < 3


def test_updates_that_read_each_other_at_other_places_wait():
    """The second of three groups needs all of the first; the third reads both at its own places."""
    text = (
        """module @m {
      tensor.func @main(%x: f32[5, 4], %w: f32[5, 4], %v: f32[5, 4], %u: f32[5, 4],
                        updates = [[1, 0], [2, 1], [3, 2]]) -> f32[5, 4], f32[5, 4], f32[5, 4] {
        %0 = tensor.map(%x, par = (k: 5, y: 4), reads = [[k, y]]) : f32[5, 4] TWICE
        %1 = tensor.map(%w, %x, par = (k: 5, y: 4), reads = [[k, y], [k, y]]) : f32[5, 4] ADD
        %2 = tensor.map(%1, par = (k: 5, y: 4), reads = [[k, 3 - y]]) : f32[5, 4] EXP
        %3 = tensor.map(%1, %2, par = (k: 5, y: 4), reads = [[k, y], [k, y]]) : f32[5, 4] ADD
        tensor.return(%0, %2, %3)
      }
    }""".replace("TWICE", TWICE)
        .replace("ADD", ADD)
        .replace("EXP", EXP)
    )
    calls = [op for op in fused(text).main.body.ops if op.name == "tensor.call"]
    assert [len(op.results) for op in calls] == [2, 2]


@pytest.mark.parametrize(("columns", "expected"), [(65536, 1), (65537, 2)])
def test_a_row_that_no_block_keeps_is_walked_along_by_kernels_of_their_own(columns, expected):
    domain = f"par = (k: 2, c: {columns})"
    text = program(
        f"%0 = tensor.reduce(%x, par = (k: 2), red = (c: {columns}), reads = [[k, c]]) : f32[2] {SUM}",
        f"%1 = tensor.map(%0, par = (k: 2), reads = [[k]]) : f32[2] {EXP}",
        f"%2 = tensor.map(%x, %1, {domain}, reads = [[k, c], [k]]) : f32[2, {columns}] {ADD}",
        "tensor.return(%2)",
        params=f"%x: f32[2, {columns}]",
        results=f"f32[2, {columns}]",
    )
    assert len(partition(parse(text).main).groups) == expected
