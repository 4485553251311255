"""Sums of products of a backward pass: one product for each weight of a recurrence, none at inference."""

import numpy as np

import tilewright as tw
from tilewright.passes import PassContext, Pipeline, run_pipeline

ALWAYS = Pipeline.parse("infer-shapes, cse, sum-of-products{always=true}")


def step():
    net = tw.frontends.zoo.lstm_classifier(layers=1, width=8, steps=6, classes=3, batch=4)
    return tw.train_step(net, "cross_entropy", tw.optim.sgd(lr=0.1), loss_scale=None)


def products_of_shape(module, shape):
    ops = module.main.body.ops
    return [op for op in ops if op.name == "graph.matmul" and op.result.tensor.shape == shape]


def test_a_weight_that_every_step_reads_has_one_product():
    before = step()
    after = run_pipeline(before, ALWAYS, PassContext())
    tw.verify(after)
    weight = (32, 8)
    assert len(products_of_shape(before, weight)) == 6  # five of hidden states, one of the inputs
    assert len(products_of_shape(after, weight)) == 2
    rng = np.random.default_rng(0)
    drawn = {"data": rng.standard_normal((4, 6, 8)), "labels": np.array([0, 1, 2, 1], np.int32)}
    arrays = [drawn.get(name, before.constants.get(name)) for name in before.input_names]
    results = [tw.interpret(m, *arrays, precision="fp64") for m in (before, after)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_networks_without_a_backward_pass_stay():
    text = """module @m {
      graph.func @main(%a: f32[3, 4], %b: f32[3, 5]) -> f32[4, 5] {
        %0 = graph.matmul(%a, %b, transpose_a = true, transpose_b = false) : f32[4, 5]
        %1 = graph.matmul(%a, %b, transpose_a = true, transpose_b = false) : f32[4, 5]
        %2 = graph.add(%0, %1) : f32[4, 5]
        graph.return(%2)
      }
    }"""
    module = tw.parse(text)
    pipeline = Pipeline.parse("infer-shapes, sum-of-products{always=true}")
    assert run_pipeline(module, pipeline, PassContext()).main.body.ops == module.main.body.ops


def test_the_estimate_decides():
    """Products of a few rows are dearer one by one than together; of many rows they are not worth a copy."""
    net = tw.frontends.zoo.lstm_classifier(layers=1, width=64, steps=8, classes=3, batch=4)
    few = tw.train_step(net, "cross_entropy", tw.optim.sgd(lr=0.1), loss_scale=None)
    pipeline = Pipeline.parse("infer-shapes, cse, sum-of-products")
    chosen = run_pipeline(few, pipeline, PassContext(target="cuda:sm_90a"))
    assert len(products_of_shape(chosen, (256, 64))) < len(products_of_shape(few, (256, 64)))
    rows = f"f32[{1 << 20}, 8]"
    text = f"""module @m {{
      graph.func @main(%a: {rows}, %b: {rows}, %c: {rows}, loss = 0) -> f32[], f32[8, 8] {{
        %s = graph.sum(%a, axis = [0, 1], keepdims = false) : f32[]
        %0 = graph.matmul(%a, %b, transpose_a = true, transpose_b = false) : f32[8, 8]
        %1 = graph.matmul(%a, %c, transpose_a = true, transpose_b = false) : f32[8, 8]
        %2 = graph.add(%0, %1) : f32[8, 8]
        graph.return(%s, %2)
      }}
    }}"""
    many = tw.parse(text)
    kept = run_pipeline(many, pipeline, PassContext(target="cuda:sm_90a"))
    assert len(products_of_shape(kept, (8, 8))) == 2
