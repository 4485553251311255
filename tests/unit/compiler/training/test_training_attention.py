"""Attention in training steps: what is kept for the backward pass, with a kernel for it and without."""

import pytest

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.gpt import gpt
from tilewright.passes import PassContext, Pipeline, run_pipeline

TOKENS = 24


@pytest.fixture(scope="module")
def step():
    network = gpt(name="small", layers=2, width=32, heads=2, vocabulary=16, context=TOKENS, sequence=TOKENS)
    return tw.train_step(network, "cross_entropy", tw.optim.sgd(lr=0.1))


def lowered(step, target, passes):
    context = PassContext(target=target, hardware=load_hardware(target))
    return run_pipeline(step, Pipeline.parse(f"infer-shapes, {passes}"), context)


def counts(module, *names):
    return tuple(sum(op.name == f"graph.{n}" for op in module.main.body.ops) for n in names)


def weights(module):
    """The values that hold a number per pair of tokens and head."""
    shapes = (r.tensor.shape for op in module.main.body.ops for r in op.results)
    return [s for s in shapes if s[-3:] == (2, TOKENS, TOKENS)]


@pytest.mark.parametrize(
    "passes", ["mixed-precision{dtype=f16}, expand-attention", "expand-attention{factors=tf32}"]
)
def test_tensor_cores_keep_no_weights(step, passes):
    module = lowered(step, "cuda:sm_90a", passes)
    assert counts(module, "attention", "attention_backward", "softmax") == (2, 2, 0)
    assert weights(module) == []


@pytest.mark.parametrize(
    ("target", "passes"),
    [("opencl", "expand-attention"), ("cuda:sm_90a", "expand-attention{factors=split}")],
)
def test_others_read_the_weights_of_the_forward_pass(step, target, passes):
    """One product per layer makes scores, and one softmax weights: the backward pass repeats neither."""
    module = lowered(step, target, passes)
    assert counts(module, "attention", "attention_backward", "softmax") == (0, 0, 2)
    products = [op for op in module.main.body.ops if op.name == "graph.matmul"]
    pairs = [op for op in products if op.result.tensor.shape[-3:] == (2, TOKENS, TOKENS)]
    assert len(pairs) == 2 * 2  # q k^T, and what comes back to the weights
