"""The table of ONNX operators: what each emits at the graph level, for every version of the operator.

Every module of this package named `rules_*` holds the operators of one family in its table `RULES`.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from tilewright.frontends import onnx
from tilewright.frontends.onnx.node import Rule, Rules


@cache
def all_rules() -> Rules:
    """Rules by operator, those of other domains as `domain.Operator`."""
    merged: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(onnx.__path__, "tilewright.frontends.onnx."):
        if ".rules_" in module.name:
            table: Rules = import_module(module.name).RULES
            if twice := sorted(merged.keys() & table.keys()):
                raise ValueError(f"operators with two rules: {', '.join(twice)}, again in {module.name}")
            merged |= table
    return merged
