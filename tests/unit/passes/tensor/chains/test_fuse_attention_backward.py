"""Gradients of keys and values are one kernel, also where the one is read before the other is there."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower_from
from tilewright.devices.targets import resolve_target
from tilewright.frontends import zoo
from tilewright.ir import Block, Func, Level, Op, TensorType, Value, interpret
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.chains.fuse_attention_backward import in_order

H200 = resolve_target("cuda:sm_90a:h200")
LAYER = "batch=1,sequence=64,width=64,heads=1,hidden=64"


@pytest.mark.parametrize("projections", ["apart", "joined"])
def test_keys_and_values_share_a_kernel(projections):
    step = tw.vjp(zoo.build(f"encoder_layer{{{LAYER},projections={projections}}}"), storage="f16")
    stages = official_stages(Level.GRAPH, "cuda", "fp16").until("join-column-sums")
    stages = stages.replace("fuse-attention-backward", "fuse-attention-backward{when=always}")
    module = lower_from(step, H200, stages).tensor
    pairs = [f for f in module.funcs if "_pairs" in f.name]
    assert sorted(len(f.result_types) for f in pairs) == [1, 2]
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((1, 64, 64)).astype(np.float16) for _ in range(2))
    exact, _ = tw.interpret_step(step, [x, dy], precision="fp64")
    got = interpret(module, x, dy, *(step.constants[p.hint] for p in step.main.params[2:]))
    for a, b in zip(got, exact, strict=False):  # the state follows the results
        assert np.linalg.norm(np.float64(a) - b) <= 2e-2 * np.linalg.norm(b) + 1e-2


def test_calls_follow_what_they_read_and_keep_their_order_else():
    a, b, c, d = (Value(TensorType("f32", (1,)), n) for n in "abcd")
    early, late, other, last = (
        Op("tensor.join", operands, (), results)
        for operands, results in (((c,), (b,)), ((a,), (c,)), ((a,), (d,)), ((b, d), ()))
    )
    func = Func(Level.TENSOR, "main", Block((a,), (early, other, late, last)), ())
    assert in_order(func.params, func.body.ops) == (other, late, early, last)
