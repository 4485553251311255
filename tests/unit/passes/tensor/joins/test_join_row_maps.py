"""Maps in the kernels of rows that read them: which join, what is stored and kept, and what comes out."""

import numpy as np
import pytest
from decision_samples import parameters, template, with_template
from relay_builder import Net

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.codegen.emit.kernel import emit_cuda
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level, Pairs, parse
from tilewright.ir.nodes import walk
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.row_phases import row_phases

GPU = "cuda:sm_90a:h200"
JOINED = "fuse-kernels, join-row-maps{when=always}"


def norm(rows=6, columns=40, dtype="f32", returned="%s, %y", more=""):
    """Three float32 parts and a residual as one array, and its rows about their means, by a gain.

    more: further ops. returned: results of the shape of the rows.
    """
    t = f"{dtype}[{rows}, {columns}]"
    par = f"par = (i: {rows}, j: {columns})"
    cast = f'scalar.cast(%u, dtype = "{dtype}") : {dtype}'
    wide = 'scalar.cast(%a, dtype = "f32") : f32'
    kinds = ", ".join(t for _ in returned.split(","))
    return f"""module @net {{
  tensor.func @main(%p: f32[3, {rows}, {columns}], %r: {t}, %g: f32[{columns}]) -> {kinds} {{
    %s = tensor.map(%p, %p, %p, %r, {par}, reads = [[0, i, j], [1, i, j], [2, i, j], [i, j]]) : {t} {{
      ^(%a: f32, %b: f32, %c: f32, %d: {dtype})
      %v = scalar.add(%a, %b) : f32 %w = scalar.add(%v, %c) : f32
      %x = scalar.cast(%d, dtype = "f32") : f32 %u = scalar.add(%w, %x) : f32
      %h = {cast} scalar.yield(%h) }}
    %m = tensor.reduce(%s, par = (i: {rows}), red = (j: {columns}), reads = [[i, j]]) : f32[{rows}] {{
      ^(%a: {dtype}, %acc: f32) %b = {wide} %n = scalar.add(%b, %acc) : f32 scalar.yield(%n) }}
    %y = tensor.map(%s, %m, %g, {par}, reads = [[i, j], [i], [j]]) : {t} {{
      ^(%a: {dtype}, %b: f32, %c: f32)
      %n = scalar.const(value = {columns}.0, dtype = "f32") : f32 %q = scalar.div(%b, %n) : f32
      %e = {wide} %f = scalar.sub(%e, %q) : f32 %u = scalar.mul(%f, %c) : f32
      %h = {cast} scalar.yield(%h) }}
    {more}
    tensor.return({returned})
  }}
}}"""


def turned(of, and_of, rows=6, columns=40):
    """The sum of two values, the rows of the first in reverse order."""
    return (
        f"%z = tensor.map({of}, {and_of}, par = (i: {rows}, j: {columns}), "
        f"reads = [[{rows - 1} - i, j], [i, j]]) : f32[{rows}, {columns}] {{ "
        "^(%a: f32, %b: f32) %n = scalar.add(%a, %b) : f32 scalar.yield(%n) }"
    )


def on(target, module, pipeline):
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    return run_pipeline(module, Pipeline.parse(pipeline), context)


def joined(text, target=GPU, pipeline=JOINED):
    return on(target, parse(text), pipeline)


def kernels_of(module):
    return [f for f in module.funcs if f.name != "main"]


def with_rows(module, kind, params):
    """The module with this template on each kernel that reduces, chosen ones on the others."""
    named = Pairs.of(dict(zip(("threads_per_row", "rows_per_block", "vec"), params, strict=True)))
    reduces = {f.name for f in module.funcs if any(o.name == "tensor.reduce" for o in f.body.ops)}
    return module.with_funcs(
        tuple(with_template(f, kind, named) if f.name in reduces else f for f in module.funcs)
    )


def agrees(text, params, target, kind="rows_kept", tolerance=4e-6):
    module = on(target, joined(text), "choose-parameters")
    module = with_rows(module, kind, params)
    assert sum(any(o.name == "tensor.reduce" for o in f.body.ops) for f in module.funcs) == 1
    rng = np.random.default_rng(3)
    inputs = []
    for p in module.main.params:
        kind_of = np.float16 if p.tensor.dtype == "f16" else np.float32
        inputs.append(rng.standard_normal(p.tensor.shape).astype(kind_of))
    wanted = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        for g, w in zip(exe(*inputs), wanted, strict=True):
            np.testing.assert_allclose(g.astype(np.float64), w, rtol=tolerance, atol=tolerance)


