"""Operators that compute element by element and have no attributes: called as graph ops are."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.importing.call import Rule
from tilewright.frontends.importing.rules import directs

#: Operators of Relay and Relax with two operands.
BINARY = """
    add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal
    left_shift less less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal power
    right_shift subtract
"""
#: Operators of Relay and Relax with one operand.
UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp floor isfinite isinf isnan log
    logical_not negative rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
RULES: Mapping[str, Rule] = directs(UNARY, 1, **{"nn.relu": "relu"})
