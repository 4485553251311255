"""One layer of a transformer: attention and a network with one hidden layer, each with a residual and a norm.

With its defaults it is the encoder layer of BERT-large that "Data Movement Is All You Need" (Ivanov et al.
2021, section 3) trains; with a causal mask and norms before the parts it is a layer of a decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

#: epsilon of the norms, and what scores of later tokens are set to before softmax
EPSILON, MASKED = 1e-5, -1e30


def encoder_layer(
    seed: int = 0,
    *,
    batch: int = 8,
    sequence: int = 512,
    width: int = 1024,
    heads: int = 16,
    hidden: int = 4096,
    activation: str = "relu",
    norm: str = "post",
    causal: bool = False,
    dropout: float = 0.1,
    projections: str = "apart",
    name: str = "encoder_layer",
) -> Module:
    """A layer that maps `x` to `y`, both float32 [batch, sequence, width].

    width: a multiple of `heads`. activation: of the hidden layer, `relu` or `gelu` (of erf). norm: `post`
    normalises sums with the residual, `pre` what the parts read. causal: tokens attend to none after them.
    dropout: the rate at the four places of the paper: weights of attention, what attention gives, the
    activation, what the network gives; 0 for none. projections: queries, keys and values are products of
    their own (`apart`), or slices of one product with joined weights (`joined`).
    Raises InputError for impossible sizes and options.
    """
    check_sizes(name, batch=batch, sequence=sequence, width=width, heads=heads, hidden=hidden)
    if width % heads:
        raise InputError(f"{name}: expected width to be a multiple of {heads} heads, got {width}")
    if activation not in ("relu", "gelu") or norm not in ("post", "pre") or type(causal) is not bool:
        raise InputError(
            f"{name}: expected activation relu or gelu, norm post or pre and causal true or false, got "
            f"{activation!r}, {norm!r} and {causal!r}"
        )
    if projections not in ("apart", "joined"):
        raise InputError(f"{name}: expected projections apart or joined, got {projections!r}")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise InputError(f"{name}: expected a rate of dropout from 0 to less than 1, got {dropout!r}")
    net = _Layer(seed, heads, float(dropout), causal, projections == "joined")
    x = net.input("x", "f32", batch, sequence, width)

    def network(z: Tensor) -> Tensor:
        bent = net.activation(net.linear(z, hidden, "up"), activation)
        return net.linear(net.dropout(bent, "hidden dropout"), width, "down")

    for scope, part in (("attention", net.attention), ("mlp", network)):
        with net.scope(scope):
            if norm == "post":
                x = net.layer_norm(net.residual(x, part(x)), "norm", EPSILON)
            else:
                x = net.residual(x, part(net.layer_norm(x, "norm", EPSILON)))
    return net.module(name, [x])


class _Layer(NetworkWriter):
    def __init__(self, seed: int, heads: int, rate: float, causal: bool, joined: bool) -> None:
        super().__init__(seed)
        self._heads, self._rate, self._causal, self._joined = heads, rate, causal, joined

    def linear(self, x: Tensor, units: int, name: str) -> Tensor:
        with self.operator(name):
            return super().linear(x, units, name)

    def layer_norm(self, x: Tensor, name: str, epsilon: float) -> Tensor:
        with self.operator(name):
            return super().layer_norm(x, name, epsilon)

    def dropout(self, x: Tensor, name: str) -> Tensor:
        """Dropout with the layer's rate."""
        with self.operator(name):
            return self.w.op("dropout", x, rate=self._rate) if self._rate else x

    def residual(self, x: Tensor, part: Tensor) -> Tensor:
        """The sum of what a part reads and gives, some of which is dropped."""
        kept = self.dropout(part, "dropout")
        with self.operator("residual"):
            return x + kept

    def activation(self, x: Tensor, kind: str) -> Tensor:
        """max(x, 0), or x / 2 (1 + erf(x / sqrt(2)))."""
        with self.operator("activation"):
            if kind == "relu":
                return self.w.op("relu", x)
            return x * (self.w.op("erf", x * math.sqrt(0.5)) * 0.5 + 0.5)

    def attention(self, x: Tensor) -> Tensor:
        """Softmax(q k^T / sqrt(n)) v per head over all tokens, or those up to this one; and a projection."""
        batch, sequence, width = x.shape
        size = width // self._heads
        q, k, v = (self._head_parts(part, size) for part in self._projections(x))
        with self.operator("scores"):
            scores = q.matmul(k, transpose_b=True) * (1 / math.sqrt(size))
            if self._causal:
                places = self.w.op("arange", stop=sequence, dtype="i32")
                scores = (places <= places.reshape(sequence, 1)).where(scores, MASKED)
        with self.operator("softmax"):
            weights = self.w.op("softmax", scores, axis=-1)
        mixed = self.dropout(weights, "weight dropout").matmul(v)
        joined = mixed.transpose(0, 2, 1, 3).reshape(batch, sequence, width)
        return self.linear(joined, width, "project")

    def _projections(self, x: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values."""
        width = x.shape[-1]
        if not self._joined:
            return [self.linear(x, width, part) for part in ("query", "key", "value")]
        whole = self.linear(x, 3 * width, "joined")
        return self.w.ops_of("split", (whole,), indices=(width, 2 * width), axis=-1)

    def _head_parts(self, x: Tensor, size: int) -> Tensor:
        batch, sequence, _ = x.shape
        return x.reshape(batch, sequence, self._heads, size).transpose(0, 2, 1, 3)


#: builders by name: BERT-large's encoder layer, and the decoder layer of GPT-2 of the same width
LAYERS: Mapping[str, Callable[..., Module]] = {
    "encoder_layer": encoder_layer,
    "decoder_layer": partial(
        encoder_layer, name="decoder_layer", sequence=1024, activation="gelu", norm="pre", causal=True
    ),
}
