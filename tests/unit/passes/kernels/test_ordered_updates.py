"""Ordered updates by several owners of a slice: who applies which, in which order, and what it costs."""

import numpy as np
import pytest
from decision_samples import with_template

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.costmodel.kernels.problem import LineProblem
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.ordered.choose_lines import choose_lines
from tilewright.passes.kernels.ordered.lowering import elements_together


def program(updates, rows, columns, width):
    """Rows of `width` elements added to, or taken from, the first columns of rows that indices name."""
    return parse(f"""module @net {{
      tensor.func @main(%x: f32[{rows}, {columns}], %u: f32[{updates}, {width}], %i: i32[{updates}])
          -> f32[{rows}, {columns}] {{
        %0 = tensor.scatter(%x, %u, %i, par = (n: {updates}, c: {width}), reads = [[n, c], [n]],
          at = [i0, c]) : f32[{rows}, {columns}] {{
          ^(%old: f32, %new: f32) %h = scalar.const(value = 0.5, dtype = "f32") : f32
          %m = scalar.mul(%old, %h) : f32 %s = scalar.add(%m, %new) : f32 scalar.yield(%s) }}
        tensor.return(%0)
      }}
    }}""")


@pytest.mark.parametrize("target", [pytest.param("emulator", marks=pytest.mark.emulator), "opencl"])
@pytest.mark.parametrize(
    ("sizes", "owners"),
    [((24, 9, 64, 64), 4), ((7, 5, 12, 9), 2), ((16, 3, 128, 100), 16), ((6, 40, 1, 1), 8)],
    ids=str,
)
def test_owners_apply_updates_in_order(sizes, owners, target):
    updates, rows, columns, width = sizes
    module = program(*sizes)
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    kernels = run_pipeline(module, Pipeline.parse("fuse-kernels, choose-parameters"), context)
    params = {"threads": 32, "owners": owners}
    forced = (f if f.name == "main" else with_template(f, "scatter", params) for f in kernels.funcs)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    u = rng.standard_normal((updates, width)).astype(np.float32)
    i = rng.integers(-1, rows + 1, updates).astype(np.int32)  # some name no row
    (wanted,) = tw.interpret(module, x, u, i)
    with tw.compile(kernels.with_funcs(tuple(forced)), target) as exe:
        np.testing.assert_allclose(exe(x, u, i)[0], wanted, rtol=1e-6, atol=1e-6)


def test_owners_must_be_a_power_of_two():
    module = program(8, 5, 4, 4)
    context = PassContext(target="opencl", hardware=resolve_target("opencl").hardware)
    kernels = run_pipeline(module, Pipeline.parse("fuse-kernels, choose-parameters"), context)
    params = {"threads": 32, "owners": 3}
    forced = (f if f.name == "main" else with_template(f, "scatter", params) for f in kernels.funcs)
    with pytest.raises(InputError, match="power of two, got 3"):
        tw.compile(kernels.with_funcs(tuple(forced)), "opencl")


@pytest.mark.parametrize(("inner", "together"), [(1, 1), (63, 1), (64, 2), (96, 3), (128, 4), (768, 4)])
def test_neighbouring_threads_keep_to_neighbouring_elements(inner, together):
    assert elements_together(inner) == together


def test_rows_of_an_embedding_have_many_owners():
    hardware = load_hardware("cuda:sm_90a")
    size = 30522 * 768 * 4
    choice = choose_lines(LineProblem(768, 4096, 30522, size, size, 4096 * 768), hardware)
    assert choice.parameters.owners >= 16
    assert choice.bound.seconds < choice.estimate_s < 4 * choice.bound.seconds
