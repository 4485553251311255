"""Sums from which each turn takes something off: a compiler for CPUs gets some lengths of them wrong."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.dialect import CudaDialect, OpenClDialect
from tilewright.codegen.emit.control import subtracts_from_a_sum
from tilewright.ir import Builder, ScalarType, Value
from tilewright.ir.nodes import Block

#: lengths of which the wrong ones depend on the vectors of the processor
LENGTHS = (3, 17, 45, 63, 100, 127, 135, 255, 1000)
BODIES = {
    "negative": "%1 = graph.negative(%x) : f32[10, N]",
    "product": "%1 = graph.multiply(%x, %minus) : f32[10, N]",
}


def module(body):
    functions = []
    for n in LENGTHS:
        functions.append(f"""module @m {{
          graph.func @main(%x: f32[10, {n}]) -> f32[10] {{
            %minus = graph.constant(name = "minus") : f32[]
            {body.replace("N", str(n))}
            %2 = graph.sum(%1, axis = [1], keepdims = false) : f32[10]
            graph.return(%2)
          }}
        }}""")
    constants = tw.ir.Constants({"minus": np.float32(-1)})
    return [tw.parse(text).with_constants(constants) for text in functions]


@pytest.mark.parametrize("body", BODIES)
def test_sums_of_negatives_are_right_at_every_length(body):
    rng = np.random.default_rng(0)
    for n, net in zip(LENGTHS, module(BODIES[body]), strict=True):
        x = rng.standard_normal((10, n)).astype(np.float32)
        with tw.compile(net, "opencl", progress=False) as exe:
            np.testing.assert_allclose(exe(x)[0], -x.sum(1), rtol=1e-4, atol=1e-4, err_msg=str(n))


def body_of(write):
    carried, x = Value(ScalarType("f32"), "sum"), Value(ScalarType("f32"), "x")
    b = Builder()
    b.do("thread.yield", write(b, carried, x))
    return Block((carried,), tuple(b.ops))


@pytest.mark.parametrize(
    ("write", "subtracts"),
    [
        (lambda b, s, x: b.value("scalar.sub", s, x), True),
        (lambda b, s, x: b.value("scalar.add", b.value("scalar.neg", x), s), True),
        (lambda b, s, x: b.value("scalar.add", s, b.value("scalar.mul", x, b.const(-1.0, "f32"))), True),
        (lambda b, s, x: b.value("scalar.sub", x, s), False),
        (lambda b, s, x: b.value("scalar.add", s, x), False),
        (lambda b, s, x: b.value("scalar.add", s, b.value("scalar.mul", x, b.const(2.0, "f32"))), False),
    ],
)
def test_which_loops_take_something_off_a_sum(write, subtracts):
    assert subtracts_from_a_sum(body_of(write)) is subtracts


def test_only_text_for_opencl_differs():
    assert OpenClDialect().unroll(0, subtracts=True) == []
    assert OpenClDialect().unroll(0) == ["#pragma nounroll"]
    assert OpenClDialect().unroll(4, subtracts=True) == ["#pragma unroll 4"]
    assert CudaDialect().unroll(0, subtracts=True) == CudaDialect().unroll(0)
