"""Parts of kernels of maps: which results have blocks of their own, and that they compute the same."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.passes.kernels.kernel_problem import map_parts


def updates(points: int, count: int, *, shared: int = 1) -> tw.Module:
    """A kernel that adds multiples of a number to arrays of `points` elements: so many results of each."""
    arrays = range(-(-count // shared))
    params = ", ".join(["%n: f32[1]", *(f"%x{i}: f32[{points}]" for i in arrays)])
    types = ", ".join([f"f32[{points}]"] * count)
    maps = "".join(
        f"%y{i} = tensor.map(%x{i // shared}, %n, par = (i: {points}), reads = [[i], [0]]) : f32[{points}] {{"
        f'^(%a: f32, %b: f32) %c = scalar.const(value = {float(i)}, dtype = "f32") : f32 '
        f"%s = scalar.fma(%b, %c, %a) : f32 scalar.yield(%s) }}\n"
        for i in range(count)
    )
    results = ", ".join(f"%y{i}" for i in range(count))
    given = ", ".join(["%n", *(f"%x{i}" for i in arrays)])
    return tw.parse(f"""module @m {{
      tensor.func @main({params}) -> {types} {{
        {results} = tensor.call({given}, callee = @k) : {types}
        tensor.return({results})
      }}
      tensor.func @k({params}) -> {types} {{
        {maps}
        tensor.return({results})
      }}
    }}""")


def sizes(module: tw.Module) -> list[int]:
    return [len(part.body.ops[-1].operands) for part in map_parts(module["k"])]


@pytest.mark.parametrize(
    ("module", "results"),
    [
        pytest.param(updates(32, 5), [1] * 5, id="arrays of their own"),
        pytest.param(updates(32, 5, shared=5), [5], id="one array that all read"),
        pytest.param(updates(32, 5, shared=2), [2, 2, 1], id="arrays that two read"),
        pytest.param(updates(1 << 17, 3), [3], id="many points"),
        pytest.param(updates(1, 3), [3], id="numbers"),
    ],
)
def test_results_that_share_no_array_are_parts(module, results):
    assert sizes(module) == results


def test_each_has_blocks():
    sources = lower(updates(32, 5), resolve_target("cuda:sm_90a")).sources
    assert [s.grid for s in sources.values()] == [(5, 1, 1)]


@pytest.mark.parametrize("shared", [1, 2, 5])
def test_results_stay(shared):
    module = updates(24, 5, shared=shared)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.tensor.shape, np.float32) for p in module.main.params]
    with tw.compile(module, target="opencl", progress=False) as exe:
        for got, wanted in zip(exe(*inputs), tw.interpret(module, *inputs), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
