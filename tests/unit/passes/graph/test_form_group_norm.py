"""Group norms as ONNX before opset 18 writes them: factors of one and terms of zero cost nothing."""

import numpy as np
import pytest

from tilewright.ir import Constants, Module, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline

TEXT = """
module @net {
  graph.func @main(%x: f32[2, 6, 2, 3]) -> f32[2, 6, 2, 3] {
    %0 = graph.constant(name = "scale") : f32[3]
    %1 = graph.constant(name = "bias") : f32[3]
    %2 = graph.reshape(%x, newshape = [2, 3, 12]) : f32[2, 3, 12]
    %3 = graph.instance_norm(%2, %0, %1, axis = 1, center = true, scale = true) : f32[2, 3, 12]
    %4 = graph.reshape(%3, newshape = [2, 6, 2, 3]) : f32[2, 6, 2, 3]
    graph.return(%4)
  }
}
"""


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (0.5, 0.0), (1.0, 2.0)])
def test_numbers_without_effect(scale: float, bias: float) -> None:
    arrays = {"scale": np.full(3, scale, np.float32), "bias": np.full(3, bias, np.float32)}
    module: Module = parse(TEXT).with_constants(Constants(arrays))
    done = run_pipeline(module, Pipeline.parse("form-group-norm"), PassContext())
    (norm,) = [op for op in done.main.body.ops if op.name == "graph.group_norm"]
    assert norm["num_groups"] == 3
    assert (norm["scale"], norm["center"]) == (scale != 1.0, bias != 0.0)
