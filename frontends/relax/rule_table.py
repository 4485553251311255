"""The table of Relax operators (without their `relax.` prefix): what each emits at the graph level."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.merged_rules import merged_rules
from tilewright.frontends.relax import rules
from tilewright.frontends.relay.evaluate import Rule

RULES: Mapping[str, Rule] = merged_rules(rules)
