"""ONNX files that contradict themselves or the standard are refused in one sentence."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

FLOAT = TensorProto.FLOAT


def info(name, kind=FLOAT, shape=(2, 3)):
    return helper.make_tensor_value_info(name, kind, shape)


def model(*, inputs=None, outputs=None, nodes=None, weights=(), opset=20):
    graph = helper.make_graph(
        nodes or [helper.make_node("Relu", ["x"], ["y"])],
        "graph",
        inputs or [info("x")],
        [info("y")] if outputs is None else outputs,
        [numpy_helper.from_array(np.ones((2, 3), np.float32), n) for n in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def fault(proto, error=tw.InputError, **options):
    with pytest.raises(error) as caught:
        tw.frontends.onnx.load(proto, **options)
    return str(caught.value)


def test_unknown_versions_of_operators_are_refused():
    tw.frontends.onnx.load(model(opset=28))
    for opset in (29, 99):
        assert f"expected operators of versions 7 to 28, got {opset}" in fault(
            model(opset=opset), tw.UnsupportedError
        )


def test_a_graph_has_an_output():
    assert "expected a graph with an output, got none" in fault(model(outputs=[]))


def test_values_have_names_of_their_own():
    relu, add = helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "w"], ["y"])
    assert "more than one initialiser 'w'" in fault(model(nodes=[add], weights=("w", "w")))
    assert "more than one graph input 'x'" in fault(model(inputs=[info("x"), info("x")]))
    assert "more than one output of a node 'y'" in fault(model(nodes=[relu, relu]))
    assert "a graph input and an output of a node 'x'" in fault(
        model(nodes=[helper.make_node("Relu", ["x"], ["x"])], outputs=[info("x")])
    )
    assert "an initialiser and an output of a node 'w'" in fault(
        model(nodes=[helper.make_node("Relu", ["x"], ["w"])], outputs=[info("w")], weights=("w",))
    )
    assert "a name of every graph input" in fault(model(inputs=[info("x"), info("")]))
    default = model(inputs=[info("x"), info("w")], nodes=[add], weights=("w",))
    assert tw.frontends.onnx.load(default).input_names == ("x",)


def test_declared_outputs_agree_with_computed_ones():
    told = fault(model(outputs=[info("y", TensorProto.INT64, (2, 3))]))
    assert "declares output 'y' as i64[2, 3]" in told
    assert told.endswith("but its value is f32[2, 3]")
    for shape in ((2, 3, 1), (7, 3)):
        # other runtimes take such files, and trained networks come with them
        with pytest.warns(tw.frontends.onnx.ImportNote, match=r"declares output 'y' as .* is f32\[2, 3\]$"):
            tw.frontends.onnx.load(model(outputs=[info("y", FLOAT, shape)]))
    for good in (("n", 3), (None, 3), None):
        tw.frontends.onnx.load(model(outputs=[info("y", FLOAT, good)]))
    tw.frontends.onnx.load(model(outputs=[onnx.ValueInfoProto(name="y")]))


def test_extents_that_a_batch_was_traced_with_are_no_contradiction():
    traced = model(inputs=[info("x", FLOAT, ("batch", 3))], outputs=[info("y", FLOAT, (1, 3))])
    assert tw.frontends.onnx.load(traced, shapes={"batch": 4}).input_types[0].shape == (4, 3)
