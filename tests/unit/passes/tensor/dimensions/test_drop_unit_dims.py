"""Unit dimensions of intermediate values go: fewer kernels, the same results, borders read as before."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import parse
from tilewright.passes import PassContext, Pipeline, run_pipeline

HEAD = "infer-shapes, graph-to-tensor, forward-copies, cse, dce"


def passed(module, text):
    return run_pipeline(module, Pipeline.parse(text), PassContext(verify_each=True, reproducer_folder=None))


def product():
    """A batched product, unsqueezed and squeezed, with a bias."""
    return parse("""module @m {
  graph.func @main(%x: f32[1, 24, 32], %w: f32[1, 32, 40], %b: f32[40]) -> f32[24, 40] {
    %0 = graph.batch_matmul(%x, %w) : f32[1, 24, 40]
    %1 = graph.reshape(%0, newshape = [1, 1, 24, 40]) : f32[1, 1, 24, 40]
    %2 = graph.reshape(%1, newshape = [24, 40]) : f32[24, 40]
    %3 = graph.add(%2, %b) : f32[24, 40]
    %4 = graph.relu(%3) : f32[24, 40]
    graph.return(%4)
  }
}
""")


def values(module, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape).astype(np.float32) for t in module.input_types]


def test_reshapes_of_a_batch_of_one_do_not_part_a_product_from_its_epilogue():
    module = product()
    kernels = len(passed(module, f"{HEAD}, drop-unit-dims, cse, dce, fuse-kernels").funcs) - 1
    apart = len(passed(module, f"{HEAD}, fuse-kernels").funcs) - 1
    assert kernels == 1
    assert apart > 1
    xs = values(module)
    with tw.compile(module, target="opencl", progress=False) as exe:
        np.testing.assert_allclose(exe(*xs)[0], tw.interpret(module, *xs)[0], rtol=1e-5, atol=1e-5)


def test_parameters_and_results_keep_their_shapes():
    module = product()
    out = passed(module, f"{HEAD}, drop-unit-dims")
    assert out.main.result_types == module.main.result_types
    assert [p.type for p in out.main.params] == [p.type for p in module.main.params]
    inner = [r.tensor.shape for op in out.main.body.ops for r in op.results][:-1]
    assert all(1 not in shape for shape in inner)


@pytest.mark.parametrize("extent", [1, 2])
def test_a_dimension_of_one_that_is_read_beyond_its_border_stays(extent):
    """A padded window over an image of one row reads above and below it."""
    module = parse(f"""module @m {{
  graph.func @main(%x: f32[1, 4, {extent}, 9], %w: f32[6, 4, 3, 3]) -> f32[1, 6, {extent}, 9] {{
    %0 = graph.relu(%x) : f32[1, 4, {extent}, 9]
    %1 = graph.conv2d(%0, %w, padding = [1, 1, 1, 1]) : f32[1, 6, {extent}, 9]
    %2 = graph.relu(%1) : f32[1, 6, {extent}, 9]
    graph.return(%2)
  }}
}}
""")
    out = passed(module, f"{HEAD}, drop-unit-dims, cse, dce")
    xs = values(module)
    wanted = tw.interpret(module, *xs)[0]
    np.testing.assert_allclose(tw.interpret(out, *xs)[0], wanted, rtol=1e-5, atol=1e-5)
    with tw.compile(module, target="opencl", progress=False) as exe:
        np.testing.assert_allclose(exe(*xs)[0], wanted, rtol=1e-5, atol=1e-5)


def test_softmax_over_heads():
    module = parse("""module @m {
  graph.func @main(%x: f32[3, 8, 8]) -> f32[3, 8, 8] {
    %0 = graph.reshape(%x, newshape = [1, 3, 8, 8]) : f32[1, 3, 8, 8]
    %1 = graph.relu(%0) : f32[1, 3, 8, 8]
    %2 = graph.softmax(%1) : f32[1, 3, 8, 8]
    %3 = graph.reshape(%2, newshape = [3, 8, 8]) : f32[3, 8, 8]
    graph.return(%3)
  }
}
""")
    xs = values(module)
    out = passed(module, f"{HEAD}, drop-unit-dims, cse, dce")
    np.testing.assert_allclose(tw.interpret(out, *xs)[0], tw.interpret(module, *xs)[0], rtol=1e-6, atol=1e-6)
