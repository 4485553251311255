"""The way in: a live Relax module of apache-tvm, its parameters, and the function that is the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.relax import tvm_objects as tvm
from tilewright.frontends.relax.reader import read_module
from tilewright.frontends.relax.rules import RULES
from tilewright.frontends.relay.importer import import_module
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module


def from_module(mod: Any, params: Any = None, function: str = "main") -> Module:
    """The graph-level module of a live Relax `IRModule` (apache-tvm 0.25 to 0.27).

    params: arrays (NumPy, TVM or DLPack to NumPy) for parameters of the function, which become constants: a
    dict by parameter name, a list for the last parameters, or what `relax.frontend.detach_params` returns
    (lists by function name). None binds what TVM attached to the function, if anything.
    function: the Relax function that becomes @main; functions it calls are inlined.

    Raises InputError (not a module of TVM, no such function, parameters that do not fit) and one
    UnsupportedError with places for all operators, opaque calls and symbolic dimensions that are in the way.
    """
    if not tvm.is_module(mod):
        kind = f"{type(mod).__module__}.{type(mod).__qualname__}"
        raise InputError(f"expected a tvm.IRModule that holds Relax, got {kind}")
    module = read_module(mod, function, RULES)
    names = [variable.name for variable in module.functions["main"].params]
    arrays = _by_name(params, names, function, tvm.attached_params(tvm.functions(mod)[function]))
    return import_module(module, arrays, rules=RULES, dialect="relax")


def _by_name(
    params: Any, names: Sequence[str], function: str, attached: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    if params is None:
        params = attached
    if isinstance(params, Mapping) and isinstance(params.get(function), Sequence):
        params = params[function]
    if isinstance(params, Mapping):
        return {str(name): tvm.host_array(value) for name, value in params.items()}
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise InputError(f"expected params to be a dict or a list of arrays, got {type(params).__name__}")
    if len(params) > len(names):
        raise InputError(f"expected at most {len(names)} parameters of @{function}, got {len(params)} arrays")
    last = names[len(names) - len(params) :]
    return {name: tvm.host_array(value) for name, value in zip(last, params, strict=True)}
