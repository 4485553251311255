"""The table of Relay operators: what each emits at the graph level. Defaults are those of TVM 0.18.

Every module of the package `rules` holds the operators of one family in its table `RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.merged_rules import merged_rules
from tilewright.frontends.relay import rules
from tilewright.frontends.relay.evaluate import Rule

RULES: Mapping[str, Rule] = merged_rules(rules)
