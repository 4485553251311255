"""What neighbouring elements of a map compute once, and what of a body takes no instruction."""

import pytest

from tilewright.costmodel import choose_map, load_hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.ir import parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.shared_work import free_ops, shared_work
from tilewright.passes.kernels.kernel_problem import row_problem, stream_problem
from tilewright.passes.kernels.rows.choice import choose_row_kernel

BODY = """module @m { tensor.func @main(%x: u32[8, 16], %y: f32[8]) -> u32[8, 16], f32[8, 16] {
  %0 = tensor.map(%x, par = (i: 8, j: 16), reads = [[i, j]]) : u32[8, 16] {
    ^(%a: u32)
    %k = scalar.const(value = 32, dtype = "u64") : u64
    %w = scalar.cast(%a, dtype = "u64") : u64
    %p = scalar.mul(%w, %w) : u64
    %h = scalar.shr(%p, %k) : u64
    %u = scalar.cast(%h, dtype = "u32") : u32
    %q = scalar.bit_xor(%u, %a) : u32
    %r = scalar.bit_xor(%q, %u) : u32
    %s = scalar.bit_xor(%r, %a) : u32
    scalar.yield(%s) }
  %1 = tensor.map(%y, par = (i: 8, j: 16), reads = [[i]]) : f32[8, 16] {
    ^(%a: f32)
    %m = scalar.sqrt(%a) : f32
    %j = scalar.index(at = j, dtype = "f32") : f32
    %n = scalar.mul(%m, %j) : f32
    scalar.yield(%n) }
  tensor.return(%0, %1) } }"""


def random_map(shape, bits):
    dims = ", ".join(map(str, shape))
    text = f"""module @m {{ graph.func @main(%s: u32[2], %t: u32[]) -> u{bits}[{dims}] {{
      %0 = graph.random_bits(%s, %t, shape = [{dims}], bits = {bits}, stream = 0, whole = [], origin = [])
        : u{bits}[{dims}] graph.return(%0) }} }}"""
    passes = Pipeline.parse("graph-to-tensor, fuse-kernels")
    module = run_pipeline(parse(text), passes, PassContext(target="cuda:sm_90a"))
    return next(f for f in module.funcs if f.name != "main")


@pytest.mark.parametrize(
    ("shape", "bits", "neighbours"), [((64, 32), 32, 4), ((64, 32), 16, 8), ((8, 6), 32, 2), ((64, 5), 32, 1)]
)
def test_a_call_is_shared_by_the_elements_of_its_words(shape, bits, neighbours):
    """As far as rows keep them together: of rows of 6 elements pairs, of rows of 5 none."""
    found = shared_work(random_map(shape, bits).body.ops[0])
    of_calls = [n for n, count in found.items() if count > 30 and n < 16]
    assert of_calls == ([neighbours] if neighbours > 1 else [])


def test_random_bits_are_bounded_by_calls_not_elements():
    """Masks of 6.3 million elements take 7.6 us on an H200: short launches are estimated too low."""
    problem, hardware = stream_problem(random_map((6291456,), 16)), load_hardware("h200")
    assert 5 * problem.flops < problem.flops_beside(1)
    assert problem.flops < problem.flops_beside(4) < problem.flops_beside(2)
    bound_s, estimate_s = global_bound(problem, hardware).seconds, choose_map(problem, hardware).estimate_s
    assert bound_s < estimate_s
    assert bound_s < 7.6e-6
    assert 7.6e-6 / 1.5 < estimate_s + 1e-6 < 1.5 * 7.6e-6  # with the boundary in front of the launch


def test_the_choice_among_the_words_of_a_call_follows_from_the_place_in_it():
    """A thread that has all of a call's elements takes its words by name; pairs choose among them."""
    found = shared_work(random_map((64, 32), 16).body.ops[0])
    assert set(found) == {8, 16}
    assert shared_work(random_map((8, 6), 16).body.ops[0])[2] > 40  # rows of 6 elements hold no whole call


@pytest.mark.parametrize(("index", "gathers"), [("0", 0), ("j % 2", 1)])
def test_what_all_points_read_at_one_place_is_no_gather(index, gathers):
    text = f"""module @m {{ tensor.func @k(%x: f32[8, 16], %m: f32[2]) -> f32[8, 16] {{
      %0 = tensor.map(%x, %m, par = (i: 8, j: 16), reads = [[i, j], [{index}]]) : f32[8, 16] {{
        ^(%a: f32, %b: f32)
        %s = scalar.sub(%a, %b) : f32
        scalar.yield(%s) }}
      tensor.return(%0) }} }}"""
    assert stream_problem(parse(text).funcs[0]).gathers == gathers


def test_factors_of_rows_are_found_once():
    assert dict(shared_work(parse(BODY).main.body.ops[1])) == {16: 1}


def test_what_takes_no_instruction():
    op = parse(BODY).main.body.ops[0]
    free = [o.name.removeprefix("scalar.") for o in op.body.ops if o in free_ops(op)]
    assert free == ["const", "cast", "shr", "cast", "bit_xor", "yield"]


@pytest.mark.parametrize(("index", "gathers"), [("j // 4", 0), ("j // 2", 1), ("j % 4", 1)])
def test_points_of_a_vector_read_their_groups_mean_together(index, gathers):
    text = f"""module @m {{ tensor.func @k(%x: f32[8, 16], %m: f32[8, 16]) -> f32[8, 16] {{
      %0 = tensor.map(%x, %m, par = (i: 8, j: 16), reads = [[i, j], [i, {index}]]) : f32[8, 16] {{
        ^(%a: f32, %b: f32)
        %s = scalar.sub(%a, %b) : f32
        scalar.yield(%s) }}
      tensor.return(%0) }} }}"""
    assert stream_problem(parse(text).funcs[0]).gathers == gathers


def dropped_softmax(dropped):
    """The kernel of a softmax of 65,536 rows of 512 numbers in 16 bits, dropped or not."""
    shape = "[65536, 512]"
    text = f"""module @m {{ graph.func @main(%x: f16{shape}, %s: u32[2], %t: u32[], %n: u16[], %z: f16[])
      -> f16{shape} {{
      %w = graph.softmax(%x, axis = -1) : f16{shape}
      %r = graph.random_bits(%s, %t, shape = {shape}, bits = 16, stream = 0, whole = [], origin = [])
        : u16{shape}
      %k = graph.less(%r, %n) : bool{shape}
      %d = graph.where(%k, %w, %z) : f16{shape}
      graph.return({"%d" if dropped else "%w"}) }} }}"""
    passes = Pipeline.parse("dce, graph-to-tensor, fuse-kernels{partitioner=maximal}")
    module = run_pipeline(parse(text), passes, PassContext(target="cuda:sm_90a:h200"))
    (kernel,) = (f for f in module.funcs if f.name != "main")
    return kernel


def test_rows_draw_random_bits_once_for_several_elements():
    """A softmax with its dropout, which stored two arrays more, took 128 us on an H200."""
    kernel, hardware = dropped_softmax(dropped=True), load_hardware("h200")
    problem = row_problem(kernel)
    assert 3 * problem.flops < problem.flops_beside(1)
    template, choice = choose_row_kernel(kernel, [op for op in kernel.body.ops if op.get("red")], hardware)
    assert (template, choice.parameters.vec) == ("rows_kept", 8)
    assert 50e-6 < choice.estimate_s < 128e-6
    assert row_problem(dropped_softmax(dropped=False)).shared == ()
