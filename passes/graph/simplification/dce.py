"""Pass dce: ops nobody needs and constants nobody names are dropped, at the graph and the tensor level."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.nodes import Block, Func, Level, Module, walk
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.dead_ops import live_ops

_LEVELS = (Level.GRAPH, Level.TENSOR)


@register_pass(*_LEVELS)
def dce(module: Module, ctx: PassContext) -> Module:
    """Drop ops without effects whose results are not used (in bodies too), and constants that no op names.

    Constants that state starts with stay: parameters with an update name them.

    rewrite: %0 = graph.relu(%x); graph.return(%x)   -->   graph.return(%x)
    """
    module = module.with_funcs(tuple(_without_dead_ops(f) if f.level in _LEVELS else f for f in module.funcs))
    named = frozenset(
        str(op["name"]) for f in module.funcs for op in walk(f.body) if op.name.endswith(".constant")
    )
    return module.with_constants(module.constants.only(named | frozenset(module.state_names)))


def _without_dead_ops(func: Func) -> Func:
    return func.with_body(_live_block(func.body))


def _live_block(block: Block) -> Block:
    """Outer ops first: what a dropped body used may then be dropped too."""
    ops = []
    for op in live_ops(block):
        body = _live_block(op.body) if op.body is not None else None
        ops.append(op if body is op.body else replace(op, body=body))
    return block.with_ops(tuple(ops))
