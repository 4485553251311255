"""inline-scalars: what is written into bodies, what stays a constant, which kernels are still shared."""

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Level, parse, walk
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.pipelines import official_stages

CTX = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)

SCALED = """module @net {
  tensor.func @main(%x: f32[4]) -> f32[4] {
    %c = tensor.constant(name = "c") : f32[1, 1]
    %0 = tensor.map(%x, %c, par = (i: 4), reads = [[i], [0, 0]]) : f32[4] {
      ^(%a: f32, %b: f32)
      %1 = scalar.mul(%a, %b) : f32
      scalar.yield(%1)
    }
    tensor.return(%0)
  }
}
"""
GRAPH = """module @net {
  graph.func @main(%x: f32[8, 16], %y: f32[8, 16], %w: f32[16, 16]) -> f32[8, 16], f32[8, 16] {
    %a = graph.constant(name = "a") : f32[]
    %b = graph.constant(name = "b") : f32[]
    %0 = graph.dense(%x, %w) : f32[8, 16]
    %1 = graph.multiply(%0, %a) : f32[8, 16]
    %2 = graph.dense(%y, %w) : f32[8, 16]
    %3 = graph.multiply(%2, %b) : f32[8, 16]
    graph.return(%1, %3)
  }
}
"""


def inlined(text: str, **values: np.ndarray):
    return run_pipeline(parse(text, constants=Constants(values)), Pipeline.parse("inline-scalars"), CTX)


def test_constants_without_data_and_integers_stay():
    module = parse(SCALED)
    assert run_pipeline(module, Pipeline.parse("inline-scalars"), CTX) is module
    whole = SCALED.replace("f32", "i32")
    assert "tensor.constant" in tw.show(inlined(whole, c=np.full((1, 1), 3, np.int32)))


def test_numbers_that_are_not_finite_are_written_too():
    for number in (np.inf, -np.inf, np.nan, -0.0, 1e-30):
        module = inlined(SCALED, c=np.full((1, 1), number, np.float32))
        assert "tensor.constant" not in tw.show(module)
        assert tw.show(parse(tw.show(module))) == tw.show(module)
        x = np.array([1, 2, 0, -1], np.float32)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(tw.interpret(module, x)[0], x * np.float32(number))


def kernels(**values: np.ndarray):
    stages = official_stages(Level.GRAPH, "cuda").down_to(Level.TENSOR)
    module = parse(GRAPH, constants=Constants(values))
    return run_pipeline(module, stages.whole, CTX)


def test_kernels_with_equal_numbers_are_shared_and_take_no_constant():
    half, one = np.float32(0.5), np.float32(1.0)
    shared = kernels(a=np.asarray(half), b=np.asarray(half))
    apart = kernels(a=np.asarray(half), b=np.asarray(one))
    assert [len(m.funcs) for m in (shared, apart)] == [2, 3]
    for m in (shared, apart):
        assert not any(op.name == "tensor.constant" for op in walk(m.main.body))
        assert not any(p.tensor.size == 1 for f in m.funcs for p in f.params)
