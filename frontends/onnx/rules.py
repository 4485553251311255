"""The table of ONNX operators: what each emits at the graph level, for every version of the operator.

Every module of this package named `rules_*` holds the operators of one family in its table `RULES`.
"""

from __future__ import annotations

from functools import cache

from tilewright.frontends import onnx
from tilewright.frontends.onnx.node import Rules
from tilewright.frontends.rule_tables import merged_rules


@cache
def all_rules() -> Rules:
    """Rules by operator, those of other domains as `domain.Operator`."""
    return merged_rules(onnx)
