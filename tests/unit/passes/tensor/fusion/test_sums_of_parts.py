"""Kernels behind sums in parts: a map of all that was summed joins no kernel that adds the parts."""

import pytest

import tilewright as tw
from tilewright.compilation.lowering import pass_context
from tilewright.devices.targets import resolve_target
from tilewright.passes import Pipeline, run_pipeline

TEXT = """module @m {
  tensor.func @main(%x: f32[64, 3, SIZE, SIZE]) -> f32[3], f32[64, 3, SIZE, SIZE] {
    %p = tensor.reduce(%x, par = (n: 64, c: 3), red = (y: SIZE, x: SIZE), reads = [[n, c, y, x]])
        : f32[64, 3] {
      ^(%1: f32, %2: f32)
      %3 = scalar.add(%1, %2) : f32
      scalar.yield(%3)
    }
    %s = tensor.reduce(%p, par = (c: 3), red = (n: 64), reads = [[n, c]]) : f32[3] {
      ^(%4: f32, %5: f32)
      %6 = scalar.add(%4, %5) : f32
      scalar.yield(%6)
    }
    %y = tensor.map(%x, %s, par = (n: 64, c: 3, y: SIZE, x: SIZE), reads = [[n, c, y, x], [c]])
        : f32[64, 3, SIZE, SIZE] {
      ^(%7: f32, %8: f32)
      %9 = scalar.sub(%7, %8) : f32
      scalar.yield(%9)
    }
    tensor.return(%s, %y)
  }
}"""


@pytest.mark.parametrize(("size", "kernels"), [(224, 3), (4, 2)])
def test_a_map_of_the_batch_joins_no_sum_of_parts(size, kernels):
    """The sum of the parts has one row per channel: three blocks would compute the whole batch."""
    module = tw.parse(TEXT.replace("SIZE", str(size)))
    context = pass_context(resolve_target("cuda:sm_90a"))
    out = run_pipeline(module, Pipeline.parse("fuse-kernels"), context)
    groups = [[o.name for o in f.body.ops] for f in out.funcs if f.name != "main"]
    assert len(groups) == kernels
    assert (["tensor.map", "tensor.return"] in groups) == (kernels == 3)
