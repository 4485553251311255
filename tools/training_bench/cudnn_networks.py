"""Recurrent networks of the zoo as users of PyTorch write them: layers of cuDNN's LSTM and GRU.

The same parameters, logits and losses as the graph's; the difference to `torch_module` is who loops over the
steps. Each builder takes the package, the constants by name and a dtype of PyTorch, and gives a module that
maps inputs to a list of logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Constants = Mapping[str, np.ndarray]


def _linear(torch: Any, c: Constants, name: str, *, bias: bool = True) -> Any:
    kernel = c[f"{name}.kernel"]
    layer = torch.nn.Linear(kernel.shape[1], kernel.shape[0], bias=bias)
    _set(torch, layer.weight, kernel)
    if bias:
        _set(torch, layer.bias, c[f"{name}.bias"])
    return layer


def _set(torch: Any, parameter: Any, array: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.array(array)))


def _recurrent(torch: Any, kind: str, c: Constants, scopes: Sequence[str]) -> Any:
    """One layer of `torch.nn.LSTM` or `GRU`, in both directions for two scopes; its steps come first."""
    first = c[f"{scopes[0]}.input.kernel"]
    width = c[f"{scopes[0]}.hidden.kernel"].shape[1]
    layer = getattr(torch.nn, kind)(first.shape[1], width, bidirectional=len(scopes) == 2)
    for scope, suffix in zip(scopes, ("", "_reverse"), strict=False):
        _set(torch, getattr(layer, f"weight_ih_l0{suffix}"), c[f"{scope}.input.kernel"])
        _set(torch, getattr(layer, f"weight_hh_l0{suffix}"), c[f"{scope}.hidden.kernel"])
        _set(torch, getattr(layer, f"bias_ih_l0{suffix}"), c[f"{scope}.input.bias"])
        hidden = c.get(f"{scope}.hidden.bias")  # an LSTM's two biases are one in the graph
        _set(torch, getattr(layer, f"bias_hh_l0{suffix}"), np.zeros(1) if hidden is None else hidden)
    return layer


def _batch_norm(torch: Any, c: Constants, name: str, kind: str, epsilon: float) -> Any:
    norm = getattr(torch.nn, kind)(c[f"{name}.gamma"].shape[0], epsilon)
    _set(torch, norm.weight, c[f"{name}.gamma"])
    _set(torch, norm.bias, c[f"{name}.beta"])
    _set(torch, norm.running_mean, c[f"{name}.moving_mean"])
    _set(torch, norm.running_var, c[f"{name}.moving_var"])
    return norm


def _layers(c: Constants) -> list[str]:
    """The scopes l0, l1, ... that there are."""
    numbers = {n.split(".")[0] for n in c if n.startswith("l") and n.split(".")[0][1:].isdigit()}
    return sorted(numbers, key=lambda n: int(n[1:]))


def lstm_classifier(torch: Any, c: Constants) -> Any:
    """`zoo:lstm_classifier`: the logits of the last step."""

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(_recurrent(torch, "LSTM", c, [n]) for n in _layers(c))
            self.head = _linear(torch, c, "head.logits")

        def forward(self, data: Any) -> list[Any]:
            x = data.transpose(0, 1)
            for layer in self.layers:
                x = layer(x)[0]
            return [self.head(x[-1])]

    return Network()


def deep_speech(torch: Any, c: Constants) -> Any:
    """`zoo:deep_speech`: both directions of a layer are summed."""
    from tilewright.frontends.zoo.speech import CONVOLUTIONS, EPSILON

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.convolutions, self.norms = torch.nn.ModuleList(), torch.nn.ModuleList()
            for number, (kernel, strides) in enumerate(CONVOLUTIONS):
                weight = c[f"conv{number}.kernel"]
                around = tuple(extent // 2 for extent in kernel)
                layer = torch.nn.Conv2d(*weight.shape[1::-1], kernel, strides, around, bias=False)
                _set(torch, layer.weight, weight)
                self.convolutions.append(layer)
                self.norms.append(_batch_norm(torch, c, f"conv{number}.norm", "BatchNorm2d", EPSILON))
            scopes = _layers(c)
            self.between = torch.nn.ModuleList(
                _batch_norm(torch, c, f"{n}.norm", "BatchNorm1d", EPSILON) for n in (*scopes[1:], "head")
            )
            self.layers = torch.nn.ModuleList(
                _recurrent(torch, "GRU", c, [f"{n}.forward", f"{n}.backward"]) for n in scopes
            )
            self.head = _linear(torch, c, "head.logits")

        def forward(self, x: Any) -> list[Any]:
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = norm(convolution(x)).clamp(0.0, 20.0)
            x = x.permute(3, 0, 1, 2).flatten(2)
            for layer, norm in zip(self.layers, self.between, strict=True):
                x = layer(x)[0]
                x = x.unflatten(2, (2, -1)).sum(2)
                x = norm(x.flatten(0, 1)).view_as(x)
            return [self.head(x.flatten(0, 1))]

    return Network()


def attention_rnn(torch: Any, c: Constants) -> Any:
    """`zoo:attention_rnn`: cuDNN reads; the translation goes step by step, since attention stands between."""
    f = torch.nn.functional

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for part in ("encoder", "decoder"):
                table = torch.nn.Parameter(torch.from_numpy(np.array(c[f"{part}.words"])))
                self.register_parameter(f"{part}_words", table)
            self.encoder = _recurrent(torch, "GRU", c, ["encoder.forward", "encoder.backward"])
            self.memory = _linear(torch, c, "decoder.attention.memory")
            self.query = _linear(torch, c, "decoder.attention.state", bias=False)
            self.score = torch.nn.Parameter(torch.from_numpy(np.array(c["decoder.attention.score"])))
            self.input = _linear(torch, c, "decoder.input")
            self.start = _linear(torch, c, "decoder.start")
            self.sum = _linear(torch, c, "decoder.sum", bias=False)
            self.hidden = _linear(torch, c, "decoder.hidden")
            self.joint = _linear(torch, c, "head.hidden")
            self.logits = _linear(torch, c, "head.logits")

        def forward(self, words: Any, before: Any) -> list[Any]:
            read = f.embedding(words.t(), self.encoder_words)
            memory = self.encoder(read)[0]  # [source, batch, 2 width]
            last = memory.unflatten(2, (2, -1))[0, :, 1]
            memory = memory.transpose(0, 1)
            keys = self.memory(memory)
            written = f.embedding(before.t(), self.decoder_words)
            state = self.start(last).tanh()
            states, sums = [], []
            for part in self.input(written).unbind(0):
                bent = (keys + self.query(state).unsqueeze(1)).tanh()
                weights = (bent * self.score).sum(2).softmax(1)
                mixed = torch.bmm(weights.unsqueeze(1).to(memory.dtype), memory).squeeze(1)
                r, z, n = (part + self.sum(mixed)).chunk(3, 1)
                r_hidden, z_hidden, n_hidden = self.hidden(state).chunk(3, 1)
                fresh = (n + (r + r_hidden).sigmoid() * n_hidden).tanh()
                kept = (z + z_hidden).sigmoid()
                state = (1 - kept) * fresh + kept * state
                states.append(state)
                sums.append(mixed)
            parts = (torch.cat(states), torch.cat(sums), written.flatten(0, 1))
            return [self.logits(self.joint(torch.cat(parts, 1)).tanh())]

    return Network()


#: builders by the name of the network in the zoo
CUDNN_NETWORKS: Mapping[str, Callable[[Any, Constants], Any]] = {
    "lstm_classifier": lstm_classifier,
    "deep_speech": deep_speech,
    "attention_rnn": attention_rnn,
}
