"""Gates of feed-forward layers as one product: networks on the emulator, what is left alone, what decides."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.ir import Level, Module, parse
from tilewright.ir.constants import Constants
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.pipelines import official_stages

CTX = PassContext(target="cuda:sm_90a", hardware=load_hardware("H200"))
ERRORS = {"fp16": 1e-3, "bf16": 8e-3, "tf32": 1e-3, "fp32": 1e-6}


def layer(rows: int, width: int, hidden: int, *, given: bool = False, dtype: str = "f32") -> Module:
    """A feed-forward layer with SiLU, biases and a gate; given: the gate's weights are an input."""
    gate = f"f32[{hidden}, {width}]".replace("f32", dtype)
    text = f"""module @m {{
  graph.func @main(%x: f32[{rows}, {width}]{f", %w: {gate}" if given else ""}) -> f32[{rows}, {width}] {{
    {"" if given else f'%w = graph.constant(name = "gate") : {gate}'}
    %b = graph.constant(name = "gate_bias") : f32[{hidden}]
    %v = graph.constant(name = "up") : f32[{hidden}, {width}]
    %d = graph.constant(name = "up_bias") : f32[{hidden}]
    %u = graph.constant(name = "down") : f32[{width}, {hidden}]
    %0 = graph.dense(%x, %w) : f32[{rows}, {hidden}]
    %1 = graph.bias_add(%0, %b, axis = 1) : f32[{rows}, {hidden}]
    %2 = graph.sigmoid(%1) : f32[{rows}, {hidden}]
    %3 = graph.multiply(%1, %2) : f32[{rows}, {hidden}]
    %4 = graph.dense(%x, %v) : f32[{rows}, {hidden}]
    %5 = graph.bias_add(%4, %d, axis = 1) : f32[{rows}, {hidden}]
    %6 = graph.multiply(%3, %5) : f32[{rows}, {hidden}]
    %7 = graph.dense(%6, %u) : f32[{rows}, {width}]
    graph.return(%7)
  }}
}}"""
    rng = np.random.default_rng(0)
    shapes = {
        "gate": (hidden, width), "gate_bias": (hidden,), "up": (hidden, width), "up_bias": (hidden,),
        "down": (width, hidden),
    }  # fmt: skip
    arrays = {
        name: (rng.standard_normal(s) / (s[-1] ** 0.5 if len(s) > 1 else 1)).astype(np.float32)
        for name, s in shapes.items()
        if not (given and name == "gate")
    }
    return replace(parse(text), constants=Constants(arrays))


def kernels_of(module: Module, precision: str, when: str) -> Module:
    """The module as kernels with parameters."""
    stages = official_stages(Level.GRAPH, "cuda", precision)
    stages = stages.replace("interleave-columns", f"interleave-columns{{when={when}}}").without("join-gates")
    for level, pipeline in stages:
        if level is not Level.THREAD:
            module = run_pipeline(module, pipeline, CTX)
    return module


def taken(module: Module) -> list[str]:
    return [f.name for f in module.funcs if "_interleaved_" in f.name]


def estimate_s(module: Module) -> float:
    costs = {f.name: d.cost.estimate_s for f in module.funcs if (d := decision_of(f)) is not None and d.cost}
    return sum(costs[op["callee"].name] for op in module.main.body.ops if op.name == "tensor.call")


@pytest.mark.emulator
@pytest.mark.parametrize("hidden", [72, 60])
@pytest.mark.parametrize("precision", ERRORS)
def test_a_layer_with_a_gate_is_two_products(precision, hidden, monkeypatch):
    from tilewright.passes import pipelines

    tensor = pipelines.TENSOR.replace("interleave-columns", "interleave-columns{when=always}")
    monkeypatch.setattr(pipelines, "TENSOR", tensor.without("join-gates"))
    module = layer(80, 128, hidden)
    exe = tw.compile(module, "emulator", precision=precision, progress=False)
    x = np.random.default_rng(1).standard_normal((80, 128)).astype(np.float32)
    got, want = np.asarray(exe(x)), np.asarray(tw.interpret(module, x, precision="fp64")[0])
    assert len(exe.plan.launches) == 2
    assert np.linalg.norm(got - want) <= ERRORS[precision] * np.linalg.norm(want)


@pytest.mark.parametrize("precision", ERRORS)
def test_the_model_takes_large_layers(precision):
    """Every precision gains; what is stored of the gate is its result alone."""
    module = layer(16384, 1024, 2816)
    before, after = (kernels_of(module, precision, when) for when in ("never", "auto"))
    assert taken(after)
    assert not taken(before)
    assert estimate_s(after) < 0.98 * estimate_s(before)
    kernels = [f for f in after.funcs if f.name in taken(after)]
    assert {t.shape[-1] for f in kernels for t in f.result_types} == {2816}
    assert next(a.shape for name, a in after.constants.items() if "interleaved" in name) == (5632, 1024)


def test_weights_that_are_inputs_are_left_alone():
    assert taken(kernels_of(layer(4096, 1024, 2816), "tf32", "always"))
    assert not taken(kernels_of(layer(4096, 1024, 2816, given=True), "tf32", "always"))


def test_columns_that_are_no_groups_of_eight_get_zeros():
    """Of 2,730 columns the last group has six that are of no result."""
    module = kernels_of(layer(4096, 1024, 2730), "fp16", "always")
    assert taken(module)
    (shape,) = {a.shape for name, a in module.constants.items() if "interleaved" in name}
    assert shape == (2 * 2736, 1024)


def test_devices_without_tensor_cores_keep_their_kernels():
    tensor = official_stages(Level.GRAPH, "cuda", "tf32").until("interleave-columns")
    module = layer(64, 32, 48)
    for _, pipeline in tensor:
        module = run_pipeline(module, pipeline, CTX)
    for device in ("cpu-opencl", "RTX 2080"):
        ctx = PassContext(hardware=load_hardware(device))
        assert run_pipeline(module, Pipeline.parse("interleave-columns{when=always}"), ctx) is module
