"""The ways in: a Relay file (text or JSON), or a module of a live TVM that still has Relay."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.importing.call import Rule
from tilewright.frontends.importing.rules import gathered
from tilewright.frontends.relay import rules
from tilewright.frontends.relay.reading.json_reader import read_json
from tilewright.frontends.relay.reading.text import read_text
from tilewright.frontends.tvm import ast
from tilewright.frontends.tvm import rules as shared
from tilewright.frontends.tvm.binding import Params
from tilewright.frontends.tvm.importer import import_program
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError, file_path
from tilewright.ir.nodes import Module

#: Relay's operators: what each emits at the graph level. Defaults are those of TVM 0.18.
RULES: Mapping[str, Rule] = gathered(shared, rules)
#: Files larger than this are refused unread.
MAX_FILE_BYTES = 1 << 32


def import_module(
    module: ast.Module, params: Params = None, inputs: Sequence[str] | None = None, seed: int = 0
) -> Module:
    """Our module for the syntax of a Relay module; arguments and errors are those of `load`."""
    return import_program(module, RULES, params, inputs, seed, dialect="relay")


def load(
    path: str | Path, params: Params = None, inputs: Sequence[str] | None = None, seed: int = 0
) -> Module:
    """The graph-level module of a Relay file, text or JSON (told by content).

    params: None leaves every parameter of @main an input; a path (Relay parameter dictionary, .npz or
    .safetensors) or a dict of arrays binds parameters by name; "random" draws all but the inputs.
    inputs: names of the parameters that stay inputs. Every other one needs a value. None means all where
    nothing is bound; for "random" the first parameter and the integer ones; where values are given, the first
    parameter and the indices (int32, int64, bool) right behind it, as far as they have none.
    Raises InputError (unreadable file, wrong parameters), UnsupportedError (all unknown operators at once).
    """
    return import_module(read(path), params, inputs, seed)


def from_module(
    mod: Any,
    params: Mapping[str, Any] | None = None,
    inputs: Sequence[str] | None = None,
) -> Module:
    """The graph-level module of a live `tvm.IRModule` of TVM 0.19 or older; `params` are TVM or NumPy arrays.

    `params` and `inputs` mean what they do for `load`; an empty dict, which TVM's importers return for
    networks without weights, binds nothing.
    Raises InputError where the module is not TVM's or its TVM has no Relay any more.
    """
    tvm = sys.modules.get("tvm")
    if tvm is None or not type(mod).__module__.startswith("tvm."):
        kind = f"{type(mod).__module__}.{type(mod).__qualname__}"
        raise InputError(f"expected a tvm.IRModule, got {kind}")
    if not hasattr(tvm, "relay"):
        version = getattr(tvm, "__version__", "an unknown version")
        raise InputError(
            f"expected a TVM that has Relay, got {version}: Relay left TVM at 0.20. Save the module as "
            "text or JSON with TVM 0.19 or older and read it with relay.load"
        )
    module = read_json(tvm.ir.save_json(mod), "module")
    arrays = {str(name): _array(value) for name, value in (params or {}).items()}
    return import_module(module, arrays or None, inputs)


def read(path: str | Path) -> ast.Module:
    """The syntax of a Relay file, without importing it."""
    file = file_path(path)
    try:
        text = read_bounded(file, MAX_FILE_BYTES, "network").decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{file}, byte {error.start}"
        raise InputError("expected Relay text or JSON in UTF-8, got other bytes", where=where) from None
    return read_source(text, str(file))


def read_source(text: str, file: str) -> ast.Module:
    """The syntax of Relay text or JSON; `file` names it in messages."""
    text = text.removeprefix("\ufeff")
    start = text.lstrip(" \t\r\n")[:1]
    if not start:
        raise InputError("expected Relay text or JSON, got an empty file", where=file)
    return read_json(text, file) if start == "{" else read_text(text, file)


def _array(value: Any) -> np.ndarray:
    """The NumPy array of a TVM tensor (`numpy` since 0.8, `asnumpy` before), or of anything array-like."""
    for method in ("numpy", "asnumpy"):
        if hasattr(value, method):
            return np.asarray(getattr(value, method)())
    return np.asarray(value)
