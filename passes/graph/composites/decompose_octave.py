"""Pass decompose-octave: octave convolutions as the convolutions they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Level, Module, Op, Value
from tilewright.ir.graph_ops.octave import octave_parts
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module


@register_pass(Level.GRAPH, requires={"shapes-known"})
def decompose_octave(module: Module, ctx: PassContext) -> Module:
    """Replace octave convolutions by their parts, so that passes on convolutions see them.

    rewrite:  %h, %l = graph.octave_conv2d(%high, %low, %hh, %hl, %lh, %ll)
        -->   %h = graph.add(graph.conv2d(%high, %hh), graph.repeat(graph.repeat(graph.conv2d(%low, %lh))))
              %l = graph.add(graph.conv2d(%low, %ll), graph.conv2d(graph.avg_pool2d(%high), %hl))
    """
    patterns = [Pattern("parts", frozenset({"graph.octave_conv2d"}), _parts)]
    return rewrite_module(module, patterns, level="graph")


def _parts(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    return octave_parts(rewriter.emit, op.operands, dict(op.attrs))
