"""The service that passes ask for costs: `PassContext.estimator`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Level, Module, Op, Value
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.estimation.algorithms import algorithm_cost, kernels_of
from tilewright.passes.estimation.products import product_s
from tilewright.passes.framework.context import AlgorithmCost, Estimator
from tilewright.passes.pipelines import ESTIMATES


class KernelEstimator:
    """Makes kernels of pieces by the pipelines of `ESTIMATES` and adds up their estimates."""

    def algorithm_cost(
        self, op: Op, algorithm: str, hardware: Hardware, *, constant_weight: bool
    ) -> AlgorithmCost:
        """See `Estimator`."""
        return algorithm_cost(op, algorithm, hardware, constant_weight=constant_weight)

    def product_s(self, op: Op, hardware: Hardware, *, tf32: bool = False) -> float:
        """See `Estimator`."""
        return product_s(op, hardware, tf32=tf32)

    def program_s(self, params: Sequence[Value], ops: Sequence[Op], hardware: Hardware) -> float:
        """See `Estimator`."""
        return kernels_of(params, ops, 0, hardware).estimate_s()

    def stored_kernels(self, module: Module, ctx: PassContext) -> Module:
        """See `Estimator`."""
        graph = module.main.level is Level.GRAPH
        return run_pipeline(module, ESTIMATES["stored of a graph" if graph else "stored"], ctx)

    def kernel(self, func: Func, ctx: PassContext) -> Func:
        """See `Estimator`."""
        return _after(ESTIMATES["kernel"], func, ctx)

    def canonical(self, func: Func, ctx: PassContext) -> Func:
        """See `Estimator`."""
        return _after(ESTIMATES["canonical"], func, ctx)


def _after(pipeline: Pipeline, func: Func, ctx: PassContext) -> Func:
    """A function after passes of functions, without the checks and instruments that modules get."""
    for p in pipeline:
        func = p.definition.run(func, ctx, **dict(p.options))
    return func


ESTIMATOR: Estimator = KernelEstimator()
