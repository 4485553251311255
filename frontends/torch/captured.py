"""Graphs that torch.compile captured: random draws become inputs, and what is not computed is no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tilewright.frontends.torch.survey import draws

#: operators whose numbers depend on the shapes of their operands, never on their values
_DRAWS = ("bernoulli.p", "rand.default", "randn.default", "rand_like.default", "randn_like.default")
#: draws new random numbers of torch's generator
Draw = Callable[[], Any]


def take_out_draws(graph: Any) -> list[Draw]:
    """Make random numbers further inputs of a captured graph; what draws them, in the order of the inputs.

    Where one draw depends on values, all stay where they are: torch's order of draws is one order.
    """
    torch = import_module("torch")
    aten = torch.ops.aten
    named = (name.split(".") for name in _DRAWS)
    targets = {getattr(getattr(aten, packet), overload) for packet, overload in named}
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and draws(n)]
    arguments = {n: [_fixed(torch, a) for a in n.args] for n in nodes}
    if any(n.target not in targets or None in arguments[n] or _varies(torch, n) for n in nodes):
        return []
    out: list[Draw] = []
    inputs = list(graph.graph.find_nodes(op="placeholder"))
    last = inputs[-1] if inputs else None
    for node in nodes:
        place = graph.graph.inserting_before(next(iter(graph.graph.nodes)))
        if last is not None:
            place = graph.graph.inserting_after(last)
        with place:
            last = graph.graph.placeholder(f"random_{len(out)}")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
        graph.graph.erase_node(node)
        # in place, as dropout draws: the other form draws in row-major order
        target = aten.bernoulli_.float if node.target is aten.bernoulli.p else node.target
        out.append(_draw(target, arguments[node], dict(node.kwargs)))
    if out:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return out


def _varies(torch: Any, node: Any) -> bool:
    return any(isinstance(a, torch.fx.Node) for a in node.kwargs.values())


def _fixed(torch: Any, argument: Any) -> Callable[[], Any] | None:
    """What gives an argument of a draw: of a tensor only shape, dtype and device; none where it varies."""
    if not isinstance(argument, torch.fx.Node):
        return lambda: argument
    value = argument.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(type(n) is not int for n in value.shape):
        return None
    # the order of elements in memory is that in which they are drawn
    shape, strides, dtype, device = tuple(value.shape), value.stride(), value.dtype, value.device
    return lambda: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _draw(target: Any, arguments: list[Callable[[], Any] | None], options: dict[str, Any]) -> Draw:
    return lambda: target(*(a() for a in arguments if a is not None), **options)


@dataclass(frozen=True)
class Result:
    """One result of a captured graph: an input of the number `input`, the constant `value`, or computed."""

    computed: bool = False
    input: int | None = None
    value: Any = None


def take_out_results(graph: Any) -> list[Result]:
    """All results of a captured graph, which keeps those that it computes."""
    places = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    (output,) = graph.graph.find_nodes(op="output")
    kept, results = [], []
    for item in output.args[0]:
        if not hasattr(item, "op"):
            results.append(Result(value=item))
        elif item in places:
            results.append(Result(input=places[item]))
        else:
            results.append(Result(computed=True))
            kept.append(item)
    if len(kept) < len(results):
        output.args = (tuple(kept),)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return results
