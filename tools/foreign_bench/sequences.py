"""Speech, series, recurrent networks, recommendation and points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tilewright.tools.foreign_bench.blocks import Attention, Layer, Mlp


class SpeechEncoder(nn.Module):  # type: ignore[misc]
    """The encoder of Radford et al. (2023): two convolutions over a spectrogram, then a transformer."""

    def __init__(self, bands: int, frames: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(bands, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.places = nn.Parameter(torch.zeros(1, frames // 2, width))
        self.layers = nn.ModuleList(
            Layer(width, Attention(width, heads), Mlp(width, 4 * width)) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        """Rows of half of the frames of [batch, bands, frames]."""
        x = functional.gelu(self.second(functional.gelu(self.first(x)))).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class _ConformerLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.before, self.after = Mlp(width, 4 * width, "silu"), Mlp(width, 4 * width, "silu")
        self.attention = Attention(width, heads)
        self.gate, self.point = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth = nn.Conv1d(width, width, kernel, 1, kernel // 2, groups=width)
        self.batch = nn.BatchNorm1d(width)

    def forward(self, x: Any) -> Any:
        """Rows like `x`."""
        x = x + 0.5 * self.before(self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        y = functional.glu(self.gate(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.point(functional.silu(self.batch(self.depth(y)))).transpose(1, 2)
        return self.norms[4](x + 0.5 * self.after(self.norms[3](x)))


class Conformer(nn.Module):  # type: ignore[misc]
    """Gulati et al. (2020): attention and depthwise convolutions between halves of small networks."""

    def __init__(
        self, bands: int, width: int, depth: int, heads: int, kernel: int, letters: int = 512
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
        )
        self.into = nn.Linear(width * (((bands - 1) // 2 - 1) // 2), width)
        self.layers = nn.ModuleList(_ConformerLayer(width, heads, kernel) for _ in range(depth))
        self.head = nn.Linear(width, letters)

    def forward(self, x: Any) -> Any:
        """Log-probabilities of letters for a quarter of the frames of [batch, frames, bands]."""
        y = self.stem(x[:, None]).transpose(1, 2).flatten(2)
        y = self.into(y)
        for layer in self.layers:
            y = layer(y)
        return functional.log_softmax(self.head(y), -1)


class WaveEncoder(nn.Module):  # type: ignore[misc]
    """Baevski et al. (2020): convolutions over samples, positions by a grouped one, then a transformer."""

    def __init__(self, width: int, depth: int, heads: int, channels: int = 512) -> None:
        super().__init__()
        kernels, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels if i else 1, channels, k, s, bias=False)
            for i, (k, s) in enumerate(zip(kernels, strides, strict=True))
        )
        self.norm, self.into = nn.GroupNorm(channels, channels), nn.Linear(channels, width)
        self.first, self.last = nn.LayerNorm(channels), nn.LayerNorm(width)
        self.places = nn.Conv1d(width, width, 31, 1, 15, groups=16)
        self.body = nn.ModuleList(
            Layer(width, Attention(width, heads), Mlp(width, 4 * width), before=False) for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        """A row for every 320 samples of [batch, samples]."""
        y = x[:, None]
        for i, layer in enumerate(self.layers):
            y = layer(y)
            y = functional.gelu(self.norm(y) if i == 0 else y)
        y = self.into(self.first(y.transpose(1, 2)))
        y = self.last(y + functional.gelu(self.places(y.transpose(1, 2))).transpose(1, 2))
        for layer in self.body:
            y = layer(y)
        return y


class Series(nn.Module):  # type: ignore[misc]
    """Separable convolutions over time with residuals (Kriman et al. 2020)."""

    def __init__(
        self, bands: int, widths: Sequence[int], repeats: int, kernel: int, letters: int = 64
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(bands, widths[0], kernel, 2, kernel // 2), nn.BatchNorm1d(widths[0])
        )
        self.blocks, self.skips = nn.ModuleList(), nn.ModuleList()
        for a, b in pairwise((widths[0], *widths)):
            layers: list[nn.Module] = []
            for j in range(repeats):
                source = b if j else a
                layers += [
                    nn.Conv1d(source, source, kernel, 1, kernel // 2, groups=source), nn.Conv1d(source, b, 1),
                    nn.BatchNorm1d(b), *([nn.ReLU()] if j + 1 < repeats else []),
                ]  # fmt: skip
            self.blocks.append(nn.Sequential(*layers))
            self.skips.append(nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b)))
        self.head = nn.Conv1d(widths[-1], letters, 1)

    def forward(self, x: Any) -> Any:
        """Log-probabilities of letters for half of the frames of [batch, bands, frames]."""
        x = functional.relu(self.stem(x))
        for block, skip in zip(self.blocks, self.skips, strict=True):
            x = functional.relu(block(x) + skip(x))
        return functional.log_softmax(self.head(x), 1)


class Recurrent(nn.Module):  # type: ignore[misc]
    """Tokens through LSTM or GRU layers to scores of all tokens, or of the last."""

    def __init__(
        self,
        cell: str,
        words: int,
        width: int,
        hidden: int,
        layers: int,
        results: int,
        *,
        both: bool,
        whole: bool,
    ) -> None:
        super().__init__()
        self.whole = whole
        self.words = nn.Embedding(words, width)
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.cells = kind(width, hidden, num_layers=layers, bidirectional=both, batch_first=True)
        self.head = nn.Linear(hidden * (1 + both), results)

    def forward(self, ids: Any) -> Any:
        """Scores."""
        rows = self.cells(self.words(ids))[0]
        return self.head(rows if self.whole else rows[:, -1])


class SpectrumReader(nn.Module):  # type: ignore[misc]
    """Convolutions over a spectrogram, then recurrent layers (Amodei et al. 2016)."""

    def __init__(self, bands: int, hidden: int, layers: int, letters: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.cells = nn.GRU(32 * (bands // 4), hidden, layers, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, letters)

    def forward(self, x: Any) -> Any:
        """Scores of letters for half of the frames of [batch, bands, frames]."""
        y = self.stem(x[:, None]).flatten(1, 2).transpose(1, 2)
        return self.head(self.cells(y)[0])


def _stack(widths: Sequence[int]) -> nn.Sequential:
    return nn.Sequential(*(m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())))


class Interactions(nn.Module):  # type: ignore[misc]
    """DLRM (Naumov et al. 2019): products of all pairs of embeddings and of what is dense."""

    def __init__(
        self, dense: int, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _stack((dense, *bottom, width))
        first, second = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", first * (tables + 1) + second, persistent=False)
        self.top = _stack((width + tables * (tables + 1) // 2, *top))
        self.head = nn.Linear(top[-1], 1)

    def forward(self, dense: Any, ids: Any) -> Any:
        """The probability of a click."""
        y = self.bottom(dense)
        rows = torch.stack([y, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.head(self.top(torch.cat([y, products], 1))).sigmoid()


class Crosses(nn.Module):  # type: ignore[misc]
    """DCN V2 (Wang et al. 2021): layers that multiply by the input, beside deep layers."""

    def __init__(self, fields: int, rows: int, width: int, layers: int, deep: Sequence[int]) -> None:
        super().__init__()
        self.table, size = nn.Embedding(rows, width), fields * width
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.deep, self.head = _stack((size, *deep)), nn.Linear(size + deep[-1], 1)

    def forward(self, ids: Any) -> Any:
        """The probability of a click."""
        first = x = self.table(ids).flatten(1)
        for layer in self.layers:
            x = x + first * layer(x)
        return self.head(torch.cat([x, self.deep(first)], 1)).sigmoid()


class NextItem(nn.Module):  # type: ignore[misc]
    """SASRec (Kang and McAuley 2018): causal attention over a history, scored against all items."""

    def __init__(self, items: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Parameter(torch.zeros(1, length, width))
        self.layers = nn.ModuleList(
            Layer(width, Attention(width, heads, causal=True), Mlp(width, width, "relu"))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Any) -> Any:
        """Scores of all items."""
        x = self.items(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x[:, -1]) @ self.items.weight.t()


class Points(nn.Module):  # type: ignore[misc]
    """PointNet (Qi et al. 2017): layers that all points share, and the largest of each feature."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        layers = [
            m for a, b in pairwise((3, *widths)) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
        ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(widths[-1], 512), nn.ReLU(), nn.Linear(512, classes))

    def forward(self, x: Any) -> Any:
        """Scores of classes of [batch, 3, points]."""
        return self.head(self.layers(x).amax(-1))
