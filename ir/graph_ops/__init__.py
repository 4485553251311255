"""Graph ops: Relay's operators on whole tensors, with schema, inference and NumPy reference semantics."""

from tilewright.ir import scalar_ops  # noqa: F401  (tables of graph ops look up scalar ops)
from tilewright.ir.graph_ops import (  # noqa: F401  (importing defines the ops)
    binary,
    convolution,
    joining,
    linear,
    normalisation,
    pooling,
    shaping,
    softmax,
    structure,
    unary,
)
