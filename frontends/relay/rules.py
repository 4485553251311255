"""The table of Relay operators: what each emits at the graph level. Defaults are those of TVM 0.18.

Every module of this package named `rules_*` holds the operators of one family in its table `RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends import relay
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.rule_tables import merged_rules

RULES: Mapping[str, Rule] = merged_rules(relay)
