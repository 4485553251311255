"""Networks of ONNX with DequantizeLinear before their products: bytes on tensor cores, exact results."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from attention_training import callee, kernels_of
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import Module
from tilewright.passes.kernels.decision import decision_of

RNG = np.random.default_rng(4)


class Graph:
    """An ONNX graph written node by node; quantised: activations and weights are bytes with scales."""

    def __init__(self, *, quantised: bool) -> None:
        self.quantised = quantised
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def __call__(self, kind: str, *operands: str, **attrs: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], **attrs))
        return name

    def activation(self, x: str, kind: str, scale: float, zero: int = 0) -> str:
        if not self.quantised:
            return x
        pair = self.constant(np.float32(scale)), self.constant(np.array(zero, kind))
        return self("DequantizeLinear", self("QuantizeLinear", x, *pair), *pair)

    def weights(self, shape: tuple[int, ...], axis: int) -> str:
        """Scales are powers of two, so that products of floats are exact, too."""
        whole = RNG.integers(-127, 128, shape).astype(np.int8)
        scales = np.exp2(RNG.integers(-12, -9, shape[axis])).astype(np.float32)
        if not self.quantised:
            along = tuple(-1 if d == axis else 1 for d in range(len(shape)))
            return self.constant(whole * scales.reshape(along))
        return self("DequantizeLinear", self.constant(whole), self.constant(scales), axis=axis)

    def module(self, shape: tuple[int, ...], result: str) -> Module:
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        made = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "graph", given, made, self.constants)
        opset = [helper.make_opsetid("", 18)]
        return tw.frontends.onnx.load(helper.make_model(graph, opset_imports=opset, ir_version=9))


def feed_forward(rows: int, width: int, *, quantised: bool = True) -> Module:
    """A pair of dense layers with biases and ReLU, on signed bytes."""
    g = Graph(quantised=quantised)
    x = g("MatMul", g.activation("x", "int8", 2**-5), g.weights((width, 4 * width), 1))
    x = g("Add", x, g.constant(RNG.integers(-64, 64, 4 * width).astype(np.float32) / 64))
    x = g("MatMul", g.activation(g("Relu", x), "int8", 2**-4), g.weights((4 * width, width), 1))
    return g.module((rows, width), g.activation(x, "int8", 2**-4))


def residuals(images: int, extent: int, channels: int, *, zero: int = 0, quantised: bool = True) -> Module:
    """Convolutions with residuals and ReLU between 1x1 ones, on unsigned bytes."""
    g = Graph(quantised=quantised)
    x = g.activation("x", "uint8", 2**-4, zero)
    x = g.activation(g("Relu", g("Conv", x, g.weights((channels, 8, 1, 1), 0))), "uint8", 2**-4, zero)
    for _ in range(2):
        y = g("Conv", x, g.weights((channels, channels, 3, 3), 0), pads=[1] * 4)
        x = g.activation(g("Relu", g("Add", y, x)), "uint8", 2**-4, zero)
    return g.module((images, 8, extent, extent), g("GlobalAveragePool", x))


def of_relay(extent: int, channels: int) -> Module:
    """Two qnn.conv2d with unsigned weights and zero points, as importers of TFLite write them."""
    shape = (3, 3, channels, channels)
    weights = {k: RNG.integers(0, 248, shape).astype(np.uint8) for k in ("k0", "k1")}
    given = f"""padding=[1, 1, 1, 1], channels={channels}, kernel_size=[3, 3], data_layout="NHWC",
        kernel_layout="HWIO", out_dtype="int32\""""
    images = f"Tensor[(2, {extent}, {extent}, {channels}), uint8]"
    params = ", ".join(f"%{k}: Tensor[{shape}, uint8]" for k in weights)
    text = f"""#[version = "0.0.5"]
    def @main(%x: {images}, {params}) {{
      %0 = qnn.conv2d(%x, %k0, 7, 120, 0.02f, 0.01f, {given});
      %1 = qnn.requantize(%0, 0.0002f, 0, 0.05f, 9, axis=3, out_dtype="uint8");
      %2 = qnn.conv2d(%1, %k1, 9, 120, 0.05f, 0.01f, {given});
      qnn.requantize(%2, 0.0005f, 0, 0.1f, 3, axis=3, out_dtype="uint8")
    }}"""
    return import_module(read_source(text, "quantised.relay"), weights)


SMALL = {
    "Relay": lambda: (of_relay(14, 64), (2, 14, 14, 64)),
    "feed forward": lambda: (feed_forward(64, 128), (64, 128)),
    "padding that is zero": lambda: (residuals(1, 14, 64), (1, 8, 14, 14)),
    "padding that is not": lambda: (residuals(2, 14, 64, zero=7), (2, 8, 14, 14)),
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", SMALL)
def test_results_are_those_of_the_network_as_it_is_written(name):
    """Integer sums that are scaled once, on generated kernels, against products of floats, all exact."""
    module, shape = SMALL[name]()
    x = RNG.normal(0, 2, shape).astype(np.float32)
    if name == "Relay":
        x = RNG.integers(0, 256, shape).astype(np.uint8)
    (wanted,) = tw.interpret(module, x)
    with tw.compile(module, "emulator", progress=False) as exe:
        assert any("mma" in k.source and "i8" in k.source for k in exe.plan.kernels)
        assert np.array_equal(exe(x)[0], wanted)


def estimated_s(module: Module, precision: str) -> float:
    """Seconds of all kernels by the model."""
    lowered = kernels_of(module, precision)
    costs = {f.name: decision_of(f).cost for f in lowered.funcs if f.name != "main"}
    called = [callee(op) for op in lowered.main.body.ops if op.name == "tensor.call"]
    return sum(costs[name].estimate_s for name in called)


NETWORKS = {
    "feed forward": lambda quantised: feed_forward(8192, 768, quantised=quantised),
    "residuals": lambda quantised: residuals(64, 28, 256, quantised=quantised),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_builds_for_hopper_with_warpgroups_that_multiply_bytes(name):
    module = NETWORKS[name](True)
    multiplies = {"feed forward": r"wgmma_i8_\d+\(", "residuals": r"wgmma_u8_i8_\d+\("}[name]
    with tw.compile(module, "cuda:sm_90a:h200", progress=False) as exe:
        texts = [exe.plan.kernel_by_name[launch.kernel].source for launch in exe.plan.launches]
    by_groups = [text for text in texts if re.search(multiplies, text)]
    assert len(by_groups) == 2
    assert all("tensor_map" in text for text in by_groups)  # the copy engine brings both factors
    assert estimated_s(module, "fp32") < 0.72 * estimated_s(NETWORKS[name](False), "fp16")
