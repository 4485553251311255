"""Plans from thread modules: what a constant is called, however often it is named."""

import numpy as np

import tilewright as tw

#: two rotary embeddings by one table: each reads both halves of it, which become constants of their own
ROTARY = """
module @rotary {
  graph.func @main(%q: f32[4, 6, 8], %k: f32[2, 6, 8]) -> f32[4, 6, 8], f32[2, 6, 8] {
    %sin = graph.constant(name = "sin") : f32[6, 8]
    %qa, %qb = graph.split(%q, indices = [4], axis = 2) : f32[4, 6, 4], f32[4, 6, 4]
    %ka, %kb = graph.split(%k, indices = [4], axis = 2) : f32[2, 6, 4], f32[2, 6, 4]
    %qr = graph.concatenate(%qb, %qa, axis = 2) : f32[4, 6, 8]
    %kr = graph.concatenate(%kb, %ka, axis = 2) : f32[2, 6, 8]
    %0 = graph.multiply(%qr, %sin) : f32[4, 6, 8]
    %1 = graph.multiply(%kr, %sin) : f32[2, 6, 8]
    graph.return(%0, %1)
  }
}
"""


def rotary():
    table = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    return tw.parse(ROTARY).with_constants(tw.ir.Constants({"sin": table}))


def test_a_constant_that_several_ops_name_is_one_buffer():
    exe = tw.compile(rotary(), target="null")
    wanted = [b.name for b in exe.plan.buffers if b.kind == "constant"]
    assert exe.artifact.texts["tensor"].count("tensor.constant") > len(wanted)
    assert sorted(wanted) == sorted(exe.artifact.constants)
    x = [np.zeros(t.shape, t.dtype) for t in exe.input_types]
    assert [y.shape for y in exe(*x)] == [(4, 6, 8), (2, 6, 8)]


def test_an_input_and_a_constant_of_one_name_are_told_apart():
    text = """
    module @net {
      graph.func @main(%w: f32[4]) -> f32[4] {
        %0 = graph.constant(name = "w") : f32[4]
        %1 = graph.add(%w, %0) : f32[4]
        graph.return(%1)
      }
    }
    """
    module = tw.parse(text).with_constants(tw.ir.Constants({"w": np.ones(4, np.float32)}))
    exe = tw.compile(module, target="null")
    assert exe.input_names == ("w",)
    (constant,) = [b for b in exe.plan.buffers if b.kind == "constant"]
    assert (constant.name, constant.title) == ("w.1", "w")
    np.testing.assert_array_equal(exe.artifact.constants["w.1"], np.ones(4, np.float32))