TARGETS = [pytest.param("emulator", marks=pytest.mark.emulator), "opencl"]


# -- which join --------------------------------------------------------------------------------------------
def test_a_map_that_a_norm_reads_and_that_is_returned_is_of_the_norms_kernel():
    module = joined(norm())
    (kernel,) = kernels_of(module)
    assert len(kernel.result_types) == 2
    found = row_phases(kernel)
    assert [found.phases[n].op.name for n in found.walks[0]] == ["tensor.map", "tensor.reduce"]
    assert len(found.walks) == 2


def test_a_result_that_nothing_else_reads_is_not_stored():
    module = joined(norm(returned="%y"))
    (kernel,) = kernels_of(module)
    assert len(kernel.result_types) == 1


def test_others_that_wait_for_the_norm_anyway_read_what_it_stores():
    text = norm(returned="%z", more=turned("%y", "%s"))
    rows, last = [op for op in joined(text).main.body.ops if op.name == "tensor.call"]
    assert set(rows.results) == set(last.operands)


@pytest.mark.parametrize("returned", ["%z, %y", "%z, %y, %s"])
def test_what_could_start_before_the_norm_does_not_wait_for_it(returned):
    module = joined(norm(returned=returned, more=turned("%s", "%s")))
    assert len(kernels_of(module)) == 3


def test_a_row_that_no_block_walks_along_stays_apart():
    assert len(kernels_of(joined(norm(rows=2, columns=70_000)))) == 3  # nor does the map behind the sum
    assert len(kernels_of(joined(norm(rows=2, columns=60_000)))) == 1


def test_the_estimate_decides():
    """Parts in a kernel of their own cost a launch; along few long rows they would be walked along twice."""
    auto = "fuse-kernels, join-row-maps"
    assert len(kernels_of(joined(norm(rows=1024, columns=768), pipeline=auto))) == 1
    assert len(kernels_of(joined(norm(rows=8, columns=60_000), pipeline=auto))) == 2
    never = "fuse-kernels, join-row-maps{when=never}"
    assert len(kernels_of(joined(norm(rows=1024, columns=768), pipeline=never))) == 2


def test_what_lies_across_rows_is_moved_by_a_kernel_of_its_own():
    """Rows of an image's pixels, whose channels lie apart: neighbours of a row would be a line each."""
    text = norm(rows=196, columns=768).replace("%r: f32[196, 768]", "%r: f32[768, 196]")
    assert len(kernels_of(joined(norm(rows=196, columns=768)))) == 1
    assert len(kernels_of(joined(text.replace("[2, i, j], [i, j]]", "[2, i, j], [j, i]]")))) == 2


def test_a_cpu_keeps_both():
    assert len(kernels_of(joined(norm(), "opencl"))) == 2


# -- what is kept ------------------------------------------------------------------------------------------
def test_a_sum_of_many_arrays_is_kept_in_their_place():
    (kernel,) = kernels_of(joined(norm(rows=1024, columns=768, dtype="f16")))
    found = row_phases(kernel)
    assert found.kept_words(kernel) == 1.0
    (kept,) = found.kept(kernel)
    assert kept is kernel.body.ops[0].result
    parts = kernel.params[0]
    assert found.uses[parts].phases == [0, 1, 2]
    assert found.kept_uses[parts].phases == [0]  # the store, beside which the sum reads what is kept


def test_one_array_is_kept_rather_than_what_a_map_makes_of_it():
    """Either takes a register for each element, and what is read waits for no arithmetic."""
    text = """module @net {
  tensor.func @k(%x: f32[8, 32]) -> f32[8, 32] {
    %s = tensor.map(%x, par = (i: 8, j: 32), reads = [[i, j]]) : f32[8, 32] {
      ^(%a: f32) %b = scalar.neg(%a) : f32 scalar.yield(%b) }
    %m = tensor.reduce(%s, par = (i: 8), red = (j: 32), reads = [[i, j]]) : f32[8] {
      ^(%a: f32, %acc: f32) %n = scalar.add(%a, %acc) : f32 scalar.yield(%n) }
    %y = tensor.map(%s, %m, par = (i: 8, j: 32), reads = [[i, j], [i]]) : f32[8, 32] {
      ^(%a: f32, %b: f32) %c = scalar.sub(%a, %b) : f32 scalar.yield(%c) }
    tensor.return(%y)
  }
}"""
    (kernel,) = parse(text).funcs
    assert row_phases(kernel).kept(kernel) == kernel.params


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_the_norm_behind_parts_reads_each_of_them_once(dtype):
    lowered = lower(parse(norm(rows=1024, columns=768, dtype=dtype)), resolve_target(GPU))
    (kernel,) = (f for f in lowered.thread.funcs if f.level is Level.THREAD)
    assert template(kernel) == "rows_kept"
    compiled = compile_cuda(emit_cuda(kernel).source, arch="sm_90a")
    assert compiled.kernels[kernel.name].spill_bytes == 0
    p = parameters(kernel)
    assert 768 // (p.threads_per_row * p.vec) * p.vec <= 32
    parts = kernel.params[0]
    assert sum(op.name == "thread.load" and op.operands[0] is parts for op in walk(kernel.body)) == 3


