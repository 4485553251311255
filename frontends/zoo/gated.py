"""Layers of gated recurrent units (Cho et al. 2014), unrolled over their steps."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.zoo.writing import NetworkWriter
from tilewright.ir.graph_code import Tensor


def cuts(parts: int, extent: int) -> tuple[int, ...]:
    """The places at which a dimension of parts * extent elements is cut into equal parts."""
    return tuple(range(extent, parts * extent, extent))


def gated_unit(net: NetworkWriter, gates: Tensor, hidden: Tensor | None) -> Tensor:
    """One step: the next hidden state [batch, width] from the inputs' part of the gates [batch, 3 width].

    The gates are those of PyTorch's `nn.GRU`, in its order (reset, update, new), with a bias for the inputs
    and one for the hidden state. Without a hidden state it is zero.
    """
    width = gates.shape[1] // 3
    bias = net.weight("hidden.bias", 3 * width)
    if hidden is None:
        recurrent = bias.reshape(1, 3 * width)
    else:
        kernel = net.weight("hidden.kernel", 3 * width, width)
        recurrent = net.w.op("bias_add", net.w.op("dense", hidden, kernel), bias, axis=-1)
    r, z, n = net.w.ops_of("split", [gates], indices=cuts(3, width), axis=1)
    r_hidden, z_hidden, n_hidden = net.w.ops_of("split", [recurrent], indices=cuts(3, width), axis=1)
    fresh = (n + (r + r_hidden).sigmoid() * n_hidden).tanh()
    kept = (z + z_hidden).sigmoid()
    return fresh - kept * fresh if hidden is None else fresh + kept * (hidden - fresh)


def gated_layer(net: NetworkWriter, x: Tensor, width: int, *, backward: bool = False) -> list[Tensor]:
    """Hidden states [batch, width] of the steps of x [steps, batch, features], in their order.

    The product of the inputs is one for all steps. backward: the last step comes first.
    """
    steps, batch, features = x.shape
    joint = net.linear(x.reshape(steps * batch, features), 3 * width, "input")
    parts = net.w.ops_of("split", [joint], indices=cuts(steps, batch), axis=0)
    hidden: Tensor | None = None
    states: list[Tensor] = []
    for part in reversed(parts) if backward else parts:
        hidden = gated_unit(net, part, hidden)
        states.append(hidden)
    return states[::-1] if backward else states


def both_ways(net: NetworkWriter, x: Tensor, width: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Hidden states of a layer that reads the steps forward, and of one that reads them backward."""
    with net.scope("forward"):
        forward = gated_layer(net, x, width)
    with net.scope("backward"):
        return forward, gated_layer(net, x, width, backward=True)
