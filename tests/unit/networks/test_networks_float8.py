"""Networks of ONNX quantised to 8-bit floats: products on tensor cores where the precision permits them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from attention_training import callee, kernels_of
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.ir import Module
from tilewright.passes.kernels.decision import decision_of

RNG = np.random.default_rng(4)
E4M3 = TensorProto.FLOAT8E4M3FN


class Graph:
    """An ONNX graph written node by node; quantised: activations and weights are 8-bit floats with scales."""

    def __init__(self, *, quantised: bool) -> None:
        self.quantised = quantised
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def narrow(self, array: np.ndarray) -> str:
        """A constant of 8-bit floats."""
        name = f"c{len(self.constants)}"
        data = array.astype(ml_dtypes.float8_e4m3fn).tobytes()
        self.constants.append(helper.make_tensor(name, E4M3, array.shape, data, raw=True))
        return name

    def __call__(self, kind: str, *operands: str, **attrs: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], **attrs))
        return name

    def activation(self, x: str, scale: float) -> str:
        if not self.quantised:
            return x
        pair = self.constant(np.float32(scale)), self.narrow(np.float32(0))
        return self("DequantizeLinear", self("QuantizeLinear", x, *pair), *pair)

    def weights(self, shape: tuple[int, ...], axis: int) -> str:
        """As 8-bit floats with a scale per output channel."""
        numbers = RNG.standard_normal(shape).astype(np.float32)
        scales = (RNG.uniform(0.5, 1.5, shape[axis]) / np.sqrt(numbers.size / shape[axis])).astype(np.float32)
        along = tuple(-1 if d == axis else 1 for d in range(len(shape)))
        if not self.quantised:
            return self.constant(numbers * scales.reshape(along))
        return self("DequantizeLinear", self.narrow(numbers), self.constant(scales), axis=axis)

    def model(self, shape: tuple[int, ...], result: str) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        made = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "graph", given, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def feed_forward(rows: int, width: int, *, quantised: bool = True) -> onnx.ModelProto:
    """A pair of dense layers with biases and ReLU."""
    g = Graph(quantised=quantised)
    x = g("MatMul", g.activation("x", 0.01), g.weights((width, 4 * width), 1))
    x = g("Add", x, g.constant(RNG.standard_normal(4 * width).astype(np.float32)))
    x = g("MatMul", g.activation(g("Relu", x), 0.013), g.weights((4 * width, width), 1))
    return g.model((rows, width), x)


def residuals(images: int, extent: int, channels: int, *, quantised: bool = True) -> onnx.ModelProto:
    """Convolutions with residuals and ReLU behind a 1x1 one."""
    g = Graph(quantised=quantised)
    x = g("Relu", g("Conv", g.activation("x", 0.02), g.weights((channels, 16, 1, 1), 0)))
    for _ in range(2):
        y = g("Conv", g.activation(x, 0.02), g.weights((channels, channels, 3, 3), 0), pads=[1] * 4)
        x = g("Relu", g("Add", y, x))
    return g.model((images, 16, extent, extent), g("GlobalAveragePool", x))


SMALL = {
    "feed forward": lambda: (feed_forward(64, 128), (64, 128)),
    "residuals": lambda: (residuals(1, 14, 64), (1, 16, 14, 14)),
}


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


@pytest.mark.emulator
@pytest.mark.parametrize("name", SMALL)
def test_results_are_those_of_onnx(name):
    """The reference of ONNX rounds to 8-bit floats where the network does; kernels may round a neighbour."""
    model, shape = SMALL[name]()
    x = RNG.standard_normal(shape).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    module = tw.frontends.onnx.load(model)
    assert error(tw.interpret(module, x)[0], wanted) < 2e-3
    for target, precision in (("emulator", "tf32"), ("emulator", "fp16"), ("opencl", "fp32")):
        with tw.compile(module, target, precision=precision, progress=False) as exe:
            multiplied = [k.source for k in exe.plan.kernels if re.search(r"(mma|wgmma)_f8e4m3", k.source)]
            assert bool(multiplied) == (precision != "fp32")
            assert error(exe(x)[0], wanted) < 1e-2


def estimated_s(model: onnx.ModelProto, precision: str) -> float:
    """Seconds of all kernels by the model."""
    lowered = kernels_of(loaded(model), precision)
    costs = {f.name: decision_of(f).cost for f in lowered.funcs if f.name != "main"}
    called = [callee(op) for op in lowered.main.body.ops if op.name == "tensor.call"]
    return sum(costs[name].estimate_s for name in called)


def loaded(model: onnx.ModelProto) -> Module:
    return tw.frontends.onnx.load(model)


#: name: the network, and the most time of the quantised one beside the other; residuals stay float32
NETWORKS = {
    "feed forward": (lambda quantised: feed_forward(8192, 768, quantised=quantised), 0.75),
    "residuals": (lambda quantised: residuals(64, 28, 256, quantised=quantised), 1.05),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_builds_for_hopper_with_warpgroups_that_multiply_8_bit_floats(name):
    made, most = NETWORKS[name]
    model = made(True)
    with tw.compile(loaded(model), "cuda:sm_90a:h200", precision="fp16", progress=False) as exe:
        by_groups = [k.source for k in exe.plan.kernels if re.search(r"wgmma_f8e4m3_\w*\d+\(", k.source)]
    assert len(by_groups) == 2  # 16 channels are multiplied by warps
    assert all("tensor_map" in text for text in by_groups)  # the copy engine brings both factors
    assert estimated_s(model, "fp16") < most * estimated_s(made(False), "fp16")


@pytest.mark.parametrize(
    ("target", "precision"),
    [
        ("cuda:sm_90a:h200", "fp32"),
        ("cuda:sm_90a:h200", "fp32-strict"),
        ("cuda:sm_80:a100", "fp16"),
        ("opencl", "fp32"),
    ],
)
def test_others_multiply_what_the_numbers_stand_for(target, precision):
    module = loaded(feed_forward(64, 64))
    with tw.compile(module, target, precision=precision, progress=False) as exe:
        assert not any("mma_f8e4m3" in k.source for k in exe.plan.kernels)
