"""The table of operators of a dialect, gathered from the modules of its package."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any


def merged_rules(package: ModuleType) -> dict[str, Any]:
    """The tables `RULES` of all modules of a package, each of one family.

    Raises ValueError where two of them hold the same operator.
    """
    merged: dict[str, Any] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        table = import_module(module.name).RULES
        if twice := sorted(merged.keys() & table.keys()):
            raise ValueError(f"operators with two rules: {', '.join(twice)}, again in {module.name}")
        merged |= table
    return merged
