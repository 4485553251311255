"""The table of Relax operators (without their `relax.` prefix): what each emits at the graph level."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from tilewright.frontends import relax
from tilewright.frontends.relay.evaluate import Rule


def _merged() -> Mapping[str, Rule]:
    merged: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(relax.__path__, "tilewright.frontends.relax."):
        if "rules_" in module.name:
            table: Mapping[str, Rule] = import_module(module.name).RULES
            if twice := sorted(merged.keys() & table.keys()):
                raise ValueError(f"operators with two rules: {', '.join(twice)}, again in {module.name}")
            merged |= table
    return merged


RULES: Mapping[str, Rule] = _merged()
