"""Pass fold-constants: graph ops on constants become constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, storage_dtype
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: ops that repeat what they read, or count: cheap to compute where their results are used
REPEATING = frozenset(f"graph.{n}" for n in ("arange", "broadcast_to", "tile", "repeat", "one_hot"))
#: bytes up to which their results are constants all the same, and how many times their operands
STORED_BYTES, STORED_TIMES = 65_536, 4


@register_pass(Level.GRAPH, requires={"shapes-known"})
def fold_constants(module: Module, ctx: PassContext, *, max_elements: int = 16_777_216) -> Module:
    """Evaluate ops whose operands are all constants, where the results hold at most `max_elements` elements.

    A new constant is named after the first constant it is made from and the op. Ops that only repeat data or
    count stay where their results are large: reading those from memory takes longer than making them.

    rewrite: graph.add(graph.constant(name = "a"), graph.constant(name = "b"))
        -->   graph.constant(name = "a.add")
    """

    def fold(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return _fold(op, rewriter, max_elements)

    names = {op.name for f in module.funcs for op in f.body.ops if op_def(op.name).evaluate is not None}
    foldable = frozenset(n for n in names if n.startswith("graph.") and not n.endswith(".constant"))
    return rewrite_module(module, [Pattern("fold", foldable, fold)], level="graph")


def blows_up(op: Op) -> bool:
    """True where the results of an op are large, and much larger than its operands."""
    made, used = (sum(v.tensor.nbytes for v in values) for values in (op.results, op.operands))
    return made > max(STORED_BYTES, STORED_TIMES * used)


def _fold(op: Op, rewriter: Rewriter, max_elements: int) -> Sequence[Value] | None:
    definition = op_def(op.name)
    types = [r.type for r in op.results if isinstance(r.type, TensorType)]
    if definition.effects or definition.evaluate is None or sum(t.size for t in types) > max_elements:
        return None
    if op.name in REPEATING and blows_up(op):
        return None
    arrays = [rewriter.constant(v) for v in op.operands]
    constants = [a for a in arrays if a is not None]
    if len(constants) < len(arrays):
        return None
    short = op.name.partition(".")[2]
    source = rewriter.producer(op.operands[0]) if op.operands else None
    base = f"{source['name']}.{short}" if source is not None else short
    values = []
    for i, (t, result) in enumerate(zip(types, definition.evaluate(constants, dict(op.attrs)), strict=True)):
        array = np.ascontiguousarray(result, dtype=storage_dtype(t.dtype)).reshape(np.shape(result))
        if array.shape != t.shape:
            raise ValueError(f"{op.name} evaluates to shape {array.shape} where its type says {t}")
        values.append(rewriter.new_constant("graph", base if i == 0 else f"{base}.{i}", array, t))
    return values
