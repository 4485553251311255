"""Values are computed in the part that is read: fewer elements, the same results, borders read as before."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import parse
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.running.checking import relative_error

PASS = "compute-what-is-read"

#: some tokens are asked for of a product, a sum of each row and a map that reads places
ROWS = """module @m {{
  tensor.func @main(%x: f32[2, 16, 8], %w: f32[8, 5]) -> f32[2, {rows}, 5] {{
    %0 = tensor.map(%x, par = (n: 2, t: 16, c: 8), reads = [[n, t, c]]) : f32[2, 16, 8] {{
      ^(%a: f32)
      %i = scalar.index(at = t) : i32
      %p = scalar.cast(%i, dtype = "f32") : f32
      %b = scalar.add(%a, %p) : f32
      scalar.yield(%b)
    }}
    %1 = tensor.contract(%0, %w, par = (n: 2, t: 16, k: 5), red = (c: 8), reads = [[n, t, c], [c, k]])
         : f32[2, 16, 5] {{
      ^(%a: f32, %b: f32, %s: f32)
      %c = scalar.fma(%a, %b, %s) : f32
      scalar.yield(%c)
    }}
    %2 = tensor.reduce(%1, par = (n: 2, t: 16), red = (k: 5), reads = [[n, t, k]]) : f32[2, 16] {{
      ^(%a: f32, %s: f32)
      %c = scalar.add(%a, %s) : f32
      scalar.yield(%c)
    }}
    %3 = tensor.map(%1, %2, par = (n: 2, t: {rows}, k: 5), reads = [[n, {at}, k], [n, {at}]]{fill})
         : f32[2, {rows}, 5] {{
      ^(%a: f32, %b: f32)
      %c = scalar.mul(%a, %b) : f32
      scalar.yield(%c)
    }}
    tensor.return(%3)
  }}
}}"""


def narrowed(module):
    return run_pipeline(module, Pipeline.parse(PASS), PassContext(verify_each=True, reproducer_folder=None))


def extents(module):
    """The tokens that each op computes."""
    return [dims(op, "par")["t"] for op in module.main.body.ops[:-1]]


def same_results(before, after):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in before.input_types]
    for x, y in zip(tw.interpret(before, *inputs), tw.interpret(after, *inputs), strict=True):
        assert relative_error(x, y) < 1e-6  # products of fewer rows may add in another order


@pytest.mark.parametrize(
    ("rows", "at", "fill", "tokens"),
    [
        (1, "t + 15", "", 1),  # the last one
        (3, "t * 2 + 4", "", 3),  # every second one
        (6, "t * 3", "", 6),  # every third one
        (4, "t * 2 - 1", ", fill = [0.5, 2.0]", 6),  # bounds are not kept: all from the first to the last
        (4, "t - 2", ", fill = [0.5, 2.0]", 2),  # two before the first one have values of their own
        (4, "t + 14", ", fill = [0.5, 2.0]", 2),  # and two behind the last one
        (8, "15 - t", "", 8),  # backwards
        (9, "t", "", 16),  # more than half of them: all are computed
    ],
)
def test_only_rows_that_are_read_are_computed(rows, at, fill, tokens):
    before = parse(ROWS.format(rows=rows, at=at, fill=fill))
    after = narrowed(before)
    assert extents(after) == [tokens, tokens, tokens, rows]
    same_results(before, after)


def test_readers_of_different_steps_get_the_step_that_both_are_multiples_of():
    """Indices 1, 5, 9 and 3, 7, 11: every second one from 1 to 11."""
    text = ROWS.format(rows=3, at="t * 4 + 1", fill="").replace("[n, t * 4 + 1]]", "[n, t * 4 + 3]]")
    before = parse(text)
    after = narrowed(before)
    assert extents(after) == [6, 6, 3, 3]
    same_results(before, after)


def test_a_block_that_strided_convolutions_read_computes_every_second_row_and_column():
    text = """module @m {
  graph.func @main(%x: f32[1, 4, 8, 8], %a: f32[4, 4, 3, 3], %b: f32[6, 4, 1, 1]) -> f32[1, 6, 4, 4] {
    %0 = graph.conv2d(%x, %a, padding = [1, 1, 1, 1]) : f32[1, 4, 8, 8]
    %1 = graph.add(%0, %x) : f32[1, 4, 8, 8]
    %2 = graph.relu(%1) : f32[1, 4, 8, 8]
    %3 = graph.conv2d(%2, %b, strides = [2, 2]) : f32[1, 6, 4, 4]
    graph.return(%3)
  }
}"""
    lowered = Pipeline.parse("infer-shapes, graph-to-tensor")
    before = run_pipeline(parse(text), lowered, PassContext(reproducer_folder=None))
    after = narrowed(before)
    shapes = {r.tensor.shape for op in after.main.body.ops for r in op.results}
    assert shapes == {(1, 4, 4, 4), (1, 6, 4, 4)}
    same_results(before, after)


def test_readers_of_different_parts_get_the_box_around_both():
    text = ROWS.format(rows=2, at="t + 3", fill="").replace("[n, t + 3]]", "[n, t + 6]]")
    before = parse(text)
    after = narrowed(before)
    assert extents(after) == [5, 5, 2, 2]
    same_results(before, after)


def test_results_of_the_network_keep_their_elements():
    text = ROWS.format(rows=1, at="t + 15", fill="")
    text = text.replace("-> f32[2, 1, 5] {\n    %0", "-> f32[2, 1, 5], f32[2, 16] {\n    %0")
    before = parse(text.replace("return(%3)", "return(%3, %2)"))
    after = narrowed(before)
    assert extents(after) == [16, 16, 16, 1]
    same_results(before, after)


def test_a_decoder_asked_for_its_last_token_computes_one_row_behind_its_last_attention():
    text = """module @m {
  graph.func @main(%x: f32[2, 16, 8], %w: f32[8, 32], %v: f32[32, 8]) -> f32[2, 8] {
    %0 = graph.matmul(%x, %w) : f32[2, 16, 32]
    %1 = graph.relu(%0) : f32[2, 16, 32]
    %2 = graph.matmul(%1, %v) : f32[2, 16, 8]
    %3 = graph.add(%2, %x) : f32[2, 16, 8]
    %4 = graph.strided_slice(%3, begin = [0, 15, 0], size = [2, 1, 8], strides = [1, 1, 1]) : f32[2, 1, 8]
    %5 = graph.reshape(%4, newshape = [2, 8]) : f32[2, 8]
    graph.return(%5)
  }
}"""
    before = run_pipeline(
        parse(text), Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext(reproducer_folder=None)
    )
    after = narrowed(before)
    computed = sum(r.tensor.size for op in after.main.body.ops for r in op.results)
    assert computed == 2 * (32 + 32 + 8 + 8 + 8 + 8)
    same_results(before, after)
