"""New values of state beside what others read: parted where that lets these run early, else left."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.passes import PassContext, Pipeline, run_pipeline

MASK = "%0 = tensor.call(%x, %step, callee = @mask) : f32[4]"


def network(mask=MASK, extent=4, updates="[[1, 1], [2, 2]]", correction="%2"):
    size = f"f32[{extent}]"
    results = f"f32[4], {size}, f32[4]"
    return tw.parse(f"""module @net {{
      tensor.func @mask(%x: f32[4], %step: {size}) -> f32[4] {{
        %0 = tensor.map(%x, %step, par = (i: 4), reads = [[i], [i]]) : f32[4] {{
          ^(%a: f32, %n: f32)
          %s = scalar.mul(%a, %n) : f32
          scalar.yield(%s)
        }}
        tensor.return(%0)
      }}
      tensor.func @count(%step: {size}) -> {size}, {size} {{
        %0 = tensor.map(%step, par = (i: {extent}), reads = [[i]]) : {size} {{
          ^(%n: f32)
          %one = scalar.const(value = 1.0, dtype = "f32") : f32
          %s = scalar.add(%n, %one) : f32
          scalar.yield(%s)
        }}
        %1 = tensor.map(%0, par = (i: {extent}), reads = [[i]]) : {size} {{
          ^(%n: f32)
          %s = scalar.mul(%n, %n) : f32
          scalar.yield(%s)
        }}
        tensor.return(%0, %1)
      }}
      tensor.func @update(%w: f32[4], %c: {size}) -> f32[4] {{
        %0 = tensor.map(%w, %c, par = (i: 4), reads = [[i], [i]]) : f32[4] {{
          ^(%a: f32, %f: f32)
          %s = scalar.add(%a, %f) : f32
          scalar.yield(%s)
        }}
        tensor.return(%0)
      }}
      tensor.func @main(%x: f32[4], %step: {size}, %w: f32[4], updates = {updates}) -> {results} {{
        {mask}
        %1, %2 = tensor.call(%step, callee = @count) : {size}, {size}
        %3 = tensor.call(%w, {correction}, callee = @update) : f32[4]
        tensor.return({"%0" if mask else "%x"}, %1, %3)
      }}
    }}""")


def parted(module):
    out = run_pipeline(module, Pipeline.parse("write-state-apart"), PassContext(verify_each=True))
    assert run_pipeline(out, Pipeline.parse("write-state-apart"), PassContext()) is out
    return out


def test_both_kernels_compute_what_the_one_did():
    module = network()
    out = parted(module)
    assert [op["callee"].name for op in out.main.body.ops[:-1]] == [
        "mask",
        "count_0",
        "update",
        "count_state_0",
    ]
    arrays = [np.arange(4, dtype=np.float32) + i for i in range(3)]
    for got, wanted in zip(tw.interpret(out, *arrays), tw.interpret(module, *arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "given",
    [
        {"mask": ""},  # nothing else reads the number
        {"extent": 1 << 14},  # too much to be computed twice
        {"updates": "[[2, 2]]"},  # a result, and no state
        {"correction": "%1"},  # the new state itself is read
    ],
)
def test_what_need_not_be_parted_stays(given):
    module = network(**given)
    assert parted(module) is module
