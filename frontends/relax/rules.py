"""The table of Relax operators (without their `relax.` prefix): what each emits at the graph level."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends import relax
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.rule_tables import merged_rules

RULES: Mapping[str, Rule] = merged_rules(relax)