# -- what comes out ----------------------------------------------------------------------------------------
@pytest.mark.emulator
@pytest.mark.parametrize("params", [(32, 4, 4), (8, 16, 1), (64, 1, 2)], ids=str)
def test_both_results_come_out(params):
    agrees(norm(), params, "emulator")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 4e-6), ("f16", 2e-3)])
def test_rows_that_are_read_again_store_the_map_as_well(dtype, tolerance, target):
    agrees(norm(7, 50, dtype), (4, 8, 2), target, "rows", tolerance)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("rows", "columns", "params"),
    [(5, 37, (32, 4, 1)), (7, 129, (4, 32, 1)), (3, 8192, (32, 4, 4)), (2, 5001, (32, 4, 1))],
    ids=str,
)
def test_odd_widths_and_rows_too_long_for_registers(rows, columns, params):
    agrees(norm(rows, columns), params, "emulator", tolerance=3e-5)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("columns", "params"), [(40, (8, 16, 4)), (768, (32, 4, 4)), (2048, (32, 4, 2))], ids=str
)
def test_sums_in_16_bits_are_rounded_where_they_are_stored(columns, params):
    agrees(norm(5, columns, "f16"), params, "emulator", tolerance=2e-3)


@pytest.mark.emulator
def test_a_later_kernel_reads_what_the_rows_stored():
    agrees(norm(returned="%z", more=turned("%y", "%s")), (32, 4, 4), "emulator")


#: rows that are scaled by a number of each row, which is returned as well
SCALED = """module @net {
  tensor.func @main(%x: f32[5, 40], %scale: f32[5]) -> f32[5], f32[5, 40] {
    %k = tensor.map(%scale, par = (i: 5), reads = [[i]]) : f32[5] {
      ^(%a: f32) %b = scalar.mul(%a, %a) : f32 scalar.yield(%b) }
    %m = tensor.reduce(%x, %k, par = (i: 5), red = (j: 40), reads = [[i, j], [i]]) : f32[5] {
      ^(%a: f32, %b: f32, %acc: f32) %n = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%n) }
    %y = tensor.map(%x, %m, %k, par = (i: 5, j: 40), reads = [[i, j], [i], [i]]) : f32[5, 40] {
      ^(%a: f32, %b: f32, %c: f32)
      %d = scalar.sub(%a, %b) : f32 %e = scalar.mul(%d, %c) : f32 scalar.yield(%e) }
    tensor.return(%k, %y)
  }
}"""


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        pytest.param("rows_kept", "emulator", marks=pytest.mark.emulator),
        pytest.param("rows", "emulator", marks=pytest.mark.emulator),
        ("rows", "opencl"),
    ],
)
def test_a_map_with_one_element_for_each_row_is_stored_once(kind, target):
    agrees(SCALED, (32, 4, 4), target, kind)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_residual_sum_and_its_layer_norm_are_one_kernel(precision, target):
    net = Net()
    a, b, c = (net.input(6, 100) for _ in range(3))
    g, h = net.weight(100, positive=True), net.weight(100)
    x = net("add({}, {})", net("add({}, {})", a, b), c)
    y = net("nn.layer_norm({}, {}, {})", x, g, h)
    module = net.module(f"({x}, {y})")
    lowered = lower(module, resolve_target(GPU), precision=precision)
    (kernel,) = (f for f in lowered.thread.funcs if f.level is Level.THREAD)
    assert template(kernel) == "rows_kept"
    inputs = list(net.inputs.values())
    wanted = tw.interpret(module, *inputs, precision="fp64")
    tolerance = 1e-5 if precision == "fp32" else 4e-3
    with tw.compile(module, target=target, precision=precision) as exe:
        for got, value in zip(exe(*inputs), wanted, strict=True):
            np.testing.assert_allclose(got, value, rtol=tolerance, atol=tolerance)
