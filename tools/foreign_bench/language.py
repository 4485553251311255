"""Networks of text: encoders, decoders, and both, that begin at numbers of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tilewright.tools.foreign_bench.blocks import Attention, Layer, Mlp, RmsNorm


class Encoder(nn.Module):  # type: ignore[misc]
    """Devlin et al. (2019) and its heirs; positions: `learnt`, `relative` (Raffel et al. 2020) or `alibi`.

    embedding: the width of tokens, where it is below that of the layers (Clark et al. 2020).
    """

    def __init__(
        self,
        words: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        *,
        inner: int | None = None,
        before: bool = False,
        positions: str = "learnt",
        embedding: int | None = None,
        norm: str = "layer",
        act: str = "gelu",
    ) -> None:
        super().__init__()
        small = embedding or width
        self.words = nn.Embedding(words, small)
        self.places = nn.Parameter(torch.zeros(1, length, small)) if positions == "learnt" else None
        self.first = nn.LayerNorm(small)
        self.widen = nn.Linear(small, width) if small != width else nn.Identity()
        score = "" if positions == "learnt" else positions
        self.layers = nn.ModuleList(
            Layer(
                width,
                Attention(width, heads, positions=score, length=length),
                Mlp(width, inner or 4 * width, act),
                before=before,
                norm=norm,
            )
            for _ in range(depth)
        )
        self.last = nn.LayerNorm(width) if before else nn.Identity()

    def forward(self, ids: Any) -> Any:
        """Rows of all tokens."""
        x = self.words(ids)
        x = self.widen(self.first(x if self.places is None else x + self.places))
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Decoder(nn.Module):  # type: ignore[misc]
    """A causal language model: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023), NeoX, Mistral.

    rotary: the share of every head that is rotated; 0 for learnt positions. whole: scores of every token, or
    of the last alone.
    """

    def __init__(
        self,
        words: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        *,
        groups: int | None = None,
        head: int | None = None,
        inner: int | None = None,
        rotary: float = 1.0,
        norm: str = "rms",
        act: str = "silu",
        gated: bool = True,
        bias: bool = False,
        parallel: bool = False,
        window: int | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.whole = whole
        self.words = nn.Embedding(words, width)
        self.places = None if rotary else nn.Parameter(torch.zeros(1, length, width))
        self.layers = nn.ModuleList(
            Layer(
                width,
                Attention(
                    width,
                    heads,
                    groups=groups,
                    head=head,
                    causal=True,
                    rotary=rotary,
                    bias=bias,
                    window=window,
                ),
                Mlp(width, inner or 4 * width, act, gated=gated, bias=bias),
                norm=norm,
                parallel=parallel,
            )
            for _ in range(depth)
        )
        self.norm = RmsNorm(width) if norm == "rms" else nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Any) -> Any:
        """Scores of the next token."""
        x = self.words(ids)
        x = x if self.places is None else x + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x if self.whole else x[:, -1]))


class Translator(nn.Module):  # type: ignore[misc]
    """An encoder, and a decoder that looks at it (Vaswani et al. 2017, Raffel et al. 2020)."""

    def __init__(
        self, words: int, length: int, width: int, depth: int, heads: int, *, gated: bool = True
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        mlp: dict[str, Any] = {"activation": "gelu", "gated": gated, "bias": False}
        own: dict[str, Any] = {"bias": False, "length": length}
        self.encoder = nn.ModuleList(
            Layer(
                width,
                Attention(width, heads, positions="relative", **own),
                Mlp(width, 4 * width, **mlp),
                norm="rms",
            )
            for _ in range(depth)
        )
        self.decoder = nn.ModuleList(
            Layer(
                width,
                Attention(width, heads, causal=True, **own),
                Mlp(width, 4 * width, **mlp),
                norm="rms",
                cross=Attention(width, heads, bias=False, context=width),
            )
            for _ in range(depth)
        )
        self.norms = nn.ModuleList([RmsNorm(width), RmsNorm(width)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, source: Any, target: Any) -> Any:
        """Scores of the token after `target`."""
        context = self.words(source)
        for layer in self.encoder:
            context = layer(context)
        context = self.norms[0](context)
        x = self.words(target)
        for layer in self.decoder:
            x = layer(x, context)
        return self.head(self.norms[1](x[:, -1]))
