"""Graph functions written with Python's operators: losses, optimizers, gradient rules."""

from tilewright.ir.graph_code.tensor import GraphWriter, Tensor

__all__ = ["GraphWriter", "Tensor"]
