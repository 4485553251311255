"""Lowering rules by family; importing this package registers all of them."""

from tilewright.passes.lower.rules import (
    adaptive_pooling,
    convolution,
    elementwise,
    linear,
    normalisation,
    pooling,
    shaping,
    standardising,
    transposed,
)

__all__ = [
    "adaptive_pooling", "convolution", "elementwise", "linear", "normalisation", "pooling", "shaping",
    "standardising", "transposed",
]  # fmt: skip
