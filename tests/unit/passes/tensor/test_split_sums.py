"""split-sums and the kernels behind it: sums of parts are kernels of their own."""

import tilewright as tw
from tilewright.compilation.lowering import pass_context
from tilewright.devices.targets import resolve_target
from tilewright.passes import Pipeline, run_pipeline

H100 = pass_context(resolve_target("cuda:sm_90a"))


def test_a_map_of_the_batch_joins_no_sum_of_parts():
    """The sum of the parts has one row per channel: three blocks would standardise the whole batch."""
    text = """module @m {
      graph.func @main(%x: f32[64, 3, 224, 224], %g: f32[3], %b: f32[3], loss = 0)
          -> f32[3], f32[64, 3, 224, 224] {
        %y, %m, %v = graph.batch_norm_training(%x, %g, %b) : f32[64, 3, 224, 224], f32[3], f32[3]
        graph.return(%v, %y)
      }
    }"""
    pipeline = "infer-shapes, graph-to-tensor, split-sums, forward-copies, cse, dce, fuse-kernels"
    kernels = run_pipeline(tw.parse(text), Pipeline.parse(pipeline), H100)
    groups = [[o.name for o in f.body.ops] for f in kernels.funcs if f.name != "main"]
    assert ["tensor.map", "tensor.return"] in groups
    assert len(groups) == 5
