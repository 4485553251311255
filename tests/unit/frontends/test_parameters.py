"""Which constants of imported networks are parameters, format by format; inference stays as it is."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.ir import Module, parse, show
from tilewright.ir.graph_code import GraphWriter
from tilewright.passes.graph.gradients.differentiate import with_results

RELAY = Path(__file__).parents[2] / "data" / "relay"
node = helper.make_node


def a_model(nodes, inputs, constants, result="y"):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def imported(model, **inputs):
    """The module of a model, which computes what ONNX's own evaluator does."""
    module = tw.frontends.onnx.load(model)
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    (got,) = tw.interpret(module, *inputs.values())
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    return module


def op_names(module: Module) -> list[str]:
    return [op.name.removeprefix("graph.") for op in module.main.body.ops]


@pytest.fixture
def normal():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


# -- Relay and Relax -----------------------------------------------------------------------------------------
def test_bound_weights_of_relay_are_parameters():
    module = tw.frontends.relay.load(RELAY / "mlp.relay", params=RELAY / "mlp.params")
    assert set(module.parameters) == set(module.constants) - {
        n for n in module.constants if n.startswith("const_")
    }
    assert len(module.parameters) >= 2
    assert tw.frontends.relay.load(RELAY / "mlp.relay").parameters == ()


def test_statistics_of_batch_norms_and_literals_are_none():
    module = tw.frontends.relay.load(RELAY / "resnet20_cifar.relay", params="random")
    statistics = {n for n in module.constants if n.endswith(("mean", "var"))}
    assert statistics
    weights = {n for n in module.constants if n.endswith(("weight", "gamma", "beta", "bias"))}
    assert set(module.parameters) == weights - {"bn_data_gamma"}  # of a batch norm without a factor


def test_numbers_of_tokens_are_no_parameters(tmp_path):
    source = """#[version = "0.0.5"]
    def @main(%x: Tensor[(2), int32], %table: Tensor[(5, 3), float32], %places: Tensor[(2), int32]) {
      %0 = take(%table, %x, axis=0);
      %1 = take(%0, %places, axis=0);
      multiply(%1, 2f)
    }"""
    arrays = {"table": np.ones((5, 3), np.float32), "places": np.zeros(2, np.int32)}
    file = tmp_path / "net.relay"
    file.write_text(source)
    module = tw.frontends.relay.load(file, params=arrays)
    assert module.parameters == ("table",)
    assert len(module.constants) == 3


def test_the_attribute_is_printed_parsed_and_kept():
    module = tw.frontends.relay.load(RELAY / "mlp.relay", params="random")
    again = parse(show(module), constants=module.constants)
    assert again.parameters == module.parameters
    assert show(again) == show(module)
    assert tw.grad(module_with_loss(module)).parameters == module.parameters


def module_with_loss(module):
    w = GraphWriter(module.constants)
    for op in module.main.body.ops[:-1]:
        w.builder.append(op)
    out = w.tensor(module.main.body.ops[-1].operands[0])
    return with_results(module, w, [out.sum().value])


# -- ONNX ----------------------------------------------------------------------------------------------------
def test_floats_that_are_weights_are_parameters_of_onnx(normal):
    constants = {
        "w": normal(4, 3, 3, 3), "b": normal(4), "scale": normal(4), "shift": normal(4),
        "mean": normal(4), "var": np.abs(normal(4)) + 0.5, "half": np.float32(0.5),
        "rows": np.asarray([1, -1], np.int64),
        "mask": np.asarray([0, -1e9, 0, 0], np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        node("Mul", ["n", "half"], ["m"]),
        node("Add", ["m", "mask"], ["k"]),
        node("Reshape", ["k", "rows"], ["y"]),
    ]
    module = imported(a_model(nodes, {"x": (1, 3, 4, 4)}, constants), x=normal(1, 3, 4, 4))
    assert module.parameters == ("w", "b", "scale", "shift")


def test_a_weight_with_one_reader_is_stored_as_it_is_read(normal):
    constants = {"w": normal(3, 5), "b": normal(5)}
    module = imported(
        a_model([node("Gemm", ["x", "w", "b"], ["y"], transB=0)], {"x": (2, 3)}, constants), x=normal(2, 3)
    )
    assert module.parameters == ("w", "b")
    assert "transpose" not in op_names(module)


def test_a_weight_with_two_readers_stays_one_parameter(normal):
    table = normal(6, 4)
    nodes = [
        node("MatMul", ["x", "t"], ["h"]),
        node("Transpose", ["t"], ["u"], perm=[1, 0]),
        node("MatMul", ["h", "u"], ["y"]),
    ]
    module = imported(a_model(nodes, {"x": (2, 6)}, {"t": table}), x=normal(2, 6))
    assert module.parameters == ("t",)
    np.testing.assert_array_equal(module.constants["t"], table)
    assert list(module.constants) == ["t"]
    assert "transpose" in op_names(module)


def test_arithmetic_on_weights_is_part_of_the_graph(normal):
    nodes = [
        node("Exp", ["w"], ["e"]),
        node("Mul", ["e", "two"], ["s"]),
        node("Mul", ["x", "s"], ["y"]),
    ]
    w, x = normal(3, 5), normal(3, 5)
    module = imported(a_model(nodes, {"x": (3, 5)}, {"w": w, "two": np.float32(2)}), x=x)
    assert module.parameters == ("w",)
    (gradient,) = tw.interpret(tw.grad(module_with_loss(module), value=False), x)
    np.testing.assert_allclose(gradient, 2 * x * np.exp(w), rtol=1e-5)


def test_weights_of_recurrent_layers_are_cut_in_the_graph(normal):
    hidden, width, steps = 4, 3, 2
    constants = {"w": normal(1, 4 * hidden, width), "r": normal(1, 4 * hidden, hidden)}
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)]
    module = imported(a_model(nodes, {"x": (steps, 1, width)}, constants), x=normal(steps, 1, width))
    assert set(module.parameters) == {"w", "r"}
    compiled = tw.compile(module, target="reference", progress=False)
    x = normal(steps, 1, width)
    np.testing.assert_allclose(compiled(x)[0], tw.interpret(module, x)[0], rtol=1e-5, atol=1e-6)


def test_scales_of_quantisation_are_no_parameters(normal):
    constants = {
        "w": np.asarray([[1, -3], [7, 2]], np.int8), "s": np.asarray([0.5, 0.25], np.float32),
        "z": np.zeros(2, np.int8),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    module = imported(a_model(nodes, {"x": (3, 2)}, constants), x=normal(3, 2))
    assert module.parameters == ()
    # products of the integers are still possible
    assert op_names(module) == ["constant", "cast", "cast", "constant", "multiply", "matmul", "return"]


# -- the zoo, and inference ----------------------------------------------------------------------------------
def test_weights_of_the_zoo_are_parameters_but_no_numbers():
    module = tw.frontends.zoo.build("gpt_tiny")
    assert "embed.tokens" in module.parameters
    assert not any(name.startswith("number.") for name in module.parameters)
    assert len(module.parameters) == len(module.constants) - sum(
        n.startswith("number.") for n in module.constants
    )


def test_inference_reads_nothing_of_it():
    module = tw.frontends.relay.load(RELAY / "mlp.relay", params="random")
    plain = module.with_attrs(parameters=())
    assert plain.parameters == ()
    with_names, without = (tw.compile(m, target="null", progress=False) for m in (module, plain))
    assert with_names.plan == without.plan
