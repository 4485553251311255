"""A graph-level module as a PyTorch module: one traced graph of calls, weights as parameters.

Batch norms stay calls of their own; x * sigmoid(x) and the erf form of GELU are one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Module, Op, UnsupportedError, Value
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.tools.torch_peer import RULES
from tilewright.tools.torch_program import COMBINED, FOLD, combined_calls


def torch_module(module: Module, *, dtype: str = "float32") -> Any:
    """A `torch.fx.GraphModule` on the CPU that computes @main with floats of `dtype` (a PyTorch name).

    Takes tensors in the order of the inputs, floats already in `dtype`, and returns a list. Raises
    UnsupportedError listing every op without a rule.
    """
    import torch

    folded = run_pipeline(module, Pipeline.parse(FOLD), PassContext())
    ops = folded.main.body.ops
    calls = combined_calls(ops[:-1])
    unknown = sorted({name for name, _, _ in calls} - RULES.keys() - COMBINED.keys())
    if unknown:
        raise UnsupportedError(f"no PyTorch rule for {', '.join(unknown)}", where=f"@{module.name}")
    weights = {op.result: op for op in ops if op.name == "graph.constant"}
    graph = torch.fx.Graph()
    build = _Build(torch, graph, getattr(torch, dtype))
    for number, p in enumerate(folded.main.params):
        build.values[p] = build.proxy(graph.placeholder(f"x{number}"))
    attributes: dict[str, Any] = {}
    for number, (value, op) in enumerate(weights.items()):
        name = f"w{number}"
        attributes[name] = build.weight(folded.constants[str(op["name"])].copy())
        build.values[value] = build.proxy(graph.create_node("get_attr", name))
    for name, op, operands in calls:
        build.call(name, op, operands)
    graph.output([build.values[v].node for v in ops[-1].operands])
    made = torch.fx.GraphModule(attributes, graph)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made.eval()


class _Build:
    """The graph under construction: what each IR value is in it."""

    def __init__(self, torch: Any, graph: Any, dtype: Any) -> None:
        self.torch, self.dtype = torch, dtype
        self.values: dict[Value, Any] = {}
        self._tracer = torch.fx.proxy.GraphAppendingTracer(graph)

    def proxy(self, node: Any) -> Any:
        """What calls on a node are recorded through."""
        return self.torch.fx.Proxy(node, self._tracer)

    def weight(self, array: Any) -> Any:
        """A parameter of floats, or a buffer of integers or booleans."""
        tensor = self.torch.from_numpy(array)
        if not tensor.is_floating_point():
            return tensor
        return self.torch.nn.Parameter(tensor.to(self.dtype), requires_grad=False)

    def call(self, name: str, op: Op, operands: Sequence[Value]) -> None:
        """Record one call."""
        x = [self.values[v] for v in operands]
        if name == "graph.cast" and op["dtype"] == "f32":
            made = x[0].to(self.dtype)
        else:
            made = {**RULES, **COMBINED}[name](self.torch, x, op)
        if len(op.results) == 1:
            self.values[op.result] = made
            return
        for number, result in enumerate(op.results):
            self.values[result] = made[number]
