"""A classifier of sequences: layers of LSTM (Hochreiter and Schmidhuber 1997), unrolled, and one product."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.zoo.gated import cuts
from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module


def lstm_classifier(
    seed: int = 0,
    *,
    layers: int = 2,
    width: int = 512,
    steps: int = 64,
    classes: int = 100,
    batch: int = 1,
    together: int = 16,
    name: str = "lstm_classifier",
) -> Module:
    """Map `data` float32 [batch, steps, width] to logits [batch, classes] of the last step's hidden state.

    The gates are those of PyTorch's `nn.LSTM`, in its order (input, forget, cell, output), with both biases
    in one. The product of the first layer's inputs is one for all steps; those of other layers are one for
    `together` steps, behind which a layer may begin while the layer below goes on. Raises InputError for
    impossible sizes.
    """
    check_sizes(name, layers=layers, width=width, steps=steps, classes=classes, together=together)
    net = NetworkWriter(seed)
    data = net.input("data", "f32", batch, steps, width)
    joined = [data.transpose(1, 0, 2).reshape(steps * batch, width)]
    outputs: list[Tensor] = []
    for layer in range(layers):
        with net.scope(f"l{layer}"):
            gates: list[Tensor] = []
            for rows in joined:
                joint = net.linear(rows, 4 * width, "input")
                places = cuts(joint.shape[0] // batch, batch)
                gates += net.w.ops_of("split", [joint], indices=places, axis=0)
            outputs = _layer(net, gates, width)
            if layer + 1 < layers:
                parts = (outputs[i : i + together] for i in range(0, steps, together))
                joined = [net.w.op("concatenate", *part, axis=0) for part in parts]
    with net.scope("head"):
        return net.module(name, [net.linear(outputs[-1], classes, "logits")])


def _layer(net: NetworkWriter, gates: Sequence[Tensor], width: int) -> list[Tensor]:
    """Hidden states after each step, from the inputs' part of the gates."""
    hidden: Tensor | None = None
    cell: Tensor | None = None
    outputs = []
    for part in gates:
        if hidden is not None:
            part = part + net.w.op("dense", hidden, net.weight("hidden.kernel", 4 * width, width))
        i, f, g, o = net.w.ops_of("split", [part], indices=cuts(4, width), axis=1)
        fresh = i.sigmoid() * g.tanh()
        cell = fresh if cell is None else f.sigmoid() * cell + fresh
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return outputs
