"""The optional `onnx` package, imported where it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tilewright.ir.errors import InputError


def onnx_module(name: str = "") -> Any:
    """The package `onnx`, or its submodule `name`; raises InputError saying how to install it."""
    try:
        return import_module(f"onnx.{name}" if name else "onnx")
    except ImportError as error:
        raise InputError(
            f"expected the onnx package to read ONNX models ({error}); install it with: "
            "pip install tilewright[onnx]"
        ) from None
