"""Which ops of a function with a backward pass belong to the forward pass, at the graph and the tensor level.

The function says so itself: its attribute `loss` is the position of the result that was differentiated, or
the positions of several. The forward pass is what they depend on; all other ops are of the backward pass.
"""

from __future__ import annotations

from tilewright.ir import Func, Op, backward_slice

#: the function attribute with the position of the result that was differentiated, or the positions of several
LOSS = "loss"
#: the function attribute with the number of forward ops that the backward pass computes again; with it, even
#: where it is 0, the two passes share no op and no kernel
RECOMPUTED = "recomputed"
#: the location of the ops of a training step that update parameters
OPTIMIZER = "optimizer"


def forward_ops(func: Func) -> frozenset[Op]:
    """The ops that the loss depends on; none where the function has no backward pass."""
    position, returned = func.get(LOSS), func.body.ops[-1].operands
    positions = position if isinstance(position, tuple) else (position,)
    losses = [returned[p] for p in positions if isinstance(p, int) and 0 <= p < len(returned)]
    return frozenset(backward_slice(func.body.ops[:-1], losses))


def ops_before_boundary(func: Func) -> frozenset[Op]:
    """The forward ops of a function with the attribute `recomputed`; else none.

    Passes that make one of equal ops, or one kernel of several ops, keep them and the others apart: a copy
    that is one with its original again would be saved after all.
    """
    return forward_ops(func) if func.get(RECOMPUTED) is not None else frozenset()
