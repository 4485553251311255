"""Products of integers in ONNX: bytes stay bytes where zero points allow it, and every result is exact."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw

KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def loaded(node, x, constants, results=TensorProto.INT32):
    """The module of one node, whose first input alone is no constant, and a function with ONNX's results."""
    given = [helper.make_tensor_value_info(node.input[0], KINDS[x.dtype.name], x.shape)]
    outputs = [helper.make_tensor_value_info(node.output[0], results, None)]
    initialisers = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph([node], "graph", given, outputs, initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return tw.frontends.onnx.load(model), lambda: ReferenceEvaluator(model).run(None, {node.input[0]: x})[0]


def drawn(dtype, *shape):
    info = np.iinfo(dtype)
    return np.random.default_rng(3).integers(info.min, info.max + 1, shape).astype(dtype)


def factors_of(module, op):
    (product,) = (o for o in module.main.body.ops if o.name == op)
    return [v.tensor.dtype for v in product.operands]


#: dtype and zero point of the data, dtype and zero point of the weights, and what is multiplied
CASES = [
    ("int8", None, "int8", None, "i8"),
    ("int8", 5, "int8", 0, "i8"),
    ("int8", -128, "int8", [0, 0, 0], "i8"),
    ("uint8", None, "int8", None, "u8"),
    ("uint8", 255, "int8", 0, "u8"),
    ("uint8", 77, "int8", [1, 0, -3], "i32"),
    ("uint8", 7, "uint8", 128, "i32"),
    ("int8", [1, -2, 3, 4], "int8", 0, "i32"),
]


@pytest.mark.parametrize(("kind", "zero", "weight_kind", "weight_zero", "factors"), CASES)
def test_products_are_exact(kind, zero, weight_kind, weight_zero, factors):
    x, w = drawn(kind, 4, 6), drawn(weight_kind, 6, 3)
    names, constants = ["x", "w"], {"w": w}
    if zero is not None or weight_zero is not None:
        constants |= {"a": np.array(zero or 0, kind), "b": np.array(weight_zero or 0, weight_kind)}
        names += ["a", "b"]
    node = helper.make_node("MatMulInteger", names, ["y"])
    module, _ = loaded(node, x, constants)
    # Zero points of the data are one per row.
    centred = x.astype(np.int64) - np.reshape(constants.get("a", np.int8(0)), (-1, 1)).astype(np.int64)
    exact = centred @ (w.astype(np.int64) - constants.get("b", np.int8(0)).astype(np.int64))
    (got,) = tw.interpret(module, x)
    assert got.dtype == np.int32
    assert np.array_equal(got, exact)
    assert factors_of(module, "graph.matmul") == [factors, "i8" if factors == "u8" else factors]
    with tw.compile(module, "opencl", progress=False) as exe:
        assert np.array_equal(exe(x)[0], exact)


@pytest.mark.parametrize(
    ("kind", "zero", "factors"), [("int8", 0, "i8"), ("uint8", 9, "u8"), ("int8", -7, "i8")]
)
def test_convolutions_are_padded_with_the_zero_point(kind, zero, factors):
    x, w = drawn(kind, 2, 4, 5, 6), drawn("int8", 6, 2, 3, 3)
    attributes = {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": 2}
    node = helper.make_node("ConvInteger", ["x", "w", "a", "b"], ["y"], **attributes)
    constants = {"w": w, "a": np.array(zero, kind), "b": np.array(0, np.int8)}
    module, wanted = loaded(node, x, constants)
    exact = wanted()
    (got,) = tw.interpret(module, x)
    assert np.array_equal(got, exact)
    assert factors_of(module, "graph.conv2d") == [factors, "i8"]
    with tw.compile(module, "opencl", progress=False) as exe:
        assert np.array_equal(exe(x)[0], exact)


def test_requantised_layers_agree():
    x, w = drawn("uint8", 2, 3, 6, 6), drawn("int8", 8, 3, 3, 3)
    constants = {
        "xs": np.float32(0.02), "xz": np.array(100, np.uint8), "w": w, "ws": np.full(8, 0.01, np.float32),
        "wz": np.zeros(8, np.int8), "ys": np.float32(0.5), "yz": np.array(120, np.uint8),
        "bias": np.arange(8, dtype=np.int32) * 50,
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    module, wanted = loaded(node, x, constants, TensorProto.UINT8)
    (got,) = tw.interpret(module, x)
    assert np.abs(got.astype(int) - wanted().astype(int)).max() == 0
    assert factors_of(module, "graph.conv2d") == ["u8", "i8"]
