"""Modules with state are not divided: a refusal that all passes of this folder share."""

from __future__ import annotations

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Module


def refuse_state(module: Module, doing: str) -> None:
    """Raise UnsupportedError for a module with state, whose updates every rank would have to agree on."""
    names = module.state_names
    if names:
        raise UnsupportedError(
            f"{doing} takes networks without state; this one updates '{names[0]}'"
            + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
            where=f"@{module.name}",
        )
