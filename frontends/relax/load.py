"""The way in: a live Relax module of apache-tvm, its parameters, and the function that is the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.importing.call import Rule
from tilewright.frontends.importing.rules import gathered
from tilewright.frontends.relax import rules
from tilewright.frontends.relax import tvm_objects as tvm
from tilewright.frontends.relax.reader import read_module
from tilewright.frontends.tvm.importer import import_program
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module

#: Relax's operators (without their `relax.` prefix): what each emits at the graph level.
RULES: Mapping[str, Rule] = gathered(rules)


def from_module(
    mod: Any, params: Any = None, function: str = "main", inputs: Sequence[str] | None = None
) -> Module:
    """The graph-level module of a live Relax `IRModule` (apache-tvm 0.25 to 0.27).

    params: arrays (NumPy, TVM or DLPack to NumPy) for parameters of the function, which become constants: a
    dict by parameter name, a list for the last parameters, or what `relax.frontend.detach_params` returns
    (lists by function name). None binds what TVM attached to the function, if anything.
    function: the Relax function that becomes @main; functions it calls are inlined.
    inputs: names of the parameters that stay inputs; every other one needs a value. None means those that the
    function's attribute `num_input` counts, where TVM's importer wrote one; those before a list of arrays;
    for a dict the first parameter and the indices (int32, int64, bool) right behind it, as far as they have
    no value.

    Raises InputError (not a module of TVM, no such function, parameters that do not fit) and one
    UnsupportedError with places for all operators, opaque calls and symbolic dimensions that are in the way.
    """
    if not tvm.is_module(mod):
        kind = f"{type(mod).__module__}.{type(mod).__qualname__}"
        raise InputError(f"expected a tvm.IRModule that holds Relax, got {kind}")
    module = read_module(mod, function, RULES)
    relax_function = tvm.functions(mod)[function]
    names = [variable.name for variable in module.functions["main"].params]
    arrays_given = _given(params, function, tvm.attached_params(relax_function))
    arrays = _by_name(arrays_given, names, function)
    if inputs is None and arrays:
        inputs = _inputs(arrays_given, names, tvm.input_count(relax_function))
    return import_program(module, RULES, arrays or None, inputs, dialect="relax")


def _given(params: Any, function: str, attached: Sequence[np.ndarray]) -> Any:
    """The values given for one function: arrays by name, or those of its last parameters."""
    if params is None:
        return attached
    if isinstance(params, Mapping) and isinstance(params.get(function), Sequence):
        return params[function]
    return params


def _inputs(given: Any, names: Sequence[str], count: int | None) -> Sequence[str] | None:
    """The parameters that are inputs for certain; None where only their order and types tell."""
    if not isinstance(given, Mapping):
        return names[: len(names) - len(given)]
    return None if count is None else [name for name in names[:count] if name not in given]


def _by_name(given: Any, names: Sequence[str], function: str) -> dict[str, np.ndarray]:
    if isinstance(given, Mapping):
        return {str(name): tvm.host_array(value) for name, value in given.items()}
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"expected params to be a dict or a list of arrays, got {type(given).__name__}")
    if len(given) > len(names):
        raise InputError(f"expected at most {len(names)} parameters of @{function}, got {len(given)} arrays")
    last = names[len(names) - len(given) :]
    return {name: tvm.host_array(value) for name, value in zip(last, given, strict=True)}
