"""Small maps share kernels where none waits for more than before."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline

GATE = """%{name} = tensor.map(%p, par = (i: 4, j: 8), reads = [[i, j + {start}]]) : f32[4, 8] {{
      ^(%a: f32) %b = scalar.{function}(%a) : f32 scalar.yield(%b) }}"""
JOINT = """%{name} = tensor.map(%{x}, %{y}, par = (i: 4, j: 8),
      reads = [[i, j], [i, j{shift}]]) : f32[4, 8] {{
      ^(%a: f32, %b: f32) %c = scalar.{function}(%a, %b) : f32 scalar.yield(%c) }}"""


def cell(*, training=True, shift="", between=False):
    """Gates of a cell from parts of one product, all stored; beside them state that halves itself.

    shift: where the last map reads what the gates give. between: a sum stands between two of the maps.
    """
    ops = [GATE.format(name=n, start=8 * k, function=f) for k, (n, f) in enumerate(
        [("i", "sigmoid"), ("f", "tanh"), ("o", "exp")])]  # fmt: skip
    ops += [
        JOINT.format(name="m", x="i", y="f", function="mul", shift=""),
        """%s = tensor.reduce(%m, par = (i: 4), red = (j: 8), reads = [[i, j]]) : f32[4] {
      ^(%a: f32, %acc: f32) %b = scalar.add(%a, %acc) : f32 scalar.yield(%b) }"""
        if between
        else "",
        """%n = tensor.map(%s, par = (i: 4, j: 8), reads = [[i]]) : f32[4, 8] {
      ^(%a: f32) %b = scalar.exp(%a) : f32 scalar.yield(%b) }"""
        if between
        else JOINT.format(name="n", x="m", y="m", function="add", shift=""),
        JOINT.format(name="h", x="n", y="o", function="mul", shift=shift),
        """%v = tensor.map(%w, par = (i: 3), reads = [[i]]) : f32[3] {
      ^(%a: f32) %k = scalar.const(value = 0.5, dtype = "f32") : f32 %b = scalar.mul(%a, %k) : f32
      scalar.yield(%b) }""",
    ]
    text = """module @m {
    tensor.func @main(%p: f32[4, 24], %w: f32[3]{updates})
      -> f32[4, 8], f32[4, 8], f32[4, 8], f32[4, 8], f32[3] {
      OPS
      tensor.return(%i, %f, %m, %h, %v) } }"""
    text = text.replace("{updates}", ", updates = [[1, 4]]" if training else "")
    return text.replace("OPS", "\n      ".join(filter(None, ops)))


def fused(text):
    return run_pipeline(parse(text), Pipeline.parse("fuse-kernels"), PassContext(target="cuda:sm_90a"))


def calls(module):
    return sum(op.name == "tensor.call" for op in module.main.body.ops)


def test_gates_of_a_cell_are_one_kernel():
    assert calls(fused(cell())) == calls(fused(cell(training=False))) == 2


def test_what_another_thread_makes_is_read_from_memory():
    """The last map reads the third gate's neighbour: it cannot be of the thread that makes it."""
    text = cell(shift=" - 0").replace("j - 0", "7 - j")
    assert calls(fused(text)) == 3


def test_a_map_behind_a_sum_waits_for_no_more_than_before():
    """The gates that a sum reads are no part of the kernel behind the sum: they would wait for themselves."""
    module = fused(cell(between=True))
    assert calls(module) >= 3


@pytest.mark.parametrize("text", [cell(), cell(between=True), cell(shift=" - 0").replace("j - 0", "7 - j")])
def test_results_are_the_same(text):
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal((4, 24)).astype(np.float32), np.ones(3, np.float32)]
    wanted = tw.interpret(parse(text), *inputs, precision="fp64")
    for got, want in zip(tw.interpret(fused(text), *inputs, precision="fp64"), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


LOOK_UP = """%{name} = tensor.gather(%{table}, %{rows}, par = (i: {count}, j: 8), reads = [[i]],
      at = [i0, j]) : f32[{count}, 8]"""


def look_ups(*, count=5, behind=False, updates=", updates = [[5, 3]]"):
    """Rows of three tables, the last by numbers of their own or, `behind` the second, by what that gave."""
    third = "number" if behind else "r"
    ops = [
        LOOK_UP.format(name="a", table="t", rows="r", count=count),
        LOOK_UP.format(name="b", table="u", rows="q", count=count),
        f"""%number = tensor.map(%b, par = (i: {count}), reads = [[i, 0]]) : i32[{count}] {{
      ^(%x: f32) %n = scalar.cast(%x, dtype = "i32") : i32 scalar.yield(%n) }}""",
        LOOK_UP.format(name="c", table="v", rows=third, count=count),
        """%w2 = tensor.map(%w, par = (i: 3), reads = [[i]]) : f32[3] {
      ^(%x: f32) %y = scalar.add(%x, %x) : f32 scalar.yield(%y) }""",
    ]
    rows = f"i32[{count}]"
    return f"""module @m {{
    tensor.func @main(%t: f32[7, 8], %u: f32[9, 8], %v: f32[4, 8], %r: {rows}, %q: {rows},
      %w: f32[3]{updates}) -> f32[{count}, 8], f32[{count}, 8], f32[{count}, 8], f32[3] {{
      {"      ".join(ops)}
      tensor.return(%a, %b, %c, %w2) }} }}"""


def test_look_ups_in_several_tables_are_one_kernel():
    def gathers(text):
        kernels = [f for f in fused(text).funcs if f.name != "main"]
        counts = (sum(op.name == "tensor.gather" for op in f.body.ops) for f in kernels)
        return sorted(n for n in counts if n)

    assert gathers(look_ups()) == [3]
    assert gathers(look_ups(behind=True)) == [1, 2]  # one waits for what another gave
    assert gathers(look_ups(count=1 << 16)) == [1, 1, 1]  # each takes longer than a launch
    assert gathers(look_ups(updates="")) == [3]


@pytest.mark.parametrize("behind", [False, True])
def test_joined_look_ups_give_the_same(behind):
    rng = np.random.default_rng(3)
    tables = [rng.uniform(0, 4, (n, 8)).astype(np.float32) for n in (7, 9, 4)]
    rows = [rng.integers(0, n, 5).astype(np.int32) for n in (4, 9)]
    inputs = [*tables, *rows, np.ones(3, np.float32)]
    text = look_ups(behind=behind)
    wanted = tw.interpret(parse(text), *inputs)
    for got, want in zip(tw.interpret(fused(text), *inputs), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_gather_of_what_another_one_makes_has_a_kernel_of_its_own():
    """Elements are looked up in memory."""
    text = """module @m {
      graph.func @main(%x: f32[10, 6, 3], %i: i32[2, 5]) -> f32[5, 3] {
        %0 = graph.gather_nd(%x, %i) : f32[5, 3]
        %1 = graph.constant(name = "lengths") : i32[5]
        %2 = graph.reverse_sequence(%0, %1, seq_axis = 1, batch_axis = 0) : f32[5, 3]
        graph.return(%2)
      }
    }"""
    module = parse(text, constants=Constants({"lengths": np.array([1, 2, 3, 2, 3], np.int32)}))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((10, 6, 3)).astype(np.float32)
    i = np.stack([rng.integers(0, 10, 5), rng.integers(0, 6, 5)]).astype(np.int32)
    with tw.compile(module, "opencl") as exe:
        np.testing.assert_array_equal(exe(x, i)[0], tw.interpret(module, x, i)[0])
