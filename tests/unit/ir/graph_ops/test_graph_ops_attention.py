"""Attention and what comes back through it: values against softmax, logarithms of sums, and bad operands."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Block, Func, Level, Module, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.passes import Pipeline, run_pipeline


def module(*shapes, op="attention", kinds=(), **attrs):
    """A module of one op on inputs of these shapes, of f32 unless `kinds` (number of the operand: dtype)."""
    w = GraphWriter()
    kinds = dict(kinds)
    params = [Value(TensorType(kinds.get(i, "f32"), s), f"x{i}") for i, s in enumerate(shapes)]
    results = w.ops_of(op, map(w.tensor, params), **attrs)
    w.builder.emit("graph.return", [r.value for r in results], types=())
    types = tuple(r.value.type for r in results)
    return Module("m", (Func(Level.GRAPH, "main", Block(tuple(params), w.ops), types),), (), w.constants)


def test_everything_at_once():
    """A bias of scores, keys that are not seen and weights that are not kept, with keys that heads share."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s) for s in ((2, 3, 4, 8), (2, 1, 5, 8), (2, 1, 5, 6)))
    bias, seen, kept = rng.standard_normal(5), rng.random((4, 5)) < 0.7, rng.random((2, 3, 4, 5)) < 0.5
    seen[:, 0] = True
    net = module(
        *(a.shape for a in (q, k, v, bias, seen, kept)), kinds={4: "bool", 5: "bool"},
        scale=0.3, kept_scale=2.0, others=("bias", "seen", "kept"),
    )  # fmt: skip
    out, lse = tw.interpret(net, q, k, v, bias, seen, kept, precision="fp64")
    powers = np.where(seen, np.exp(0.3 * q @ k.transpose(0, 1, 3, 2) + bias), 0.0)
    total = powers.sum(-1)
    np.testing.assert_allclose(out, np.where(kept, powers / total[..., None] * 2, 0) @ v, rtol=1e-12)
    np.testing.assert_allclose(lse, np.log(total), rtol=1e-12)


def test_logarithms_of_sums_are_float32_where_results_are_16_bits():
    net = module((2, 4, 8), (2, 5, 8), (2, 5, 6), kinds=dict.fromkeys(range(3), "f16"))
    assert [t.dtype for t in net.main.result_types] == ["f16", "f32"]


def test_mixed_precision_leaves_logarithms_of_sums_and_broadcast_masks_alone():
    shapes = [(2, 4, 8), (2, 5, 8), (2, 5, 6), (2, 4, 6), (2, 4), (2, 4, 6), (4, 5)]
    net = module(*shapes, op="attention_backward", others=("bias",))
    narrow = run_pipeline(net, Pipeline.parse("infer-shapes, mixed-precision"))
    (op,) = (op for op in narrow.main.body.ops if op.name == "graph.attention_backward")
    assert [v.tensor.dtype for v in op.operands] == ["f16"] * 4 + ["f32", "f16", "f32"]


@pytest.mark.parametrize(
    ("shapes", "kinds", "others", "message"),
    [
        ([(8,), (5, 8), (5, 6)], {}, (), "attention: expected queries of rank 2 or more, got f32\\[8\\]"),
        ([(2, 4, 8), (5, 8), (5, 6)], {}, (), "expected queries, keys, values of one rank"),
        ([(4, 8), (5, 7), (5, 6)], {}, (), r"expected queries \[.., N, C\], keys \[.., M, C\]"),
        ([(4, 8), (0, 8), (0, 6)], {}, (), r"expected queries \[.., N, C\], keys \[.., M, C\]"),
        ([(4, 8), (5, 8), (5, 6), (4, 5)], {}, (), r"expected 0 further operands \(\(\)\), got 1"),
        ([(4, 8), (5, 8), (5, 6), (4, 5)], {}, ("mask",), "expected 'others' among"),
        ([(4, 8), (5, 8), (5, 6), (4, 5)], {}, ("seen",), r"expected a 'seen' that broadcasts to \(4, 5\)"),
        ([(4, 8), (5, 8), (5, 6), (3, 5)], {}, ("bias",), "expected shapes that broadcast"),
        ([(4, 8), (5, 8), (5, 6), (4,)], {}, ("lse_cotangent",), "expected 'others' among"),
    ],
)
def test_bad_operands(shapes, kinds, others, message):
    with pytest.raises(tw.InputError, match=message):
        module(*shapes, kinds=kinds, others=others)
