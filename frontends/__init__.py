"""Readers of networks of other systems, and builders of known networks (`zoo`): all give our graph level.

Each is imported when it is first used: who reads one format waits for no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontends import onnx, relax, relay, torch, zoo

__all__ = ["onnx", "relax", "relay", "torch", "zoo"]

if not TYPE_CHECKING:  # a type checker knows the names from the imports above, and refuses all others

    def __getattr__(name: str) -> object:
        """A reader, at its first use (PEP 562)."""
        if name in __all__:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
