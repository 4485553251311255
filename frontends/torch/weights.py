"""Parameters and buffers of an exported program, and their names in the state_dict of its model."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.ir.nodes import Module, Op


@dataclass(frozen=True)
class Weights:
    """Arrays of the parameters and buffers by the names of their inputs, and what the program says of them.

    names: the key in the model's state_dict, by the name of the input. trained: the inputs that are
    parameters which require a gradient.
    """

    arrays: dict[str, np.ndarray]
    names: dict[str, str]
    trained: frozenset[str]

    def named(self, module: Module) -> Module:
        """The module whose constants have the model's names; what training changes are the trained ones.

        A name that is taken by a constant of another origin is not given.
        """
        taken = set(module.constants) - set(self.names)
        names = {old: new for old, new in self.names.items() if new not in taken}
        constants = {names.get(name, name): array for name, array in module.constants.items()}
        parameters = tuple(names.get(name, name) for name in module.parameters if name in self.trained)
        module = replace(module, constants=type(module.constants)(constants))
        funcs = tuple(f.with_body(f.body.with_ops(_renamed(f.body.ops, names))) for f in module.funcs)
        module = module.with_funcs(funcs)
        return module if parameters == module.parameters else module.with_attrs(parameters=parameters)


def weights_of(program: Any) -> Weights:
    """Parameters and buffers, also those that no state_dict holds; a lifted constant is neither."""
    specs = [s for s in program.graph_signature.input_specs if s.kind.name in ("PARAMETER", "BUFFER")]
    tensors = {s.arg.name: _tensor(program, s.target) for s in specs}
    return Weights(
        {name: host_array(tensor) for name, tensor in tensors.items()},
        {s.arg.name: s.target for s in specs},
        frozenset(
            s.arg.name for s in specs if s.kind.name == "PARAMETER" and tensors[s.arg.name].requires_grad
        ),
    )


def with_buffers_as_parameters(program: Any) -> Any:
    """A copy whose buffers are parameters, whose names TVM's importer keeps; it makes buffers literals."""
    kind = import_module("torch.export.graph_signature").InputKind.PARAMETER
    signature = program.graph_signature
    buffers = [s.target for s in signature.input_specs if s.kind.name == "BUFFER"]
    specs = [
        replace(s, kind=kind, persistent=None) if s.target in buffers else s for s in signature.input_specs
    ]
    tensors = {name: _tensor(program, name) for name in buffers}
    program = copy(program)
    program._graph_signature = replace(signature, input_specs=specs)
    program._state_dict = {**program.state_dict, **tensors}
    program._constants = {name: value for name, value in program.constants.items() if name not in tensors}
    return program


def host_array(tensor: Any) -> np.ndarray:
    """A NumPy view (a copy where none is possible) of a torch tensor in host memory."""
    import ml_dtypes

    host = tensor.detach().cpu().contiguous()
    if str(host.dtype) == "torch.bfloat16":
        return np.asarray(host.view(import_module("torch").int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(host.numpy())


def _tensor(program: Any, name: str) -> Any:
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def _renamed(ops: tuple[Op, ...], names: dict[str, str]) -> tuple[Op, ...]:
    return tuple(
        op.with_attrs(name=names.get(str(op["name"]), op["name"])) if op.name == "graph.constant" else op
        for op in ops
    )
