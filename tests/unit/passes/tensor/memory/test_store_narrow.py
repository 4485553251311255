"""What is handed on between kernels in 16 bits, and intervals of what maps compute."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Sym, TensorType, Value, scalar_body, structured
from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Func, Level
from tilewright.ir.tensor.value_ranges import range_of_type, ranges_in


def _mapped(name: str, number: float | None = None) -> tuple[float, float]:
    """The interval of a scalar op of a float16 value (and a number), computed in float32."""
    b = Builder()
    x = Value(TensorType("f16", (4,)), "x")
    body, (element,) = scalar_body(["f16"])
    wide = body.cast(element, "f32")
    operands = [wide] if number is None else [wide, body.const(number, "f32")]
    body.do("scalar.yield", body.value(f"scalar.{name}", *operands))
    (y,) = structured(
        b,
        "tensor.map",
        [x],
        par={"i": 4},
        reads=[[Sym("i")]],
        body=body.block((element,)),
        types=[TensorType("f32", (4,))],
    )
    b.do("tensor.return", y)
    return ranges_in(Func(Level.TENSOR, "k", b.block((x,)), (y.type,)))(y)


LARGEST = 65504.0


@pytest.mark.parametrize(
    ("name", "number", "interval"),
    [
        ("sigmoid", None, (0.0, 1.0)),
        ("erf", None, (-1.0, 1.0)),
        ("erfc", None, (0.0, 2.0)),
        ("cos", None, (-1.0, 1.0)),
        ("neg", None, (-LARGEST, LARGEST)),
        ("add", 1.0, (1 - LARGEST, LARGEST + 1)),
        ("sub", 1.0, (-LARGEST - 1, LARGEST - 1)),
        ("mul", -0.5, (-LARGEST / 2, LARGEST / 2)),
        ("div", 4.0, (-LARGEST / 4, LARGEST / 4)),
        ("max", 0.0, (0.0, LARGEST)),
        ("min", 6.0, (-LARGEST, 6.0)),
        ("pow", 2.0, (-inf, inf)),
        ("log", None, (-inf, inf)),
    ],
)
def test_interval_of_scalar_ops(name: str, number: float | None, interval: tuple[float, float]) -> None:
    assert _mapped(name, number) == pytest.approx(interval)


def test_ranges_of_types() -> None:
    assert range_of_type("f16") == (-LARGEST, LARGEST)
    assert range_of_type("bf16")[1] == pytest.approx(3.39e38, rel=1e-3)
    assert range_of_type("f32") == (-inf, inf)
    assert range_of_type("u8") == (0.0, 255.0)
    assert range_of_type("bool") == (0.0, 1.0)


GATED = """module @gated {
  graph.func @main(%x: f32[256, 64], %u: f32[64, 256], %v: f32[64, 256], %w: f32[256, 64]) -> f32[256, 64] {
    %g = graph.matmul(%x, %u) : f32[256, 256]
    %e = graph.erf(%g) : f32[256, 256]
    %s = graph.multiply(%g, %e) : f32[256, 256]
    %h = graph.matmul(%x, %v) : f32[256, 256]
    %y = graph.multiply(%h, %s) : f32[256, 256]
    %z = graph.matmul(%y, %w) : f32[256, 64]
    graph.return(%z)
  }
}"""


@pytest.mark.parametrize(("precision", "stored"), [("fp32", "f32"), ("fp16", "f16"), ("bf16", "bf16")])
def test_gates_of_a_network_are_stored_in_its_precision(precision: str, stored: str) -> None:
    module = tw.parse(GATED)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) / 8 for t in module.input_types]
    exe = tw.compile(module, "opencl", precision=precision)
    main = exe.artifact.module("tensor").main
    handed = [
        v.tensor.dtype
        for op in main.body.ops
        if op.name == "tensor.call"
        for v in op.operands
        if v not in main.params and v.tensor.shape == (256, 256)
    ]
    assert handed
    assert set(handed) == {stored}
    (wanted,) = tw.interpret(module, *inputs, precision="fp64")
    (got,) = exe(*inputs)
    limit = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[stored]
    assert np.linalg.norm(got - wanted) <= limit * np.linalg.norm(wanted)
