"""A graph-level module as a PyTorch module: one traced graph of calls, weights as parameters.

Batch norms stay calls of their own. A bias belongs to its product; x * sigmoid(x), the erf form of GELU and,
where asked for, attention are one call: as torchvision and the transformers library write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir import Block, Func, Module, Op, UnsupportedError, Value
from tilewright.ir.types import FLOATS
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.tools.torch_peer.fusions import FUSED, FusedCalls
from tilewright.tools.torch_peer.program import COMBINED, FOLD, Call, combined_calls
from tilewright.tools.torch_peer.rules import RULES, Rule

_RULES = {**RULES, **COMBINED, **FUSED}


def _batch_norm_of_batch(torch: Any, x: Sequence[Any], op: Op) -> Any:
    """Statistics of the batch; the running ones, which are buffers, follow with PyTorch's momentum of 0.1."""
    data, gamma, beta, mean, var = x
    # PyTorch's kernels on GPUs take both vectors or none.
    gamma = gamma if op["scale"] else torch.ones_like(gamma)
    beta = beta if op["center"] else torch.zeros_like(beta)
    return torch.nn.functional.batch_norm(data, mean, var, gamma, beta, True, 0.1, op["epsilon"])


#: ops that do something else in training
_IN_TRAINING = {
    "graph.batch_norm": _batch_norm_of_batch,
    "graph.dropout": lambda torch, x, op: torch.nn.functional.dropout(x[0], op.number("rate")),
}


def torch_module(
    module: Module, *, dtype: str = "float32", attention: bool = False, training: bool = False
) -> Any:
    """A `torch.fx.GraphModule` on the CPU that computes @main with floats of `dtype` (a PyTorch name).

    Takes tensors in the order of the inputs, floats already in `dtype`, and returns a list. attention: as one
    call where the graph has it. training: batch norms take statistics of the batch, dropout drops, and the
    module's `parameters` (or what folding made of them) want gradients; all other constants are buffers.
    Raises UnsupportedError listing every op without a rule.
    """
    import torch

    folded, fused = fused_calls(module, attention=attention, training=training)
    graph = torch.fx.Graph()
    build = _Build(torch, graph, getattr(torch, dtype), _RULES | _IN_TRAINING if training else _RULES)
    trainable = _trainable(module, folded) if training else set()
    constant_ops = {op.result: str(op["name"]) for op in folded.main.body.ops if op.name == "graph.constant"}
    for number, p in enumerate(folded.main.params):
        build.values[p] = build.proxy(graph.placeholder(f"x{number}"))
    attributes: dict[str, Any] = {}
    for number, (value, array) in enumerate(fused.constants.items()):
        linear = value in fused.linear_weights
        attributes[f"w{number}"] = build.weight(array, linear=linear, trainable=value in trainable)
        if training and value not in trainable:
            attributes[f"w{number}"] = attributes[f"w{number}"].data
        build.values[value] = build.proxy(graph.create_node("get_attr", f"w{number}"))
    for call in fused.calls:
        build.call(call)
    graph.output([build.values[v].node for v in fused.returned])
    graph.eliminate_dead_code()
    made = torch.fx.GraphModule(attributes, graph).train(training)
    made.meta["constant_names"] = {
        f"w{number}": constant_ops[value]
        for number, value in enumerate(fused.constants)
        if value not in fused.linear_weights
    }
    return made


def constant_names(net: Any) -> dict[str, str]:
    """Names of constants in the graph by the names of the module's parameters that have their shape."""
    return dict(net.meta["constant_names"])


def _trainable(module: Module, folded: Module) -> set[Value]:
    """Values of constants that are parameters of `module`, or were made of its constants by folding."""
    names = module.get("parameters", ())
    assert isinstance(names, tuple)
    return {
        op.result
        for op in folded.main.body.ops
        if op.name == "graph.constant"
        and op.result.tensor.dtype in FLOATS
        and (op["name"] in names or op["name"] not in module.constants)
    }


def fused_calls(module: Module, *, attention: bool, training: bool = False) -> tuple[Module, FusedCalls]:
    """The module with constants folded, and its calls; raises UnsupportedError."""
    folded = _folded(module, _shared_parameters(module) if training else ())
    ops = folded.main.body.ops
    constants = {op.result: folded.constants[str(op["name"])] for op in ops if op.name == "graph.constant"}
    calls = combined_calls(ops[:-1])
    fused = FusedCalls(calls, ops[-1].operands, constants, attention=attention, training=training)
    unknown = sorted({name for name, _, _ in fused.calls} - _RULES.keys())
    if unknown:
        raise UnsupportedError(f"no PyTorch rule for {', '.join(unknown)}", where=f"@{module.name}")
    return folded, fused


def _shared_parameters(module: Module) -> list[str]:
    """Parameters that several operands read: what folding made of them would be trained apart from them."""
    names = {op.result: str(op["name"]) for op in module.main.body.ops if op.name == "graph.constant"}
    reads = Counter(names[v] for op in module.main.body.ops for v in op.operands if v in names)
    return [n for n in module.parameters if reads[n] > 1]


def _folded(module: Module, kept: Sequence[str]) -> Module:
    """The module with constants folded, but for those of the names `kept`."""
    inputs, results = len(module.main.params), len(module.main.result_types)
    folded = run_pipeline(promoted(module, kept), Pipeline.parse(FOLD), PassContext())
    main = folded.main
    *ops, end = main.body.ops
    state = [Op("graph.constant", (), (("name", p.hint),), (p,)) for p in main.params[inputs:]]
    body = Block(main.params[:inputs], (*state, *ops, end.with_operands(end.operands[:results])))
    func = Func(main.level, main.name, body, main.result_types[:results], module.main.attrs)
    return folded.with_funcs(tuple(func if f is main else f for f in folded.funcs))


class _Build:
    """The graph under construction: what each IR value is in it."""

    def __init__(self, torch: Any, graph: Any, dtype: Any, rules: Mapping[str, Rule]) -> None:
        self.torch, self.dtype, self.rules = torch, dtype, rules
        self.values: dict[Value, Any] = {}
        self._tracer = torch.fx.proxy.GraphAppendingTracer(graph)

    def proxy(self, node: Any) -> Any:
        """A proxy that records calls on a node."""
        return self.torch.fx.Proxy(node, self._tracer)

    def weight(self, array: np.ndarray, *, linear: bool, trainable: bool = False) -> Any:
        """A parameter of floats, or a buffer of integers or booleans."""
        tensor = self.torch.from_numpy((array[0].T if linear else array).copy(order="C"))
        if not tensor.is_floating_point():
            return tensor
        return self.torch.nn.Parameter(tensor.to(self.dtype), requires_grad=trainable)

    def call(self, call: Call) -> None:
        """Record one call."""
        name, op, operands = call
        x = [self.values[v] for v in operands]
        if name == "graph.cast" and op["dtype"] == "f32":
            made = x[0].to(self.dtype)
        else:
            made = self.rules[name](self.torch, x, op)
        if len(op.results) == 1:
            self.values[op.result] = made
            return
        for number, result in enumerate(op.results):
            self.values[result] = made[number]
