"""BERT with its head for masked words (Devlin et al. 2019, "BERT: Pre-training of Deep ...", section 3).

Post-normalised blocks of attention and a GELU network; the head shares the table of words. Dropout stands
where the paper has it and does nothing at inference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-12


def bert(
    seed: int = 0,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocabulary: int = 256,
    sequence: int = 16,
    batch: int = 1,
    dropout: bool = True,
    name: str = "bert",
) -> Module:
    """An encoder that maps `tokens` int32 [batch, sequence] to logits float32 [batch * sequence, vocabulary].

    width: a multiple of `heads`; the hidden layer has 4 * width. dropout: with the paper's rate of 0.1.
    Raises InputError for impossible sizes.
    """
    check_sizes(name, layers=layers, width=width, heads=heads, batch=batch)
    if width % heads:
        raise InputError(f"{name}: expected width to be a multiple of {heads} heads, got {width}")
    net = _Encoder(seed, heads, 0.1 if dropout else 0.0)
    tokens = net.input("tokens", "i32", batch, sequence)
    with net.scope("embed"):
        x = net.w.op("take", net.weight("tokens", vocabulary, width), tokens, axis=0)
        x = net.dropout(net.layer_norm(x + net.weight("positions", sequence, width), "norm", EPSILON))
    for layer in range(layers):
        with net.scope(f"h{layer}"):
            x = net.layer_norm(x + net.dropout(net.attention(x)), "attention.norm", EPSILON)
            hidden = net.gelu(net.linear(x, 4 * width, "up"))
            x = net.layer_norm(x + net.dropout(net.linear(hidden, width, "down")), "mlp.norm", EPSILON)
    flat = x.reshape(batch * sequence, width)
    with net.scope("head"):
        flat = net.layer_norm(net.gelu(net.linear(flat, width, "transform")), "norm", EPSILON)
    with net.scope("embed"):
        table = net.weight("tokens", vocabulary, width)
    with net.scope("head"):
        logits = net.w.op("bias_add", net.w.op("dense", flat, table), net.weight("bias", vocabulary), axis=-1)
    return net.module(name, [logits])


class _Encoder(NetworkWriter):
    def __init__(self, seed: int, heads: int, rate: float) -> None:
        super().__init__(seed)
        self._heads, self._rate = heads, rate

    def dropout(self, x: Tensor) -> Tensor:
        """Dropout with the network's rate."""
        return self.w.op("dropout", x, rate=self._rate) if self._rate else x

    def gelu(self, x: Tensor) -> Tensor:
        """x / 2 (1 + erf(x / sqrt(2)))."""
        return x * (self.w.op("erf", x * math.sqrt(0.5)) * 0.5 + 0.5)

    def attention(self, x: Tensor) -> Tensor:
        """Softmax(q k^T / sqrt(n)) v per head over all tokens, and a projection."""
        batch, sequence, width = x.shape
        size = width // self._heads
        q, k, v = (self._head_parts(self.linear(x, width, part), size) for part in ("query", "key", "value"))
        scores = q.matmul(k, transpose_b=True) * (1 / math.sqrt(size))
        mixed = self.dropout(self.w.op("softmax", scores, axis=-1)).matmul(v)
        joined = mixed.transpose(0, 2, 1, 3).reshape(batch, sequence, width)
        return self.linear(joined, width, "project")

    def _head_parts(self, x: Tensor, size: int) -> Tensor:
        batch, sequence, _ = x.shape
        return x.reshape(batch, sequence, self._heads, size).transpose(0, 2, 1, 3)


#: builders by name: `bert` with sizes of its own, and the published ones (without the head's extra table)
BERT_NETWORKS: Mapping[str, Callable[..., Module]] = {
    "bert": bert,
    "bert_base_mlm": partial(
        bert, name="bert_base_mlm", layers=12, width=768, heads=12, vocabulary=30522, sequence=128
    ),
    "bert_large_mlm": partial(
        bert, name="bert_large_mlm", layers=24, width=1024, heads=16, vocabulary=30522, sequence=128
    ),
}
