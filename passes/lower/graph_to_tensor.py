"""Lowers the graph level to the tensor level, one rule per op."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Builder, Func, Level, UnsupportedError, Value, op_def
from tilewright.passes import PassContext, register_pass
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.lowering import RULES, nothing


@register_pass(Level.GRAPH, to=Level.TENSOR, requires={"shapes-known"}, establishes={"no-graph-ops"})
def graph_to_tensor(func: Func, ctx: PassContext) -> Func:
    """Express every graph op by iteration domains, reads and scalar bodies.

    rewrite:  %y = graph.relu(%x)   -->   %y = tensor.map(%x, par = ..., reads = ...) { max(a, 0) }

    Results without elements need no rule, but for ops that also do something for others.

    Raises UnsupportedError that lists every op without a rule.
    """
    missing = sorted({op.name for op in func.body.ops} - RULES.keys() - {"graph.constant", "graph.return"})
    if missing:
        first = next(op for op in func.body.ops if op.name in missing)
        raise UnsupportedError(
            f"no lowering rule for {', '.join(missing)}", where=first.loc or f"@{func.name}"
        )
    b = Builder()
    env: dict[Value, Value] = {p: p for p in func.params}
    for op in func.body.ops:
        operands = [env[v] for v in op.operands]
        with b.at(op.loc):
            if op.name == "graph.constant":
                results = b.emit(
                    "tensor.constant", (), op.attributes, types=[op.result.type], hint=op.result.hint
                )
            elif op.name == "graph.return":
                results = b.emit("tensor.return", operands)
            elif op.results and not any(r.tensor.size for r in op.results) and not op_def(op.name).effects:
                results = tuple(nothing(b, r.tensor) for r in op.results)
            else:
                results = tuple(RULES[op.name](b, op, operands))
        env.update(zip(op.results, results, strict=True))
    return replace(func, level=Level.TENSOR, body=b.block(func.params))
