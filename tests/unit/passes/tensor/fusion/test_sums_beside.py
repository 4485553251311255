"""Sums of a step that share a kernel have rows of one shape, dimensions of one point included."""

import pytest

from tilewright.compilation.lowering import lower_from, pass_context
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level, parse
from tilewright.passes.pipelines import official_stages

TEXT = """module @m {{
  tensor.func @main(%x: f32[8, 40, 6], %w: f32[6], updates = [[1, 2]]) -> f32[8, 6], f32[{shape}], f32[6] {{
  %a = tensor.reduce(%x, par = (n: 8, c: 6), red = (i: 40), reads = [[n, i, c]], init = [0.0]) : f32[8, 6] {{
    ^(%v: f32, %s: f32)
    %t = scalar.add(%v, %s) : f32
    scalar.yield(%t)
  }}
  %b = tensor.reduce(%x, par = ({par}), red = (i: 40), reads = [[n, i, c]], init = [0.0]) : f32[{shape}] {{
    ^(%v: f32, %s: f32)
    %t = scalar.fma(%v, %v, %s) : f32
    scalar.yield(%t)
  }}
  %new = tensor.map(%w, par = (c: 6), reads = [[c]]) : f32[6] {{
    ^(%v: f32)
    %t = scalar.neg(%v) : f32
    scalar.yield(%t)
  }}
  tensor.return(%a, %b, %new) }} }}"""


@pytest.mark.parametrize(
    ("shape", "par", "kernels"), [("8, 6", "n: 8, c: 6", 2), ("8, 6, 1", "n: 8, c: 6, j: 1", 3)]
)
def test_a_dimension_of_one_point_is_no_reason_to_fail(shape, par, kernels):
    target = resolve_target("null")
    stages = official_stages(Level.TENSOR, target.language).since("fuse-kernels")
    module = parse(TEXT.format(shape=shape, par=par))
    lowered = lower_from(module, target, stages, context=pass_context(target))
    assert len([f for f in lowered.thread.funcs if f.name != "main"]) == kernels
