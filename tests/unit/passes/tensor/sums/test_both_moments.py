"""Mean and squared distances in one walk over parts: as exact as two walks, whatever the data."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.rows.moments import moments_of
from tilewright.passes.tensor.sums import split_sums

NETWORK = """module @m {{
  tensor.func @main(%x: {dtype}[32, 8, 16, 8]) -> f32[8], f32[8] {{
    %0 = tensor.reduce(%x, par = (c: 8), red = ({red}), reads = [[n, y, x, c]]) : f32[8] {{
      ^(%a: {dtype}, %acc: f32)
      %w = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%w, %acc) : f32
      scalar.yield(%s)
    }}
    %1 = tensor.map(%0, par = (c: 8), reads = [[c]]) : f32[8] {{
      ^(%a: f32)
      %n = scalar.const(value = {count}, dtype = "f32") : f32
      %m = scalar.div(%a, %n) : f32
      scalar.yield(%m)
    }}
    %2 = tensor.reduce({operands}, par = (c: 8), red = ({red}), reads = [{reads}]) : f32[8] {{
      ^({params}, %acc: f32)
      %w = scalar.cast(%a, dtype = "f32") : f32
      %d = scalar.sub(%w, %m) : f32
      %s = scalar.fma(%d, %d, %acc) : f32
      scalar.yield(%s)
    }}
    tensor.return(%1, %2)
  }}
}}"""


def network(dtype="bf16", count=4096.0, swapped=False, at="n, y, x, c"):
    pairs = [("%x", f"[{at}]", f"%a: {dtype}"), ("%1", "[c]", "%m: f32")]
    operands, reads, params = (", ".join(part) for part in zip(*pairs[:: -1 if swapped else 1], strict=True))
    names = {"dtype": dtype, "count": count, "operands": operands, "reads": reads, "params": params}
    return tw.parse(NETWORK.format(red="n: 32, y: 8, x: 16", **names))


@pytest.fixture(autouse=True)
def cut_what_is_small(monkeypatch):
    monkeypatch.setattr(split_sums, "GAIN", 100.0)


def in_parts(module):
    return run_pipeline(module, Pipeline.parse("split-sums"), PassContext(target="cuda:sm_90a:h200"))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("data", ["normal", "far from zero", "one far element", "first rows far", "constant"])
def test_both_moments_are_exact(data, swapped):
    module = network(swapped=swapped)
    made = in_parts(module)
    names = [op.name for op in made.main.body.ops]
    assert names.count("tensor.reduce") == 4  # two of parts, two that add them
    x = np.random.default_rng(3).standard_normal((32, 8, 16, 8))
    x += 50.0 * (data == "far from zero")
    x[0, 0, 0] += 1e3 * (data == "one far element")
    x[:, 0] += 1e3 * (data == "first rows far")
    x = (x * (data != "constant") + 3.0 * (data == "constant")).astype(ml_dtypes.bfloat16)
    exact = x.astype(np.float64).reshape(-1, 8)
    mean, squares = tw.interpret(made, x)
    np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6, atol=1e-6 * np.abs(exact).max())
    wanted = ((exact - exact.mean(0)) ** 2).sum(0)
    # a first element 1,000 deviations away costs what the bound says: 129 times the error of a chain of 128
    far = data in ("one far element", "first rows far")
    np.testing.assert_allclose(squares, wanted, rtol=1e-3 if far else 1e-5, atol=0)


@pytest.mark.parametrize("other", [{"count": 4095.0}, {"at": "31 - n, y, x, c"}])
def test_other_sums_are_none(other):
    """Another divisor, or elements in another order."""
    assert not list(moments_of(network(**other).main))
    assert len(list(moments_of(network().main))) == 1


def test_a_sum_that_others_read_stays():
    module = network()
    *ops, end = module.main.body.ops
    kept = end.with_operands((ops[0].result, ops[2].result))
    module = module.with_funcs((module.main.with_body(module.main.body.with_ops((*ops, kept))),))
    x = np.random.default_rng(4).standard_normal((32, 8, 16, 8)).astype(ml_dtypes.bfloat16)
    for got, wanted in zip(tw.interpret(in_parts(module), x), tw.interpret(module, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
