"""Kernels of rows and columns: a norm and its gradient as one walk on the emulator, and what is refused."""

import numpy as np
import pytest
from attention_training import emulated, templates

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.writing import NetworkWriter
from tilewright.ir import InputError, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import with_decision
from tilewright.passes.kernels.row_columns.lowering import lower_row_columns
from tilewright.passes.kernels.row_columns.space import choose_row_columns
from tilewright.passes.kernels.row_columns.view import rows_and_columns

TARGET = "cuda:sm_90a"
HARDWARE = load_hardware(TARGET)
KERNELS = """infer-shapes, fold-constants, cse, dce, graph-to-tensor, fold-constant-tensors, forward-copies,
cse, dce, drop-unit-dims, cse, dce, inline-scalars, inline-maps, fuse-kernels, join-column-sums{when=always},
choose-parameters"""


def normalised(*shape):
    """A residual, a bias, dropout and a norm: the second half of each part of a transformer's layer."""
    net = NetworkWriter(0)
    x, z = (net.input(name, "f32", *shape) for name in ("x", "z"))
    biased = net.w.op("bias_add", z, net.weight("b", shape[-1]), axis=-1)
    return net.module("m", [net.layer_norm(x + net.w.op("dropout", biased, rate=0.25), "norm", 1e-5)])


def test_a_norm_and_its_gradient_are_one_walk_and_a_sum_of_parts():
    """Rows of several threads that follow each other, three sums of columns, a width of no power of two."""
    shape = (3, 12, 160)
    step = tw.vjp(normalised(*shape), storage="f16")
    module = run_pipeline(step, Pipeline.parse(KERNELS), PassContext(TARGET, HARDWARE))
    assert sorted(templates(module)) == ["map", "row_columns", "rows_across"]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float16) for _ in range(3)]
    inputs += [np.asarray(module.constants[n]) for n in module.input_names[3:]]
    for got, wanted in zip(
        emulated(module, inputs), tw.interpret(step, *inputs, precision="fp64"), strict=True
    ):
        wanted = np.asarray(wanted, np.float64)
        assert np.linalg.norm(np.asarray(got, np.float64) - wanted) <= 1e-3 * np.linalg.norm(wanted)


SUMS = """tensor.func @k(%x: f32[4, 8, 64]) -> f32[4, 8, 64], f32[4, 2, 64] {{
    %0 = tensor.map(%x, par = (i: 4, j: 8, k: 64), reads = [[i, j, k]], fill = [none]) : f32[4, 8, 64] {{
      ^(%a: f32)
      %b = scalar.mul(%a, %a) : f32
      scalar.yield(%b)
    }}
    %1 = tensor.reduce(%0, par = (i: 4, q: 2, k: 64), red = (r: 4), init = [0.0], reads = [[i, {row}, k]],
                       fill = [none]) : f32[4, 2, 64] {{
      ^(%a: f32, %s: f32)
      %b = scalar.add(%a, %s) : f32
      scalar.yield(%b)
    }}
    tensor.return(%0, %1)
  }}"""


def kernel(row="q * 4 + r"):
    return parse(f"module @m {{\n  {SUMS.format(row=row)}\n}}").funcs[0]


def test_sums_over_parts_are_told_from_index_sets():
    view = rows_and_columns(kernel())
    assert view is not None
    assert (view.rows, view.columns, view.length, len(view.sums)) == ((4, 8), (64,), 4, 1)
    assert rows_and_columns(kernel("r * 2 + q")) is None  # every other row


def test_estimates_are_above_the_bound_and_parameters_that_do_not_fit_are_refused():
    chosen = choose_row_columns(kernel(), HARDWARE)
    assert chosen is not None
    decision = dict(chosen.attrs)["decision"]
    assert decision.cost.estimate_s > decision.cost.bound_s > 0
    three = decision.parameters.__class__(64, 3, 1)
    with pytest.raises(InputError, match="expected rows_per_block to divide 4 rows of a part, got 3"):
        lower_row_columns(with_decision(chosen, parameters=three))
