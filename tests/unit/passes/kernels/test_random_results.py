"""Results beside random words: threads have as many neighbours as a call has words for, and write vectors."""

from functools import cache

import numpy as np
import pytest
from attention_training import context, emulated, exact, inputs_of, kernels_of, templates, thread_form
from decision_samples import with_template

from tilewright.ir import parse
from tilewright.ir.nodes import walk
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.analysis.shared_work import LANES, LONG_LANES, lanes_of
from tilewright.passes.kernels.decision import with_parameters
from tilewright.passes.kernels.matrix.parameters import MatrixParameters, MatrixTile, Warps
from tilewright.passes.kernels.matrix.problem import laid_results, matrix_problem, result_work
from tilewright.passes.kernels.matrix.view import matrix_view

TEXT = """module @m { graph.func @main(%x: f16[64, 64], %w: f16[64, 64]) -> f16[64, 64] {
  %0 = graph.dense(%x, %w) : f16[64, 64]
  %1 = graph.dropout(%0, rate = 0.25) : f16[64, 64]
  graph.return(%1) } }"""
PLAN = MatrixParameters(
    MatrixTile(64, 64, 64), Warps(4, 1), stages=2, channel="c", raster=1, engine="wgmma"
)  # fmt: skip


@cache
def dropped():
    """A product with dropout behind it, and its kernels, the product on tensor cores."""
    module = run_pipeline(parse(TEXT), Pipeline.parse("training-mode"), context())
    kernels = kernels_of(module)
    product = next(f for f in kernels.funcs if any(op.name == "tensor.contract" for op in f.body.ops))
    return module, kernels, with_template(product, "matrix", PLAN)


def stored_lanes(func):
    """Lanes of what a thread writes to global memory at a time."""
    stores = [op for op in walk(func.body) if op.name == "thread.store"]
    return {getattr(s.operands[0].type, "lanes", 1) for s in stores if s.operands[1].tensor.space == "global"}


def replaced(kernels, kernel):
    return kernels.with_funcs(tuple(kernel if f.name == kernel.name else f for f in kernels.funcs))


@pytest.mark.emulator
@pytest.mark.parametrize("how", [{}, {"transport": "engine", "copiers": 4}])
def test_threads_have_the_neighbours_of_a_call(how):
    module, kernels, product = dropped()
    product = with_parameters(product, **how)
    kernels = replaced(kernels, product)
    assert stored_lanes(thread_form(kernels, product)) == {LONG_LANES}
    inputs = inputs_of(module)
    got, wanted = emulated(kernels, inputs)[0], exact(module, inputs)[0]
    assert ((got == 0) == (wanted == 0)).all()
    assert np.abs(got - wanted).max() < 1e-3 * np.abs(wanted).max()


def test_what_neighbours_share_counts_once():
    after = dropped()[2].body.ops[1:-1]
    each, shared, paired = result_work(after)
    assert lanes_of(after) == LONG_LANES
    assert each < 20 < shared < 60  # a call is some 70 instructions, of which four results are half
    assert paired == 4 * shared  # pairs of fragments need a call each
    plain = after[:1]
    assert lanes_of(plain) == LANES
    assert result_work(plain)[1:] == (0, 0)


def test_products_that_draw_lay_no_results_down_out_of_fragments():
    """Four threads with pairs would make the call that one with a vector makes."""
    _, _, product = dropped()
    contract = product.body.ops[0]
    view = matrix_view(product, contract)
    assert matrix_problem(product, view).laid is None
    assert laid_results(product, view, None) is not None


@pytest.mark.emulator
def test_masks_are_written_a_call_at_a_time():
    text = """module @m { graph.func @main(%s: u32[2], %t: u32[], %limit: u16[]) -> bool[16, 256] {
      %0 = graph.random_bits(%s, %t, shape = [16, 256], bits = 16, stream = 0, whole = [], origin = [])
        : u16[16, 256]
      %1 = graph.less(%0, %limit) : bool[16, 256]
      graph.return(%1) } }"""
    module = parse(text)
    kernels = kernels_of(module)
    assert templates(kernels) == ["map"]
    kernel = with_parameters(kernels.funcs[0], vec=8, items=1)
    assert stored_lanes(thread_form(kernels, kernel)) == {8}
    inputs = inputs_of(module)
    inputs[2] = np.asarray(30000, np.uint16)
    (got,), (wanted,) = emulated(replaced(kernels, kernel), inputs), exact(module, inputs)
    assert (got == wanted).all()
    assert 0 < got.mean() < 1
