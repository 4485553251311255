"""The table of ONNX operators: what each emits at the graph level, for every version of the operator.

Every module of the package `rules` holds the operators of one family in its table `RULES`.
"""

from __future__ import annotations

from functools import cache

from tilewright.frontends.merged_rules import merged_rules
from tilewright.frontends.onnx import rules
from tilewright.frontends.onnx.node import Rules


@cache
def all_rules() -> Rules:
    """Rules by operator, those of other domains as `domain.Operator`."""
    return merged_rules(rules)
