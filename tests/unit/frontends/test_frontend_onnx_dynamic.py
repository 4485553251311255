"""ONNX operators that quantise activations by their range while the network runs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw


def model(node, x, results, constants):
    """A model of one node; its first input is the only one that is not constant."""
    inputs = [helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in results.items()]
    initialisers = [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph([node], "graph", inputs, outputs, initialisers)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def quantised(x):
    """x as whole numbers from 0 to 255, their scale and zero point."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.round(-low / scale), 0, 255)
    return np.clip(np.round(x / scale) + zero, 0, 255), scale, zero


def product(x, weight, scale, zero):
    whole, x_scale, x_zero = quantised(x)
    exact = (whole - x_zero) @ (weight.astype(np.float64) - zero)
    return (exact * (x_scale * scale)).astype(np.float32)


def test_all_zeros_are_quantised_by_a_scale_of_one():
    x = np.zeros((2, 3), np.float32)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    results = {"y": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    y, scale, zero = tw.interpret(tw.frontends.onnx.load(model(node, x, results, {})), x)
    assert (y.max(), scale, zero) == (0, 1, 0)


@pytest.mark.parametrize(("columns", "kind", "zero"), [(1, np.int8, 0), (16, np.int8, 0), (1, np.uint8, 100)])
def test_a_layer_of_integer_weights(columns, kind, zero):
    """DynamicQuantizeLSTM of ONNX Runtime: both products of a step take quantised rows."""
    rng = np.random.default_rng(0)
    hidden, limits = 4, np.iinfo(kind)
    x = rng.standard_normal((3, 1, 5)).astype(np.float32)
    w, r = (rng.integers(limits.min, limits.max, (1, n, 16)).astype(kind) for n in (5, hidden))
    w_scale, r_scale = (rng.random((1, columns)).astype(np.float32) / 99 for _ in range(2))
    zeros = np.full((1, columns), zero, kind)
    bias = rng.standard_normal((1, 32)).astype(np.float32)
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden)
    constants = {"w": w, "r": r, "b": bias, "ws": w_scale, "wz": zeros, "rs": r_scale, "rz": zeros}
    built = tw.frontends.onnx.load(model(node, x, {"y": TensorProto.FLOAT}, constants))
    (got,) = tw.interpret(built, x)

    state, cell = np.zeros((1, hidden), np.float32), np.zeros((1, hidden), np.float32)
    rows = product(x[:, 0], w[0], w_scale[0], zero)
    for t in range(3):
        gates = rows[t] + product(state, r[0], r_scale[0], zero) + bias[0, :16] + bias[0, 16:]
        i, o, f, new = np.split(gates, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        cell = f * cell + i * np.tanh(new)
        state = (o * np.tanh(cell)).astype(np.float32)
        np.testing.assert_allclose(got[t, 0], state, rtol=1e-4, atol=1e-5)
