"""Classifiers of images: transformers, convolutional networks, and what lies between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tilewright.tools.foreign_bench.blocks import (
    ACTIVATIONS,
    Attention,
    ChannelNorm,
    Layer,
    Mlp,
    SqueezeExcite,
    conv,
)

CLASSES = 1000


class VisionTransformer(nn.Module):  # type: ignore[misc]
    """Dosovitskiy et al. (2021), with a token of classes or the mean of all, and scaled layers."""

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        *,
        mean: bool = False,
        scale: bool = False,
    ) -> None:
        super().__init__()
        self.mean = mean
        self.patches = nn.Conv2d(3, width, patch, patch)
        count = (size // patch) ** 2 + (not mean)
        self.token = None if mean else nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, count, width))
        self.layers = nn.ModuleList(
            Layer(width, Attention(width, heads), Mlp(width, 4 * width), scale=scale) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            rows = torch.cat([self.token.expand(rows.shape[0], -1, -1), rows], 1)
        rows = rows + self.places
        for layer in self.layers:
            rows = layer(rows)
        rows = self.norm(rows)
        return self.head(rows.mean(1) if self.mean else rows[:, 0])


class Mixer(nn.Module):  # type: ignore[misc]
    """Tolstikhin et al. (2021): layers over tokens and layers over channels in turns."""

    def __init__(self, size: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        tokens = (size // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.tokens = nn.ModuleList(Mlp(tokens, width // 2) for _ in range(depth))
        self.channels = nn.ModuleList(Mlp(width, 4 * width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x).mean(1))


class _WindowLayer(nn.Module):  # type: ignore[misc]
    """A layer of Swin: attention within windows that are moved by half of one where asked for."""

    def __init__(self, size: int, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.size, self.heads, self.window, self.shift = size, heads, window, shift
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Mlp(width, 4 * width)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        place = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        away = place[:, :, None] - place[:, None] + window - 1
        self.register_buffer("number", away[0] * (2 * window - 1) + away[1], persistent=False)
        if shift:
            cuts = (slice(-window), slice(-window, -shift), slice(-shift, None))
            parts = torch.zeros(size, size)
            for i, rows in enumerate(cuts):
                for j, columns in enumerate(cuts):
                    parts[rows, columns] = 3 * i + j
            parts = self._cut(parts[None, :, :, None])[..., 0]
            apart = (parts[:, None] != parts[:, :, None]).float() * -100.0
            self.register_buffer("apart", apart, persistent=False)

    def _cut(self, x: Any) -> Any:
        """Windows [batch * windows, window * window, width] of [batch, size, size, width]."""
        n, w = self.size // self.window, self.window
        x = x.view(x.shape[0], n, w, n, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, w * w, x.shape[-1])

    def _joined(self, x: Any, batch: int) -> Any:
        n, w = self.size // self.window, self.window
        x = x.view(batch, n, n, w, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(batch, self.size, self.size, x.shape[-1])

    def forward(self, x: Any) -> Any:
        """Images [batch, size, size, width]."""
        batch, width = x.shape[0], x.shape[-1]
        y = self.norms[0](x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self._cut(y)
        shape = (y.shape[0], y.shape[1], 3, self.heads, width // self.heads)
        q, k, v = self.qkv(y).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        bias = (
            self.table[self.number.flatten()].view(y.shape[1], y.shape[1], self.heads).permute(2, 0, 1)[None]
        )
        if self.shift:
            windows = self.apart.shape[0]
            bias = (bias + self.apart[:, None].to(bias.dtype)).repeat(batch, 1, 1, 1)
            assert windows * batch == bias.shape[0]
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = self._joined(self.out(y.transpose(1, 2).reshape(shape[0], shape[1], width)), batch)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norms[1](x))


class Swin(nn.Module):  # type: ignore[misc]
    """Liu et al. (2021): windows of attention on images that are halved between stages."""

    def __init__(
        self, size: int, width: int, depths: Sequence[int], heads: Sequence[int], window: int
    ) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        side, stages, merges = size // 4, [], []
        for i, (depth, count) in enumerate(zip(depths, heads, strict=True)):
            if i:
                merges.append(
                    nn.Sequential(nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False))
                )
                side, width = side // 2, 2 * width
            stages.append(
                nn.ModuleList(
                    _WindowLayer(side, width, count, window, window // 2 if j % 2 and side > window else 0)
                    for j in range(depth)
                )
            )
        self.stages, self.merges = nn.ModuleList(stages), nn.ModuleList(merges)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        x = self.first(self.patches(x).permute(0, 2, 3, 1))
        for i, stage in enumerate(self.stages):
            if i:
                quarters = [x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)]
                x = self.merges[i - 1](torch.cat(quarters, -1))
            for layer in stage:
                x = layer(x)
        return self.head(self.norm(x).mean((1, 2)))


class _ConvNextBlock(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, *, response: bool) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(4 * width if response else width))
        self.shift = nn.Parameter(torch.zeros(4 * width)) if response else None

    def forward(self, x: Any) -> Any:
        """Images like `x`."""
        y = functional.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        if self.shift is None:
            return x + (self.scale * self.down(y)).permute(0, 3, 1, 2)
        size = y.pow(2).sum((1, 2), keepdim=True).sqrt()
        y = self.scale * (y * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.shift + y
        return x + self.down(y).permute(0, 3, 1, 2)


class ConvNext(nn.Module):  # type: ignore[misc]
    """Liu et al. (2022); response: with the norms of responses of Woo et al. (2023)."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int], *, response: bool = False) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i:
                stages += [ChannelNorm(widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
            else:
                stages += [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
            stages += [_ConvNextBlock(width, response=response) for _ in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        return self.head(self.norm(self.stages(x).mean((2, 3))))


class _Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(
        self, inputs: int, inner: int, outputs: int, stride: int, groups: int, *, squeeze: bool
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv(inputs, inner, 1, act="relu"),
            conv(inner, inner, 3, stride, groups=groups, act="relu"),
            *([SqueezeExcite(inner, max(8, inputs // 4))] if squeeze else []),
            conv(inner, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        """Images with `outputs` channels."""
        return functional.relu(self.layers(x) + self.skip(x))


class Residual(nn.Module):  # type: ignore[misc]
    """Bottlenecks: ResNet (He et al. 2016), ResNeXt (Xie et al. 2017), RegNet (Radosavovic et al. 2020).

    inner, group: width of the middle layers and of their groups, both over that of a stage where below one.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        *,
        inner: float = 1.0,
        group: int = 0,
        squeeze: bool = False,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        stem = 64 if pooled else 32
        layers: list[nn.Module] = [conv(3, stem, 7 if pooled else 3, 2, act="relu")]
        layers += [nn.MaxPool2d(3, 2, 1)] if pooled else []
        before = stem
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            middle = int(width * inner)
            for j in range(depth):
                stride = 2 if not j and (i or not pooled) else 1
                groups = middle // group if group else 1
                layers.append(_Bottleneck(before, middle, width, stride, groups, squeeze=squeeze))
                before = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        return self.head(self.layers(x).mean((2, 3)))


class _Inverted(nn.Module):  # type: ignore[misc]
    def __init__(
        self,
        inputs: int,
        outputs: int,
        expand: int,
        kernel: int,
        stride: int,
        act: str,
        squeeze: bool,
        fused: bool,
    ) -> None:
        super().__init__()
        inner = inputs * expand
        first = [conv(inputs, inner, kernel, stride, act=act)] if fused else []
        if not fused:
            first = [conv(inputs, inner, 1, act=act)] if expand > 1 else []
            first.append(conv(inner, inner, kernel, stride, groups=inner, act=act))
        if squeeze:
            first.append(SqueezeExcite(inner, max(8, inputs // 4), hard=act == "hardswish"))
        self.layers = nn.Sequential(*first, conv(inner, outputs, 1))
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Any) -> Any:
        """Images with `outputs` channels."""
        y = self.layers(x)
        return x + y if self.residual else y


class Inverted(nn.Module):  # type: ignore[misc]
    """Inverted bottlenecks: MobileNetV3 (Howard et al. 2019), EfficientNetV2 (Tan and Le 2021).

    stages: width, layers, expansion, kernel, stride, activation, whether squeezed, whether fused.
    """

    def __init__(self, stem: int, stages: Sequence[tuple[Any, ...]], head: int, act: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, stem, 3, 2, act=act)]
        before = stem
        for width, count, expand, kernel, stride, inner, squeeze, fused in stages:
            for j in range(count):
                first = 1 if j else stride
                layers.append(_Inverted(before, width, expand, kernel, first, inner, squeeze, fused))
                before = width
        self.layers = nn.Sequential(*layers, conv(before, head, 1, act=act))
        self.head = nn.Sequential(nn.Linear(head, head), ACTIVATIONS[act](), nn.Linear(head, CLASSES))

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        return self.head(self.layers(x).mean((2, 3)))


class _Shuffled(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.stride = outputs // 2, stride
        source = inputs if stride > 1 else half
        self.right = nn.Sequential(
            conv(source, half, 1, act="relu"),
            conv(half, half, 3, stride, groups=half),
            conv(half, half, 1, act="relu"),
        )
        self.left = nn.Identity()
        if stride > 1:
            self.left = nn.Sequential(
                conv(inputs, inputs, 3, stride, groups=inputs), conv(inputs, half, 1, act="relu")
            )

    def forward(self, x: Any) -> Any:
        """Images whose channels come from both halves in turns."""
        left, right = (x, x) if self.stride > 1 else x.chunk(2, 1)
        y = torch.stack([self.left(left), self.right(right)], 2)
        return y.flatten(1, 2)


class ShuffleNet(nn.Module):  # type: ignore[misc]
    """Ma et al. (2018): half of the channels pass by every unit, then both halves are shuffled."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 24, 3, 2, act="relu"), nn.MaxPool2d(3, 2, 1)]
        before = 24
        for width, depth in zip(widths, depths, strict=True):
            layers += [
                _Shuffled(before if j == 0 else width, width, 2 if j == 0 else 1) for j in range(depth)
            ]
            before = width
        self.layers = nn.Sequential(*layers, conv(before, 1024, 1, act="relu"))
        self.head = nn.Linear(1024, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        return self.head(self.layers(x).mean((2, 3)))


class PlainNet(nn.Module):  # type: ignore[misc]
    """A stack of 3x3 convolutions with biases, as RepVGG (Ding et al. 2021) is deployed."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for (before, width), depth in zip(pairwise((3, *widths)), depths, strict=True):
            for j in range(depth):
                layers += [nn.Conv2d(width if j else before, width, 3, 1 if j else 2, 1), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        return self.head(self.layers(x).mean((2, 3)))


class ConvMixer(nn.Module):  # type: ignore[misc]
    """Trockman and Kolter (2022): depthwise convolutions with large kernels, then pointwise ones."""

    def __init__(self, width: int, depth: int, kernel: int, patch: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, patch, patch), nn.GELU(), nn.BatchNorm2d(width))
        self.depth = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, kernel, 1, kernel // 2, groups=width),
                nn.GELU(),
                nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )
        self.point = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        x = self.stem(x)
        for depth, point in zip(self.depth, self.point, strict=True):
            x = point(x + depth(x))
        return self.head(x.mean((2, 3)))


class Pools(nn.Module):  # type: ignore[misc]
    """PoolFormer (Yu et al. 2022): layers of a transformer with pooling in place of attention."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int]) -> None:
        super().__init__()
        self.stages, self.downs = nn.ModuleList(), nn.ModuleList()
        for i, (before, width) in enumerate(pairwise((3, *widths))):
            self.downs.append(nn.Conv2d(before, width, 3, 2, 1) if i else nn.Conv2d(3, width, 7, 4, 2))
            self.stages.append(nn.ModuleList(self._layer(width) for _ in range(depths[i])))
        self.norm, self.head = nn.GroupNorm(1, widths[-1]), nn.Linear(widths[-1], CLASSES)

    @staticmethod
    def _layer(width: int) -> nn.ModuleDict:
        mlp = nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))
        return nn.ModuleDict({"a": nn.GroupNorm(1, width), "b": nn.GroupNorm(1, width), "mlp": mlp})

    def forward(self, x: Any) -> Any:
        """Scores of classes."""
        for down, stage in zip(self.downs, self.stages, strict=True):
            x = down(x)
            for layer in stage:
                y = layer["a"](x)
                x = x + functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
                x = x + layer["mlp"](layer["b"](x))
        return self.head(self.norm(x).mean((2, 3)))
