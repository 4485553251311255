"""The table of Relay operators: what each emits at the graph level. Defaults are those of TVM 0.18."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.relay import rules_elementwise, rules_layers, rules_shape
from tilewright.frontends.relay.evaluate import Rule

RULES: Mapping[str, Rule] = {**rules_elementwise.RULES, **rules_layers.RULES, **rules_shape.RULES}
