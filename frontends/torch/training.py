"""What an exported program says of training: dropout outlasts decompositions, training mode is taken off."""

from __future__ import annotations

from copy import copy, deepcopy
from functools import cache
from importlib import import_module
from typing import Any

#: the buffer of a batch norm that counts batches, which nothing else reads
_COUNTER = "num_batches_tracked"


def inference_form(program: Any) -> Any:
    """A copy of an exported program in which dropout is off and batch norms take their running statistics.

    The counters of batches, which batch norms keep and do not read, are left alone.
    """
    program = _copied(program)
    for node in list(program.graph.nodes):
        name = _name(node)
        if name == "dropout":
            _set_flag(node, 2, "train")
        elif name == "batch_norm" and node.args[3] is not None:
            _set_flag(node, 5, "training")
        elif name == "add_" and _counts_batches(node):
            program.graph.erase_node(node)
    program.graph_module.recompile()
    return program


def with_lasting_dropout(program: Any) -> Any:
    """The program with dropout that is off as an operator of ours: torch would drop it as doing nothing."""
    places = [i for i, node in enumerate(program.graph.nodes) if _is_off(node)]
    if not places:
        return program
    program = _copied(program)
    nodes = list(program.graph.nodes)
    for node in (nodes[i] for i in places):
        x, rate = node.args[:2]
        node.target = _lasting_dropout()
        node.args, node.kwargs = (x, float(rate)), {}
    program.graph_module.recompile()
    return program


def _is_off(node: Any) -> bool:
    return _name(node) == "dropout" and not any(node.args[2:]) and not any(node.kwargs.values())


@cache
def _lasting_dropout() -> Any:
    """The operator `tilewright::dropout(x, rate)`, which gives a copy of x."""
    torch = import_module("torch")

    def kept(x: Any, rate: float) -> Any:
        return x.clone()

    schema = "(Tensor x, float rate) -> Tensor"
    operator = torch.library.custom_op("tilewright::dropout", kept, mutates_args=(), schema=schema)
    operator.register_fake(lambda x, rate: torch.empty_like(x))
    return torch.ops.tilewright.dropout.default


def _copied(program: Any) -> Any:
    program = copy(program)
    program._graph_module = deepcopy(program.graph_module)
    return program


def _name(node: Any) -> str:
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _set_flag(node: Any, position: int, key: str) -> None:
    if key in node.kwargs:
        node.update_kwarg(key, False)
    elif len(node.args) > position:
        node.update_arg(position, False)


def _counts_batches(node: Any) -> bool:
    counter = node.args[0]
    return not node.users and counter.op == "placeholder" and str(counter.target).endswith(_COUNTER)
