"""Architectures written out in plain torch: image to image, sequences, points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al. (2015) with group norms: contracts, expands by transposed convolutions, joins."""

    def __init__(self, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        widths = [width << i for i in range(levels + 1)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(_block(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        """Two maps of the image's size."""
        skips: list[Any] = []
        for block in self.down:
            x = block(functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for grow, block, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


class _TimedBlock(nn.Module):  # type: ignore[misc]
    """A residual block shifted and scaled by an embedding of the time step."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.into = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Any, time: Any) -> Any:
        """The features, as wide as `outputs`."""
        y = self.into(functional.silu(self.first(x)))
        scale, shift = self.time(functional.silu(time))[:, :, None, None].chunk(2, 1)
        return self.skip(x) + self.out(functional.silu(self.second(y) * (1 + scale) + shift))


class DiffusionUNet(nn.Module):  # type: ignore[misc]
    """The denoiser of Ho et al. (2020): time embedding, attention in the middle, nearest upsampling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = _TimedBlock(width, width, time), _TimedBlock(width, 2 * width, time)
        self.shrink = nn.Conv2d(width, width, 3, 2, 1)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.attend = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.middle = _TimedBlock(2 * width, 2 * width, time)
        self.up1, self.up2 = _TimedBlock(4 * width, width, time), _TimedBlock(2 * width, width, time)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Any, step: Any) -> Any:
        """The noise in images `x` at the times `step` (integers)."""
        rates = torch.exp(torch.arange(self.width // 2, device=x.device) * (-9.21 / (self.width // 2)))
        angles = step[:, None].to(x.dtype) * rates.to(x.dtype)
        time = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        first = self.down1(self.stem(x), time)
        second = self.down2(self.shrink(first), time)
        batch, channels, height, width = second.shape
        rows = self.norm(second).flatten(2).transpose(1, 2)
        rows = self.attend(rows, rows, rows, need_weights=False)[0]
        y = second + rows.transpose(1, 2).reshape(batch, channels, height, width)
        y = self.up1(torch.cat([self.middle(y, time), second], 1), time)
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.head(self.up2(torch.cat([y, first], 1), time))


class TemporalConvolutions(nn.Module):  # type: ignore[misc]
    """Bai et al. (2018): causal dilated convolutions in residual blocks."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList([nn.Conv1d(width if i else 4, width, 3, dilation=2**i), nn.Conv1d(width, width, 1)])
            for i in range(levels)
        )
        self.skip = nn.Conv1d(4, width, 1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        """Classes of a series [batch, 4, steps]."""
        y = x
        for i, (deep, flat) in enumerate(self.levels):
            z = flat(functional.relu(deep(functional.pad(y, (2 * 2**i, 0)))))
            y = functional.relu(z + (y if i else self.skip(y)))
        return self.head(y[:, :, -1])


class Tagger(nn.Module):  # type: ignore[misc]
    """A bidirectional recurrent tagger of token sequences."""

    def __init__(self, cell: type[nn.Module], words: int = 200, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.cells = cell(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 12)

    def forward(self, ids: Any) -> Any:
        """Scores and log-probabilities of 12 tags per token."""
        scores = self.head(self.cells(self.words(ids))[0])
        return scores, functional.log_softmax(scores, -1)


class SuperResolution(nn.Module):  # type: ignore[misc]
    """Shi et al. (2016) with residual blocks: sub-pixel convolutions triple the size."""

    def __init__(self, width: int = 24, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, padding=2, padding_mode="reflect")
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.Conv2d(width, 27, 3, padding=1), nn.PixelShuffle(3))

    def forward(self, x: Any) -> Any:
        """The image, bicubically enlarged, plus details."""
        y = self.stem(x)
        for block in self.blocks:
            y = y + 0.2 * block(y)
        return self.head(y) + functional.interpolate(x, scale_factor=3, mode="bicubic", align_corners=False)


class Hourglass(nn.Module):  # type: ignore[misc]
    """Keypoints: an hourglass of Newell et al. (2016) and the centre of mass of every heat map."""

    def __init__(self, width: int = 32, depth: int = 3, points: int = 17) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.skips = nn.ModuleList(self._residual(width) for _ in range(depth))
        self.lower = nn.ModuleList(self._residual(width) for _ in range(depth + 1))
        self.head = nn.Conv2d(width, points, 1)

    @staticmethod
    def _residual(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(width, width // 2, 1), nn.BatchNorm2d(width // 2), nn.LeakyReLU(0.1),
            nn.Conv2d(width // 2, width, 3, padding=1), nn.BatchNorm2d(width), nn.ELU(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Heat maps, and the points [batch, points, 2] in pixels of the maps."""
        y, skips = self.stem(x), []
        for skip, lower in zip(self.skips, self.lower, strict=False):
            skips.append(skip(y))
            y = lower(functional.max_pool2d(y, 2))
        y = self.lower[-1](y)
        for skip in reversed(skips):
            y = skip + functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)
        maps = self.head(y)
        batch, points, height, width = maps.shape
        weights = maps.flatten(2).softmax(-1).view(batch, points, height, width)
        rows = torch.arange(height, device=x.device).to(maps.dtype)
        columns = torch.arange(width, device=x.device).to(maps.dtype)
        place = (weights.sum(2) @ columns, weights.sum(3) @ rows)
        return maps, torch.stack(place, -1)


class Recogniser(nn.Module):  # type: ignore[misc]
    """Text of an image row: convolutions, then a recurrent network over columns (Shi et al. 2015)."""

    def __init__(self, letters: int = 40) -> None:
        super().__init__()
        widths = (1, 16, 32, 48)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.InstanceNorm2d(w, affine=True) for w in widths[1:])
        self.cells = nn.LSTM(48, 32, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, letters)

    def forward(self, x: Any) -> Any:
        """Scores and log-probabilities [batch, columns, letters] of images [batch, 1, 32, width]."""
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = functional.max_pool2d(functional.hardswish(norm(layer(x))), (2, 2 if i < 2 else 1))
        x = functional.adaptive_avg_pool2d(x, (1, x.shape[3])).squeeze(2).transpose(1, 2)
        scores = self.head(self.cells(x)[0])
        return scores, scores.log_softmax(-1)


class PointNet(nn.Module):  # type: ignore[misc]
    """Sets of points (Qi et al. 2017): a learned rotation, shared layers, the largest of each feature."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 9))
        self.layers = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, width, 1)
        )
        self.head = nn.Sequential(nn.Linear(width + 3, 32), nn.Softplus(), nn.Linear(32, 6))

    def forward(self, x: Any) -> Any:
        """Classes of every point of [batch, points, 3]."""
        matrix = self.turn(x).amax(1).view(-1, 3, 3) + torch.eye(3, device=x.device, dtype=x.dtype)
        turned = torch.bmm(x, matrix)
        features = self.layers(turned.transpose(1, 2)).amax(-1)
        spread = turned.std(1)
        joined = torch.cat([features, spread], 1)[:, None].expand(-1, x.shape[1], -1)
        nearest = torch.cdist(turned, turned).topk(2, largest=False).values[..., 1:]
        return self.head(joined) * torch.exp(-nearest)


class Translator(nn.Module):  # type: ignore[misc]
    """Torch's own encoder and decoder of Vaswani et al. (2017), with a causal mask."""

    def __init__(self, words: int = 300, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = nn.Transformer(width, 4, 2, 2, 128, batch_first=True, norm_first=True, activation="gelu")
        self.head = nn.Linear(width, words)

    def forward(self, source: Any, target: Any) -> Any:
        """Scores of the next word at every place of `target`."""
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=source.device).triu(1)
        return self.head(self.body(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True))
