"""GPT-style decoders (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

Token and position embeddings, pre-normalised blocks of causal attention and a GELU network, logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.frontends.zoo.writing import NetworkWriter
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-5
#: what attention to later tokens is set to before softmax
MASKED = -1e30


def gpt(
    seed: int = 0,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocabulary: int = 256,
    context: int = 64,
    sequence: int = 16,
    batch: int = 1,
    tied: bool = True,
    logits: str = "all",
    name: str = "gpt",
) -> Module:
    """A decoder of `layers` blocks; weights are drawn from the seed when they are read, layer by layer.

    The graph-level module maps `tokens` int32 [batch, sequence] (numbers beyond the vocabulary count as the
    nearest one in it) to logits in float32: [batch, sequence, vocabulary], or [batch, 1, vocabulary] with
    `logits="last"`.

    width: of the residual stream, a multiple of `heads`; the hidden layer has 4 * width. context: rows of the
    position table. tied: whether the logits use the token table. Parameters: 12 layers width**2 and lower
    orders. Raises InputError for impossible sizes.
    """
    sizes = {
        "layers": (layers, 1 << 10),
        "width": (width, 1 << 17),
        "heads": (heads, 1 << 17),
        "vocabulary": (vocabulary, 1 << 24),
        "context": (context, 1 << 24),
        "sequence": (sequence, 1 << 24),
        "batch": (batch, 1 << 16),
    }
    for what, (value, most) in sizes.items():
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{name}: expected {what} of 1 to {most}, got {value!r}")
    if width % heads:
        raise InputError(f"{name}: expected width to be a multiple of {heads} heads, got {width}")
    if context < sequence:
        raise InputError(f"{name}: expected a context of at least the sequence {sequence}, got {context!r}")
    if type(tied) is not bool or logits not in ("all", "last"):
        raise InputError(
            f"{name}: expected tied to be true or false and logits all or last, got {tied!r} and {logits!r}"
        )
    net = _Decoder(seed, width, heads)
    tokens = net.input("tokens", "i32", batch, sequence)
    x = net.embed(tokens, vocabulary, context)
    for layer in range(layers):
        x = net.block(x, f"h{layer}")
    result = net.head(x, vocabulary, tied=tied, last=logits == "last")
    return net.module(name, [result])


class _Decoder(NetworkWriter):
    """Writes one decoder part by part."""

    def __init__(self, seed: int, width: int, heads: int) -> None:
        super().__init__(seed)
        self._width, self._heads = width, heads
        self._numbers: dict[str, Tensor] = {}

    def _number(self, value: float) -> Tensor:
        name = f"number.{value:.9g}".replace("+", "")
        if name not in self._numbers:
            self._numbers[name] = self.w.constant(np.asarray(value, np.float32), name)
        return self._numbers[name]

    def _linear(self, x: Tensor, units: int, name: str) -> Tensor:
        """x * weight^T + bias along the last dimension, as a sum."""
        made = self.w.op("dense", x, self.weight(f"{name}.kernel", units, x.shape[-1]))
        return self.w.op("add", made, self.weight(f"{name}.bias", units))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.layer_norm(x, name, EPSILON)

    def embed(self, tokens: Tensor, vocabulary: int, context: int) -> Tensor:
        """Rows of the token table plus rows of the position table: [batch, sequence, width]."""
        sequence = tokens.shape[1]
        with self.scope("embed"):
            words = self.w.op("take", self.weight("tokens", vocabulary, self._width), tokens, axis=0)
            table = self.weight("positions", context, self._width)
            places = self.w.op(
                "strided_slice", table, begin=(0, 0), size=(sequence, self._width), strides=(1, 1)
            )
            return self.w.op("add", words, places)

    def block(self, x: Tensor, name: str) -> Tensor:
        """x plus attention, plus the network with one hidden layer; each reads a normalised x."""
        with self.scope(name):
            with self.scope("attention"):
                x = self.w.op("add", x, self._attention(self._norm(x, "norm")))
            with self.scope("mlp"):
                hidden = self._linear(self._norm(x, "norm"), 4 * self._width, "up")
                return self.w.op("add", x, self._linear(self._gelu(hidden), self._width, "down"))

    def _attention(self, x: Tensor) -> Tensor:
        """Softmax(q k^T / sqrt(n)) v per head, over this token and those before it, then a projection."""
        batch, sequence, width = x.shape
        size = width // self._heads
        joint = self._linear(x, 3 * width, "qkv")
        parts = self.w.op("reshape", joint, newshape=(batch, sequence, 3, self._heads, size))
        apart = self.w.op("transpose", parts, axes=(2, 0, 3, 1, 4))
        q, k, v = (self._part(apart, index) for index in range(3))
        scores = self.w.op("matmul", q, k, transpose_b=True)
        scaled = self.w.op("multiply", scores, self._number(1 / math.sqrt(size)))
        seen = self.w.op("where", self._before(sequence), scaled, self._number(MASKED))
        mixed = self.w.op("matmul", self.w.op("softmax", seen, axis=-1), v)
        back = self.w.op("transpose", mixed, axes=(0, 2, 1, 3))
        return self._linear(self.w.op("reshape", back, newshape=(batch, sequence, width)), width, "project")

    def _part(self, apart: Tensor, index: int) -> Tensor:
        """Query, key or value: [batch, heads, sequence, size]."""
        shape = apart.shape
        begin, size = (index, 0, 0, 0, 0), (1, *shape[1:])
        piece = self.w.op("strided_slice", apart, begin=begin, size=size, strides=(1,) * 5)
        return self.w.op("reshape", piece, newshape=shape[1:])

    def _before(self, sequence: int) -> Tensor:
        """[sequence, sequence]: true where the column is not after the row."""
        places = self.w.op("arange", stop=sequence, dtype="i32")
        rows = self.w.op("reshape", places, newshape=(sequence, 1))
        return self.w.op("less_equal", places, rows)

    def _gelu(self, x: Tensor) -> Tensor:
        """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))), as GPT-2 has it."""
        cube = self.w.op("multiply", self.w.op("multiply", x, x), x)
        inner = self.w.op("add", x, self.w.op("multiply", cube, self._number(0.044715)))
        bent = self.w.op("tanh", self.w.op("multiply", inner, self._number(math.sqrt(2 / math.pi))))
        half = self.w.op("multiply", x, self._number(0.5))
        return self.w.op("multiply", half, self.w.op("add", bent, self._number(1.0)))

    def head(self, x: Tensor, vocabulary: int, *, tied: bool, last: bool) -> Tensor:
        """The last normalisation and one product with the token table, or a table of its own."""
        batch, sequence, width = x.shape
        with self.scope("head"):
            if last:
                size = (batch, 1, width)
                x = self.w.op("strided_slice", x, begin=(0, sequence - 1, 0), size=size, strides=(1, 1, 1))
            x = self._norm(x, "norm")
        with self.scope("embed" if tied else "head"):
            table = self.weight("tokens", vocabulary, width)
        with self.scope("head"):
            return self.w.op("dense", x, table)


def _options(sizes: Sequence[int]) -> dict[str, Any]:
    """Published sizes as options of `gpt`."""
    names = ("layers", "width", "heads", "vocabulary", "context", "sequence")
    return dict(zip(names, sizes, strict=False))


#: GPT-2: Radford et al. 2019, table 2, heads of 64 channels; GPT-3: Brown et al. 2020, table 2.1
_SIZES: Mapping[str, Sequence[int]] = {
    "gpt": (),
    "gpt_tiny": (2, 64, 4, 256, 64, 16),
    "gpt2_small": (12, 768, 12, 50257, 1024, 128),
    "gpt2_medium": (24, 1024, 16, 50257, 1024, 128),
    "gpt2_large": (36, 1280, 20, 50257, 1024, 128),
    "gpt2_xl": (48, 1600, 25, 50257, 1024, 128),
    "gpt3_2_7b": (32, 2560, 32, 50257, 2048, 128),
    "gpt3_6_7b": (32, 4096, 32, 50257, 2048, 128),
}

#: Builders by name: `gpt` with sizes of its own, and the published ones.
GPT_NETWORKS: Mapping[str, Callable[..., Module]] = {
    name: partial(gpt, name=name, **_options(sizes)) for name, sizes in _SIZES.items()
}
