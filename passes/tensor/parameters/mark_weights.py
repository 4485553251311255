"""Pass mark-weights: products know which of their factors are constants, which can be stored in any order."""

from __future__ import annotations

from tilewright.ir import Func, Level, Module
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS, constant_positions


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def mark_weights(module: Module, ctx: PassContext) -> Module:
    """List the constant parameters of every kernel around a contraction.

    rewrite:  tensor.func @dense(%x, %w)   -->   tensor.func @dense(%x, %w, weights = [1])

    `choose-parameters` then counts on weights in the order that suits a kernel best, which `pack-weights`
    gives them. What is not listed stays as it lies.
    """
    positions = constant_positions(module)
    return module.with_funcs(tuple(_marked(f, positions.get(f.name, ())) for f in module.funcs))


def _marked(kernel: Func, constant: tuple[int, ...]) -> Func:
    products = any(op.name == "tensor.contract" for op in kernel.body.ops)
    if kernel.name == "main" or not products or kernel.get(WEIGHTS) == constant:
        return kernel
    return kernel.with_attrs(**{WEIGHTS: constant})
