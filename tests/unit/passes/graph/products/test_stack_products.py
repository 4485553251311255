"""Products over stacked factors wait for the last of them; those that stack the same are judged together."""

from collections import Counter

import pytest

import tilewright as tw
from tilewright.ir import parse
from tilewright.passes import PassContext, Pipeline, run_pipeline

PIPELINE = Pipeline.parse("infer-shapes, cse, sum-of-products, stack-products")


def gradients_of_inputs(together):
    """Products by the upper layer's input weights in the backward pass, after stacking."""
    net = tw.frontends.zoo.lstm_classifier(width=64, steps=16, classes=3, batch=8, together=together)
    step = tw.train_step(net, "cross_entropy", tw.optim.sgd(lr=0.1), loss_scale=None)
    step = run_pipeline(step, PIPELINE, PassContext(target="cuda:sm_90a"))
    tw.verify(step)
    rows = {8 * together, 8 * 16}
    products = [op for op in step.main.body.ops if op.name == "graph.matmul" and not op["transpose_a"]]
    return [op.result.tensor.shape for op in products if op.result.tensor.shape[0] in rows]


def test_layers_of_a_recurrence_run_beside_each_other_in_both_directions():
    """Stacked, the lower layer's gradients would begin behind all of the upper layer's."""
    assert gradients_of_inputs(4) == [(32, 64)] * 4
    assert gradients_of_inputs(16) == [(128, 64)]


X, W, B = "f16[4096, 768]", "f16[768, 768]", "f16[768]"
STACKED = "f16[4096, 2304]"


def layer(gradients: bool):
    """Three products of one input with their biases, and with `gradients` what comes back through them."""
    parts = ("q", "k", "v")
    lines, sums = [], []
    for p in parts:
        lines.append(f"%{p}0 = graph.dense(%x, %w{p}) : {X}")
        lines.append(f"%{p} = graph.bias_add(%{p}0, %b{p}, axis = -1) : {X}")
    lines.append(f"%y0 = graph.multiply(%q, %k) : {X} %y = graph.multiply(%y0, %v) : {X}")
    if gradients:
        for p in parts:
            lines.append(f"%d{p} = graph.matmul(%g{p}, %x, transpose_a = true) : {W}")
            lines.append(f"%x{p} = graph.matmul(%g{p}, %w{p}) : {X}")
        lines.append(f"%s0 = graph.add(%xq, %xk) : {X} %s = graph.add(%s0, %xv) : {X}")
        sums = ["%dq", "%dk", "%dv", "%s"]
    given = ", ".join([f"%x: {X}", *(f"%w{p}: {W}, %b{p}: {B}, %g{p}: {X}" for p in parts)])
    types = ", ".join([X, *([W, W, W, X] if gradients else [])])
    return parse(
        f"module @m {{ graph.func @main({given}, loss = 0) -> {types} {{ "
        + " ".join(lines)
        + f" graph.return({', '.join(['%y', *sums])}) }} }}"
    )


def products(module):
    made = run_pipeline(module, Pipeline.parse("stack-products"), PassContext(target="cuda:sm_90a:h200"))
    names = [op.name for op in made.main.body.ops]
    return [names.count(f"graph.{name}") for name in ("dense", "matmul", "concatenate")]


def test_all_that_stacks_the_same_values_is_worth_copies_that_one_alone_is_not():
    assert products(layer(gradients=False)) == [3, 0, 0]
    dense, matmuls, joins = products(layer(gradients=True))
    assert (dense, matmuls) == (1, 2)
    assert joins <= 5


ALWAYS = (
    "infer-shapes, cse, dce, sink-reshapes, sum-of-products{always=true}, stack-products{always=true}, "
    "cse, dce"
)


def shapes_of_products(kind, projections):
    """The products of a layer with its backward pass: how often each op has factors of these shapes."""
    sizes = "batch=2,sequence=16,width=32,heads=2,hidden=48"
    net = tw.frontends.zoo.build(f"{kind}{{{sizes},projections={projections}}}")
    step = run_pipeline(tw.vjp(net), Pipeline.parse(ALWAYS), PassContext(target="cuda:sm_90a"))
    tw.verify(step)
    rows = {(2, 16): (32,)}  # samples and tokens may be one dimension
    shapes = []
    for op in step.main.body.ops:
        if op.name in ("graph.dense", "graph.matmul"):
            factors = [v.tensor.shape for v in op.operands]
            shapes.append((op.name, *(rows.get(s[:2], s[:2]) + s[2:] for s in factors)))
    return Counter(shapes)


@pytest.mark.parametrize("kind", ["encoder_layer", "decoder_layer"])
def test_projections_of_a_layer_are_one_product_forward_and_backward(kind):
    """What is found of three projections is what is there where the network joins them by itself."""
    found, joined = (shapes_of_products(kind, p) for p in ("apart", "joined"))
    assert found == joined
    assert found["graph.dense", (32, 32), (96, 32)] == 1  # queries, keys and values
    assert found["graph.matmul", (32, 96), (96, 32)] == 1  # what comes back to their input
    assert found["graph.matmul", (32, 96), (32, 32)] == 1  # the gradients by their weights
