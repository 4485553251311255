"""Lowering rules by family; importing this package registers all of them."""

from tilewright.passes.lower.rules import convolution, elementwise, linear, normalisation, pooling, shaping

__all__ = ["convolution", "elementwise", "linear", "normalisation", "pooling", "shaping"]
