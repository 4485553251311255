"""Pass expand-norms: norms of a training step are written as the ops that their gradients are made of."""

from __future__ import annotations

from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.graph_ops.normalisation import channel_groups
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.gradients.registry import accumulated, standardised
from tilewright.passes.rewriting.values import replace_in_op

_NORMS = frozenset({"graph.layer_norm", "graph.instance_norm", "graph.group_norm"})


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def expand_norms(module: Module, ctx: PassContext) -> Module:
    """Write layer, instance and group norms of a forward pass as means, differences and products.

    rewrite:  %y = graph.layer_norm(%x, %gamma, %beta)
        -->   %c = graph.subtract(%x, graph.mean(%x)); %r = graph.rsqrt(graph.mean(%c * %c) + epsilon)
              %y = graph.add(graph.multiply(graph.multiply(%c, %r), %gamma), %beta)

    They are the ops that the gradients of these norms begin with, so that `cse` leaves one of each: the
    backward pass reads the statistics of the forward pass in place of computing them again. Only functions
    with a backward pass change.
    """
    main = module.main
    norms = {op for op in forward_ops(main) if op.name in _NORMS}
    if not norms:
        return module
    w = GraphWriter(module.constants)
    new: dict[Value, Value] = {}
    for op in main.body.ops:
        if op not in norms:
            w.builder.append(replace_in_op(op, new))
            continue
        with w.at(op.loc):
            x, gamma, beta = (w.tensor(new.get(v, v)) for v in op.operands)
            new[op.result] = _expanded(op, x, gamma, beta).value
    func = main.with_body(main.body.with_ops(w.ops))
    funcs = tuple(func if f is main else f for f in module.funcs)
    return module.with_funcs(funcs).with_constants(w.constants)


def _expanded(op: Op, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The result of a norm; 16-bit floats are computed in float32, as in its gradient."""
    axis, epsilon = op.integer("axis") % x.rank, op.number("epsilon")
    if op.name == "graph.group_norm":
        split = channel_groups(x.type, axis, op.integer("num_groups"))
        axes = tuple(d for d in range(1, x.rank + 1) if d != axis)
        normal = standardised(accumulated(x).reshape(*split), axes, epsilon)[0].reshape(*x.shape)
    else:
        others = tuple(d for d in range(1, x.rank) if d != axis)
        axes = (axis,) if op.name == "graph.layer_norm" else others
        normal = standardised(accumulated(x), axes, epsilon)[0]
    if op["scale"]:
        normal = normal * accumulated(gamma).along(axis, x.rank)
    if op["center"]:
        normal = normal + accumulated(beta).along(axis, x.rank)
    return normal.cast(op.result.tensor.dtype)
