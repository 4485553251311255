"""Tilewright: a deep-learning compiler that decides by model and by measurement how work is cut.

Names are imported when they are first used, so that `import tilewright` and help pages take no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright import frontends
    from tilewright.api import compile
    from tilewright.ir import (
        InputError,
        Module,
        TilewrightError,
        UnsupportedError,
        WorkError,
    )
    from tilewright.levels import parse, show, verify
    from tilewright.passes import register_pass
    from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
    from tilewright.passes.graph.gradients.differentiate import grad
    from tilewright.running.executable import Executable
    from tilewright.running.interpreting import interpret, interpret_step
    from tilewright.running.loading import load
    from tilewright.training import losses, optim, schedules
    from tilewright.training.step import train_step
    from tilewright.training.vjp import vjp

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
    "grad",
    "interpret",
    "interpret_step",
    "load",
    "losses",
    "optim",
    "parse",
    "register_pass",
    "schedules",
    "show",
    "train_step",
    "verify",
    "vjp",
    "with_input_shapes",
]

_HOMES = {
    "tilewright.api": ("compile",),
    "tilewright.running.executable": ("Executable",),
    "tilewright.running.loading": ("load",),
    "tilewright.ir": (
        "InputError",
        "Module",
        "TilewrightError",
        "UnsupportedError",
        "WorkError",
    ),
    "tilewright.running.interpreting": ("interpret", "interpret_step"),
    "tilewright.levels": ("parse", "show", "verify"),
    "tilewright.passes": ("register_pass",),
    "tilewright.passes.graph.gradients.differentiate": ("grad",),
    "tilewright.passes.graph.forms.set_input_shapes": ("with_input_shapes",),
    "tilewright.training.step": ("train_step",),
    "tilewright.training.vjp": ("vjp",),
}
#: modules that are public as namespaces
_NAMESPACES = ("losses", "optim", "schedules")
_PACKAGES = ("codegen", "costmodel", "frontends", "ir", "passes", "runtime")

if not TYPE_CHECKING:  # a type checker knows the names from the imports above, and refuses all others

    def __getattr__(name: str) -> object:
        """A public name or a sub-package, at its first use (PEP 562)."""
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        if name in _NAMESPACES:
            return import_module(f"{__name__}.training.{name}")
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(import_module(home), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PACKAGES})
