"""Pass fold-batch-norm: batch normalisation at inference is one scale and one shift per channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.types import TensorType, storage_dtype
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module


@register_pass(Level.GRAPH, requires={"shapes-known"})
def fold_batch_norm(module: Module, ctx: PassContext) -> Module:
    """Replace batch_norm with constant statistics by a multiplication and an addition per channel.

    rewrite:  graph.batch_norm(%x, gamma, beta, mean, var)
        -->   graph.add(graph.multiply(%x, s), beta - mean * s) with s = gamma / sqrt(var + epsilon)

    Scale and shift are computed in float64 and rounded once. `fold-scale-axis` then moves the scale into
    weights.
    """
    return rewrite_module(
        module, [Pattern("scale-and-shift", frozenset({"graph.batch_norm"}), _scale_and_shift)], level="graph"
    )


def _scale_and_shift(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    arrays = [rewriter.constant(v) for v in op.operands[1:]]
    constants = [a.astype(np.float64) for a in arrays if a is not None]
    if len(constants) < 4:
        return None
    gamma, beta, mean, var = constants
    scale = 1.0 / np.sqrt(var + float(op["epsilon"]))  # type: ignore[arg-type]
    scale = scale * gamma if op["scale"] else scale
    shift = (beta if op["center"] else 0.0) - mean * scale
    t = op.result.tensor
    axis = op.integer("axis") % t.rank
    statistics = rewriter.producer(op.operands[4])
    base = str(statistics["name"]) if statistics is not None else "batch_norm"
    y = rewriter.value("graph.multiply", op.operands[0], _vector(rewriter, f"{base}.scale", scale, t, axis))
    return [rewriter.value("graph.add", y, _vector(rewriter, f"{base}.shift", shift, t, axis))]


def _vector(rewriter: Rewriter, name: str, values: np.ndarray, t: TensorType, axis: int) -> Value:
    """A constant that broadcasts along every dimension after `axis`."""
    shape = (values.size, *(1,) * (t.rank - 1 - axis))
    array = values.reshape(shape).astype(storage_dtype(t.dtype))
    return rewriter.new_constant("graph", name, array, TensorType(t.dtype, shape))
