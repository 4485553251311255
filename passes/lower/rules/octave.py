"""Octave convolution, part by part."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Value
from tilewright.ir.graph_ops.octave import octave_parts
from tilewright.passes.lower.lowering import RULES, lowering


@lowering("graph.octave_conv2d")
def octave_conv2d(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The tensor ops of the graph ops it stands for."""
    parts = Builder(b.loc)
    results = octave_parts(parts.emit, op.operands, op.attributes)
    env = dict(zip(op.operands, x, strict=True))
    for part in parts.ops:
        lowered = RULES[part.name](b, part, [env[v] for v in part.operands])
        env.update(zip(part.results, lowered, strict=True))
    return [env[r] for r in results]
