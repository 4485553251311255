"""Heads in one dimension with the batch: what a copy moves apart lies as the next product reads it."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, Level, parse
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.index_sets import is_copy, is_view
from tilewright.passes.pipelines import official_stages

#: attention as Relay has it: products of one batch dimension, 4 samples of 3 heads
ATTENTION = """module @m {
  graph.func @main(%q: f32[12, 32, 16], %k: f32[12, 32, 16], %v: f32[12, 32, 16]) -> f32[4, 32, 48] {
    %w = graph.constant(name = "w") : f32[48, 48]
    %0 = graph.batch_matmul(%q, %k, transpose_a = false, transpose_b = true) : f32[12, 32, 32]
    %1 = graph.softmax(%0, axis = -1) : f32[12, 32, 32]
    %2 = graph.batch_matmul(%1, %v, transpose_a = false, transpose_b = false) : f32[12, 32, 16]
    %3 = graph.reshape(%2, newshape = [4, 3, 32, 16]) : f32[4, 3, 32, 16]
    %4 = graph.transpose(%3, axes = [0, 2, 1, 3]) : f32[4, 32, 3, 16]
    %5 = graph.reshape(%4, newshape = [4, 32, 48]) : f32[4, 32, 48]
    %6 = graph.dense(%5, %w) : f32[4, 32, 48]
    graph.return(%6)
  }
}"""


def network():
    w = np.random.default_rng(1).standard_normal((48, 48)).astype(np.float32) / 7
    return parse(ATTENTION).with_constants(Constants({"w": w}))


def test_the_next_product_reads_rows_of_the_channel():
    target = resolve_target("cuda:sm_90a:h200")
    module = network()
    for _, pipeline in official_stages(Level.GRAPH, target.language, "fp16").until("split-sums"):
        module = run_pipeline(module, pipeline, PassContext(target=str(target), hardware=target.hardware))
    made = {r: op for op in module.main.body.ops for r in op.results}
    *_, last = (op for op in module.main.body.ops if op.name == "tensor.contract")
    joined = made[last.operands[0]]
    assert is_copy(joined)
    assert is_view(joined)


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_results_are_right(precision):
    module = network()
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(t.shape).astype(np.float32) for t in module.input_types]
    (wanted,) = tw.interpret(module, *values, precision="fp64")
    (got,) = tw.compile(module, "emulator", precision=precision)(*values)
    limit = {"fp16": 2e-3, "bf16": 2e-2, "fp32": 2e-6}[precision]
    assert np.linalg.norm(got - wanted) <= limit * np.linalg.norm(wanted)
