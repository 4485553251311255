"""Tilewright: a deep-learning compiler that decides by model and by measurement how work is cut."""

from tilewright import frontends
from tilewright.api import compile
from tilewright.executable import Executable, load
from tilewright.ir import (
    InputError,
    Module,
    TilewrightError,
    UnsupportedError,
    WorkError,
    interpret,
    parse,
    show,
    verify,
)
from tilewright.passes import register_pass
from tilewright.passes.graph.set_input_shapes import with_input_shapes

__version__ = "0.1.0"

__all__ = [
    "Executable",
    "InputError",
    "Module",
    "TilewrightError",
    "UnsupportedError",
    "WorkError",
    "compile",
    "frontends",
    "interpret",
    "load",
    "parse",
    "register_pass",
    "show",
    "verify",
    "with_input_shapes",
]
