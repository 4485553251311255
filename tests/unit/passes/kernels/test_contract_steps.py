"""Chunks of sums over several dimensions: as long as the model says, however many dimensions there are."""

from math import prod

import pytest

from tilewright.costmodel import ContractParameters
from tilewright.devices.targets import resolve_target
from tilewright.ir import Sizes, parse
from tilewright.passes.kernels.contract.choice import parameters_for

H100 = resolve_target("cuda:sm_90a:h100").hardware


def gradient(n: int, y: int, x: int):
    """The gradient of a pointwise convolution's weights: a sum over samples, rows and columns."""
    module = parse(f"""module @m {{
      tensor.func @main(%a: f32[{n}, {y}, {x}, 16], %b: f32[{n}, {y}, {x}, 8]) -> f32[16, 8] {{
        %0 = tensor.contract(%a, %b, par = (k: 16, c: 8), red = (n: {n}, y: {y}, x: {x}),
            reads = [[n, y, x, k], [n, y, x, c]]) : f32[16, 8] {{
          ^(%p: f32, %q: f32, %acc: f32)
          %1 = scalar.fma(%p, %q, %acc) : f32
          scalar.yield(%1)
        }}
        tensor.return(%0)
      }}
    }}""")
    return module.main.body.ops[0]


def chosen(op, chunk: int):
    tile = Sizes({"n": 1, "h": 1, "w": 8, "k": 8})
    one = Sizes({"n": 1, "h": 1, "w": 1, "k": 1})
    return parameters_for(op, ContractParameters(tile, one, Sizes({"c": chunk}), 2, "shared", 0), H100).step


@pytest.mark.parametrize(
    ("shape", "chunk", "step"),
    [
        ((32, 2, 2), 64, {"n": 16, "y": 2, "x": 2}),
        ((32, 2, 2), 2, {"n": 1, "y": 1, "x": 2}),
        ((32, 1, 1), 8, {"n": 8, "y": 1, "x": 1}),
        ((4, 3, 5), 7, {"n": 1, "y": 1, "x": 5}),
        ((4, 3, 5), 15, {"n": 1, "y": 3, "x": 5}),
    ],
)
def test_the_last_dimensions_are_whole_before_others_are_cut(shape, chunk, step):
    got = dict(chosen(gradient(*shape), chunk))
    assert got == step
    assert prod(got.values()) <= chunk
