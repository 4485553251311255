"""Constant factors in an awkward order are counted as they will be packed, others as they lie."""

import numpy as np
import pytest
from decision_samples import parameters

import tilewright as tw
from tilewright.ir import Func, Level
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.view import matrix_view
from tilewright.passes.pipelines import official_stages

TARGET = "cuda:sm_90a"


def kernel_of(weights: str) -> Func:
    """The chosen kernel of a large product of %x and weights [c, n], given or constant."""
    given = ", %w: f16[1024, 2048]" if weights == "given" else ""
    constant = "" if given else '%w = graph.constant(name = "w") : f16[1024, 2048]'
    text = f"""module @m {{ graph.func @main(%x: f16[4096, 1024]{given}) -> f16[4096, 2048] {{
      {constant}
      %y = graph.matmul(%x, %w) : f16[4096, 2048]
      graph.return(%y)
    }} }}"""
    module = tw.ir.parse(text)
    if not given:
        module = module.with_constants(module.constants.updated({"w": np.ones((1024, 2048), np.float16)}))
    stages = official_stages(Level.GRAPH, "cuda").down_to(Level.TENSOR)
    done = run_pipeline(module, stages.whole, PassContext(TARGET))
    return next(f for f in done.funcs if any(op.name == "tensor.contract" for op in f.body.ops))


@pytest.mark.parametrize("weights", ["constant", "given"])
def test_only_constants_are_packed(weights):
    kernel = kernel_of(weights)
    op = next(op for op in kernel.body.ops if op.name == "tensor.contract")
    assert kernel["weights"] == ((1,) if weights == "constant" else ())
    assert parameters(kernel).engine == "wgmma"
    view = matrix_view(kernel, op)
    assert matrix_problem(kernel, view).second_rows == (weights == "constant")
