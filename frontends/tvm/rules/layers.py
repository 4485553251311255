"""Operators of layers without windows: what normalisations and softmax have in common."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.importing.call import Rule
from tilewright.frontends.importing.rules import Reader, direct, flag, integer, real

#: What all normalisations with a scale and a shift say of them.
AFFINE: Mapping[str, Reader] = {"epsilon": real(1e-5), "center": flag(True), "scale": flag(True)}

RULES: Mapping[str, Rule] = {
    "nn.batch_flatten": direct("batch_flatten"),
    "nn.softmax": direct("softmax", axis=integer(-1)),
    "nn.log_softmax": direct("log_softmax", axis=integer(-1)),
}
