"""Looks over an exported program: all that cannot be imported is reported in one error, with places."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any

from tilewright.frontends.importing.findings import OPERATORS, Findings
from tilewright.frontends.torch.corrections.attention_forms import POSITIONS

TRAINING = (
    "operators in training mode (export the model after .eval(), or import the network that it trains: "
    "training=True, on the command line --training-mode)"
)
RANDOM = "random numbers"
DYNAMIC = "dimensions that are not constant (export without dynamic_shapes)"
MUTATION = "values that the program changes in place and keeps"
OUTPUTS = "outputs that are no tensors"
#: what to do about operators that a model need not use
_HINTS = {"_transformer_encoder_layer_fwd.default": "set torch.backends.mha.set_fastpath_enabled(False)"}
_STATELESS = ("USER_OUTPUT", "LOSS_OUTPUT")
#: operators that draw random numbers without torch's mark for them
_RANDOM = (
    "bernoulli",
    "exponential",
    "multinomial",
    "normal",
    "rand",
    "randint",
    "randn",
    "randperm",
    "uniform",
)
#: where an operator keeps its training flag
_TRAINING_FLAGS = {
    "dropout": 2, "native_dropout": 2, "alpha_dropout": 2, "feature_dropout": 2, "batch_norm": 5,
    "instance_norm": 5, "rrelu": 3, "lstm": 6, "gru": 6, "rnn_tanh": 6, "rnn_relu": 6,
}  # fmt: skip
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def survey(program: Any, known: Container[str] | None, *, training: bool = False) -> None:
    """Raise UnsupportedError naming all that stands in the way of importing a program, with its places.

    known: names of the operators that can be imported; None leaves them unchecked. training: attention may
    drop weights, as its translation does.
    """
    findings = Findings()
    _look_at_outputs(program, findings)
    for node in _nodes(program.graph_module):
        place = place_of(node)
        for text in _symbols(node):
            findings.add(DYNAMIC, text, place)
        if node.op != "call_function":
            continue
        name = operator_name(node)
        if _trains(node, name) or (not training and _drops_weights(node, name)):
            findings.add(TRAINING, name, place)
        elif draws(node):
            if node.users:
                findings.add(RANDOM, name, place)
        elif known is not None and name not in known:
            findings.add(OPERATORS, name + (f" ({_HINTS[name]})" if name in _HINTS else ""), place)
    findings.check("exported program")


def operator_name(node: Any) -> str:
    """The name TVM's importer knows a call by, such as `add.Tensor`."""
    return str(getattr(node.target, "__name__", node.target))


def place_of(node: Any) -> str:
    """The place in the model's source that a node comes from, else its name."""
    # Frames of code that torch generated tell nothing.
    frames = re.findall(r'File "([^"<]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    return f"{node.name} ({frames[-1][0]}:{frames[-1][1]})" if frames else str(node.name)


def draws(node: Any) -> bool:
    """Return whether a call draws random numbers."""
    name = operator_name(node)
    tags = {str(tag).rsplit(".", 1)[-1] for tag in getattr(node.target, "tags", ())}
    base = name.split(".")[0].rstrip("_")
    if "scaled_dot_product" in base:
        # It draws for its dropout only, which its translation refuses.
        return False
    return base in _RANDOM or ("nondeterministic_seeded" in tags and base not in _TRAINING_FLAGS)


def _nodes(module: Any) -> Iterator[Any]:
    """The nodes of a graph module and of those it calls (branches of conditions)."""
    yield from module.graph.nodes
    for child in module.children():
        if hasattr(child, "graph"):
            yield from _nodes(child)


def _look_at_outputs(program: Any, findings: Findings) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind.name not in _STATELESS:
            findings.add(MUTATION, f"{spec.kind.name.lower()} of {spec.target}", str(spec.arg.name))
        elif hasattr(spec.arg, "value") and spec.arg.value is not None:
            findings.add(OUTPUTS, repr(spec.arg.value), str(spec.arg.name))


def _symbols(node: Any) -> Iterator[str]:
    """The symbolic dimensions of what a node gives."""
    value = node.meta.get("val")
    for item in value if isinstance(value, tuple | list) else (value,):
        for extent in getattr(item, "shape", ()) or ():
            if type(extent) is not int:
                yield str(extent)


def _trains(node: Any, name: str) -> bool:
    base = name.split(".")[0].rstrip("_")
    if base == "_native_batch_norm_legit_functional" or name == "_native_batch_norm_legit.default":
        return bool(_argument(node, "training", 5))
    if base not in _TRAINING_FLAGS:
        return False
    training = bool(_argument(node, "train", _TRAINING_FLAGS[base]))
    if base in ("batch_norm", "instance_norm"):
        # Without running statistics they normalise by those of their input, in either mode.
        return training and node.args[3] is not None
    if base.endswith("dropout"):
        return training and node.args[1] != 0
    # Recurrent networks only drop out in training, between layers.
    return training and not (base in _RECURRENT and node.args[5] == 0)


def _drops_weights(node: Any, name: str) -> bool:
    return name in POSITIONS and bool(_argument(node, "dropout_p", POSITIONS[name][1]))


def _argument(node: Any, name: str, position: int) -> Any:
    for key in (name, "training", "use_input_stats"):
        if key in node.kwargs:
            return node.kwargs[key]
    return node.args[position] if len(node.args) > position else False
