"""Pass form-group-norm: an instance norm of channels that are reshaped to groups becomes one op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def form_group_norm(module: Module, ctx: PassContext) -> Module:
    """Write an instance norm between two reshapes, which make groups of channels and undo that, as one op.

    rewrite:  graph.reshape(graph.instance_norm(graph.reshape(%x, newshape = [n, g, -1]), %scale, %bias),
                            newshape = shape of %x)
        -->   graph.group_norm(%x, graph.repeat(%scale, channels / g), graph.repeat(%bias, channels / g),
                               num_groups = g)

    ONNX before opset 18 has group norms in no other form. The reshape, in which a group is one run of memory,
    would keep the channels outermost in all that reads and makes %x.
    """
    return rewrite_module(
        module, [Pattern("group-norm", frozenset({"graph.reshape"}), _formed)], level="graph"
    )


def _formed(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    norm = rewriter.producer(op.operands[0])
    if norm is None or norm.name != "graph.instance_norm" or rewriter.uses(norm.result) != 1:
        return None
    view = rewriter.producer(norm.operands[0])
    if view is None or view.name != "graph.reshape":
        return None
    x, shape = view.operands[0], op.result.tensor.shape
    grouped = norm.operands[0].tensor.shape
    axis = norm.integer("axis") % len(grouped)
    if x.tensor.shape != shape or len(shape) < 3 or axis != 1 or grouped[0] != shape[0]:
        return None
    groups = grouped[1]
    if not groups or shape[1] % groups:
        return None
    scale, bias = norm.operands[1:]
    with rewriter.builder.at(norm.loc):
        scale, bias = norm.operands[1:]
        affine = [_per_channel(v, shape[1] // groups, rewriter) for v in (scale, bias)]
        return rewriter.emit(
            "graph.group_norm",
            [x, *affine],
            {
                "num_groups": groups,
                "axis": 1,
                "epsilon": norm["epsilon"],
                "scale": bool(norm["scale"]) and not _is_all(scale, 1.0, rewriter),
                "center": bool(norm["center"]) and not _is_all(bias, 0.0, rewriter),
            },
        )


def _per_channel(v: Value, channels: int, rewriter: Rewriter) -> Value:
    """A value per group as one per channel."""
    return v if channels == 1 else rewriter.value("graph.repeat", v, repeats=channels, axis=0)


def _is_all(v: Value, number: float, rewriter: Rewriter) -> bool:
    """Return whether a value is a constant that holds one number alone."""
    array = rewriter.constant(v)
    return array is not None and bool(np.all(array == number))
