"""`tw.grad`: what it returns, what it refuses, and that it applies twice."""

import numpy as np
import pytest

import tilewright as tw
from tests.samples.gradients import check_gradient
from tilewright.ir.facts import Gradient
from tilewright.ir.opdef import op_defs
from tilewright.passes.graph.gradients.registry import GRADIENTS

DENSE = """module @m(parameters = ["w", "b"]) {
  graph.func @main(%x: f32[4, 3]) -> f32[] {
    %w = graph.constant(name = "w") : f32[5, 3]
    %b = graph.constant(name = "b") : f32[5]
    %0 = graph.dense(%x, %w) : f32[4, 5] loc "layer"
    %1 = graph.bias_add(%0, %b, axis = 1) : f32[4, 5]
    %2 = graph.tanh(%1) : f32[4, 5]
    %3 = graph.mean(%2, axis = [0, 1], keepdims = false) : f32[]
    graph.return(%3)
  }
}"""

INTEGER = "module @m { graph.func @main(%t: i32[], %x: f32[]) -> f32[] { graph.return(%x) } }"


def weights():
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((5, 3), np.float32), "b": rng.standard_normal(5, np.float32)}


def module(text=DENSE):
    return tw.parse(text).with_constants(tw.ir.Constants(weights()))


def test_parameters_by_default():
    g = tw.grad(module())
    tw.verify(g)
    assert [str(t) for t in g.main.result_types] == ["f32[]", "f32[5, 3]", "f32[5]"]
    assert [str(t) for t in tw.grad(module(), "x", value=False).main.result_types] == ["f32[4, 3]"]


def test_the_closed_form():
    x = np.random.default_rng(1).standard_normal((4, 3))
    w, b = (v.astype(np.float64) for v in weights().values())
    y = np.tanh(x @ w.T + b)
    g = (1 - y * y) / y.size
    value, dw, db = tw.interpret(tw.grad(module()), x, precision="fp64")
    np.testing.assert_allclose(value, y.mean(), rtol=1e-13)
    np.testing.assert_allclose(dw, g.T @ x, rtol=1e-12)
    np.testing.assert_allclose(db, g.sum(0), rtol=1e-12)


def test_backward_ops_carry_the_location_of_their_op():
    ops = tw.grad(module()).main.body.ops
    assert [op.name for op in ops if op.loc == "layer'"] == ["graph.matmul"]


def test_it_applies_twice():
    text = """module @m {
      graph.func @main(%x: f32[6]) -> f32[] {
        %0 = graph.tanh(%x) : f32[6]
        %1 = graph.multiply(%0, %x) : f32[6]
        %2 = graph.sum(%1, axis = [0], keepdims = false) : f32[]
        graph.return(%2)
      }
    }"""
    x = np.linspace(-1, 1, 6)
    first = tw.grad(tw.parse(text), "x", value=False)
    check_gradient(first, [x], ["x"])


def test_an_operand_that_is_used_twice_gathers_both():
    text = """module @m {
      graph.func @main(%x: f32[3]) -> f32[] {
        %0 = graph.multiply(%x, %x) : f32[3]
        %1 = graph.sum(%0, axis = [0], keepdims = false) : f32[]
        graph.return(%1)
      }
    }"""
    x = np.asarray([1.0, -2.0, 3.0], np.float32)
    np.testing.assert_array_equal(tw.interpret(tw.grad(tw.parse(text)), x)[1], 2 * x)


def test_what_is_refused():
    with pytest.raises(tw.InputError, match=r"expected names of inputs or parameters, got 'v'"):
        tw.grad(module(), "v")
    with pytest.raises(tw.InputError, match=r"expected a result from 0 to 0, got 1"):
        tw.grad(module(), of=1)
    vector = DENSE.replace("graph.return(%3)", "graph.return(%2)").replace("-> f32[]", "-> f32[4, 5]")
    with pytest.raises(tw.InputError, match=r"expected a scalar of floats to differentiate, result 0 is f32"):
        tw.grad(module(vector))
    apart = DENSE.replace("graph.dense(%x, %w)", "graph.matmul(%x, %x, transpose_b = true)")
    apart = apart.replace(": f32[4, 5]", ": f32[4, 4]").replace(
        'name = "b") : f32[5]', 'name = "b") : f32[4]'
    )
    lonely = tw.parse(apart).with_constants(tw.ir.Constants({"b": np.zeros(4, np.float32)}))
    with pytest.raises(tw.InputError, match=r"expected result 0 to depend on all .*, it does not on w"):
        tw.grad(lonely)
    with pytest.raises(tw.InputError, match="expected floats to differentiate by, 't' is i32"):
        tw.grad(
            tw.parse("module @m { graph.func @main(%t: i32[], %x: f32[]) -> f32[] { graph.return(%x) } }"),
            "t",
        )


def test_every_op_with_a_rule_says_so():
    stated = {d.name for d in op_defs() if d.name.startswith("graph.") and d.facts.gradient is Gradient.RULE}
    assert stated == set(GRADIENTS)


def test_nothing_is_sent_back_through_stop_gradient():
    text = """module @m {
      graph.func @main(%x: f32[3]) -> f32[] {
        %0 = graph.stop_gradient(%x) : f32[3]
        %1 = graph.multiply(%x, %0) : f32[3]
        %2 = graph.sum(%1, axis = [0], keepdims = false) : f32[]
        graph.return(%2)
      }
    }"""
    x = np.asarray([1.0, -2.0, 3.0], np.float32)
    value, gradient = tw.interpret(tw.grad(tw.parse(text)), x)
    assert value == 14
    np.testing.assert_array_equal(gradient, x)
