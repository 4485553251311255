"""Networks that give images or boxes: denoisers, detectors, segmentation, enlargement, generators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tilewright.tools.foreign_bench.blocks import Attention, ChannelNorm, Layer, Mlp, conv
from tilewright.tools.foreign_bench.vision import Residual


def _times(step: Any, width: int, dtype: Any) -> Any:
    """Sines and cosines of the time steps [batch], `width` in all."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(10000.0) / half))
    angles = step[:, None].float() * rates
    return torch.cat([angles.cos(), angles.sin()], -1).to(dtype)


class _TimedBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions with group norms; the time step is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.a, self.b = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.into, self.out = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(time, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        """Images with `outputs` channels."""
        y = self.into(functional.silu(self.a(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.out(functional.silu(self.b(y)))


class _ImageAttention(nn.Module):  # type: ignore[misc]
    """A transformer layer over the places of an image, which may look at a context."""

    def __init__(self, width: int, heads: int, context: int | None) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        cross = Attention(width, heads, context=context, bias=False) if context else None
        self.layer = Layer(
            width, Attention(width, heads, bias=False), Mlp(width, 4 * width, gated=True), cross=cross
        )

    def forward(self, x: Any, context: Any) -> Any:
        """Images like `x`."""
        rows = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.layer(rows, context).transpose(1, 2).reshape(x.shape)


class Denoiser(nn.Module):  # type: ignore[misc]
    """The U-Net of Ho et al. (2020) and, with a context, of Rombach et al. (2022).

    attend: the stages, from the largest image on, whose blocks are followed by attention.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        multiples: Sequence[int],
        attend: Sequence[int],
        heads: int,
        context: int = 0,
    ) -> None:
        super().__init__()
        self.width, self.context, time = width, context, 4 * width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, width, 3, 1, 1)
        widths = [width * m for m in multiples]

        def looks(stage: int) -> nn.Module | None:
            return _ImageAttention(widths[stage], heads, context or None) if stage in attend else None

        self.down, self.down_attention, self.shrink = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        before = width
        for i, w in enumerate(widths):
            self.down.append(_TimedBlock(before, w, time))
            self.down_attention.append(looks(i) or nn.Identity())
            self.shrink.append(nn.Conv2d(w, w, 3, 2, 1) if i + 1 < len(widths) else nn.Identity())
            before = w
        self.middle = nn.ModuleList([_TimedBlock(before, before, time), _TimedBlock(before, before, time)])
        self.centre = _ImageAttention(before, heads, context or None)
        self.up, self.up_attention = nn.ModuleList(), nn.ModuleList()
        for i in reversed(range(len(widths))):
            self.up.append(_TimedBlock(before + widths[i], widths[i], time))
            self.up_attention.append(looks(i) or nn.Identity())
            before = widths[i]
        self.norm, self.head = nn.GroupNorm(8, before), nn.Conv2d(before, channels, 3, 1, 1)

    @staticmethod
    def _look(layer: nn.Module, x: Any, context: Any) -> Any:
        return layer(x, context) if isinstance(layer, _ImageAttention) else x

    def forward(self, x: Any, step: Any, *contexts: Any) -> Any:
        """The noise in `x` at the time steps `step`."""
        context = contexts[0] if contexts else None
        time = self.embed(_times(step, self.width, x.dtype))
        x, skips = self.stem(x), []
        for block, attention, shrink in zip(self.down, self.down_attention, self.shrink, strict=True):
            x = self._look(attention, block(x, time), context)
            skips.append(x)
            x = shrink(x)
        x = self.middle[1](self._look(self.centre, self.middle[0](x, time), context), time)
        for i, (block, attention) in enumerate(zip(self.up, self.up_attention, strict=True)):
            if i:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self._look(attention, block(torch.cat([x, skips[-1 - i]], 1), time), context)
        return self.head(functional.silu(self.norm(x)))


class DiffusionTransformer(nn.Module):  # type: ignore[misc]
    """Peebles and Xie (2023): layers whose norms are scaled and shifted by the time step."""

    def __init__(self, channels: int, size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.size, self.patch, self.channels, self.width = size, patch, channels, width
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.embed = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.attention = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.mlp = nn.ModuleList(Mlp(width, 4 * width) for _ in range(depth))
        self.steer = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(depth))
        self.last, self.head = nn.Linear(width, 2 * width), nn.Linear(width, patch * patch * channels)

    def forward(self, x: Any, step: Any) -> Any:
        """The noise in `x` at the time steps `step`."""
        time = functional.silu(self.embed(_times(step, 256, x.dtype)))
        rows = self.patches(x).flatten(2).transpose(1, 2) + self.places
        shape = rows.shape[-1:]
        for attention, mlp, steer in zip(self.attention, self.mlp, self.steer, strict=True):
            a, b, c, d, e, f = steer(time)[:, None].chunk(6, -1)
            rows = rows + c * attention(functional.layer_norm(rows, shape) * (1 + a) + b)
            rows = rows + f * mlp(functional.layer_norm(rows, shape) * (1 + d) + e)
        scale, shift = self.last(time)[:, None].chunk(2, -1)
        y = self.head(functional.layer_norm(rows, shape) * (1 + scale) + shift)
        side, p = self.size // self.patch, self.patch
        y = y.view(-1, side, side, p, p, self.channels).permute(0, 5, 1, 3, 2, 4)
        return y.reshape(-1, self.channels, self.size, self.size)


class _Split(nn.Module):  # type: ignore[misc]
    """Wang et al. (2020): half of the channels through blocks, joined with the other half."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, add: bool) -> None:
        super().__init__()
        half, self.add = outputs // 2, add
        self.left, self.right = conv(inputs, half, 1, act="silu"), conv(inputs, half, 1, act="silu")
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(half, half, 1, act="silu"), conv(half, half, 3, act="silu"))
            for _ in range(depth)
        )
        self.join = conv(outputs, outputs, 1, act="silu")

    def forward(self, x: Any) -> Any:
        """Images with `outputs` channels."""
        y = self.left(x)
        for block in self.blocks:
            y = y + block(y) if self.add else block(y)
        return self.join(torch.cat([y, self.right(x)], 1))


class OneStage(nn.Module):  # type: ignore[misc]
    """A detector in one stage in the manner of YOLOX (Ge et al. 2021): split stages, a path up and down."""

    def __init__(self, width: int, depths: Sequence[int], classes: int = 80) -> None:
        super().__init__()
        w = [width * m for m in (1, 2, 4, 8, 16)]
        self.stem = conv(3, w[0], 6, 2, act="silu")
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2, act="silu"), _Split(b, b, d, add=True))
            for (a, b), d in zip(pairwise(w), depths, strict=True)
        )
        self.pool = conv(w[4], w[3], 1, act="silu")
        self.spread = conv(4 * w[3], w[4], 1, act="silu")
        self.narrow = nn.ModuleList([conv(w[4], w[3], 1, act="silu"), conv(w[3], w[2], 1, act="silu")])
        self.up = nn.ModuleList([_Split(2 * w[3], w[3], 1, add=False), _Split(2 * w[2], w[2], 1, add=False)])
        self.shrink = nn.ModuleList([conv(w[2], w[2], 3, 2, act="silu"), conv(w[3], w[3], 3, 2, act="silu")])
        self.down = nn.ModuleList(
            [_Split(2 * w[2], w[3], 1, add=False), _Split(2 * w[3], w[4], 1, add=False)]
        )
        self.boxes = nn.ModuleList(
            nn.Sequential(conv(c, w[2], act="silu"), nn.Conv2d(w[2], 4, 1)) for c in w[2:]
        )
        self.classes = nn.ModuleList(
            nn.Sequential(conv(c, w[2], act="silu"), nn.Conv2d(w[2], classes + 1, 1)) for c in w[2:]
        )

    def forward(self, x: Any) -> Any:
        """Boxes and probabilities [batch, places, 4 + 1 + classes] of images whose size 32 divides."""
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        pools = [self.pool(x)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        top = self.narrow[0](self.spread(torch.cat(pools, 1)))
        enlarged = functional.interpolate(top, scale_factor=2.0, mode="nearest")
        middle = self.narrow[1](self.up[0](torch.cat([enlarged, maps[2]], 1)))
        enlarged = functional.interpolate(middle, scale_factor=2.0, mode="nearest")
        low = self.up[1](torch.cat([enlarged, maps[1]], 1))
        mid = self.down[0](torch.cat([self.shrink[0](low), middle], 1))
        high = self.down[1](torch.cat([self.shrink[1](mid), top], 1))
        results = []
        for y, boxes, classes in zip((low, mid, high), self.boxes, self.classes, strict=True):
            results.append(torch.cat([boxes(y), classes(y).sigmoid()], 1).flatten(2))
        return torch.cat(results, 2).transpose(1, 2)


def _features(backbone: Residual, x: Any, stages: int) -> list[Any]:
    """What the last layers of every size of a backbone give, the largest image first, at most `stages`."""
    maps: list[Any] = []
    for layer in backbone.layers:
        x = layer(x)
        if maps and maps[-1].shape[-1] == x.shape[-1]:
            maps[-1] = x
        else:
            maps.append(x)
    return maps[-stages:]


class Pyramid(nn.Module):  # type: ignore[misc]
    """RetinaNet (Lin et al. 2017): a pyramid of features and two heads that all its levels share."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int], width: int, classes: int = 80) -> None:
        super().__init__()
        self.backbone = Residual(widths, depths, inner=0.25, pooled=True)
        self.sides = nn.ModuleList(nn.Conv2d(w, width, 1) for w in widths[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in widths[1:])
        self.further = nn.Conv2d(width, width, 3, 2, 1)
        self.boxes, self.scores = self._head(width, 9 * 4), self._head(width, 9 * classes)

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Sequential:
        layers = [m for _ in range(3) for m in (nn.Conv2d(width, width, 3, 1, 1), nn.ReLU())]
        return nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, 1, 1))

    def forward(self, x: Any) -> Any:
        """Boxes and scores of all places of all levels."""
        maps = _features(self.backbone, x, len(self.sides))
        levels = [side(m) for side, m in zip(self.sides, maps, strict=True)]
        for i in reversed(range(len(levels) - 1)):
            levels[i] = levels[i] + functional.interpolate(levels[i + 1], scale_factor=2.0, mode="nearest")
        levels = [smooth(y) for smooth, y in zip(self.smooth, levels, strict=True)]
        levels.append(self.further(levels[-1]))
        boxes = torch.cat([self.boxes(y).flatten(2) for y in levels], 2)
        return boxes, torch.cat([self.scores(y).flatten(2) for y in levels], 2).sigmoid()


class SetOfBoxes(nn.Module):  # type: ignore[misc]
    """DETR (Carion et al. 2020): learnt queries look at the features of an image."""

    def __init__(
        self, size: int, widths: Sequence[int], depths: Sequence[int], width: int, layers: int, queries: int
    ) -> None:
        super().__init__()
        self.backbone = Residual(widths, depths, inner=0.25, pooled=True)
        self.into = nn.Conv2d(widths[-1], width, 1)
        self.places = nn.Parameter(torch.zeros(1, (size // 32) ** 2, width))
        self.queries = nn.Parameter(torch.zeros(1, queries, width))
        self.encoder = nn.ModuleList(
            Layer(width, Attention(width, 8), Mlp(width, 8 * width, "relu"), before=False)
            for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            Layer(
                width,
                Attention(width, 8),
                Mlp(width, 8 * width, "relu"),
                cross=Attention(width, 8, context=width),
            )
            for _ in range(layers)
        )
        self.classes, self.boxes = (
            nn.Linear(width, 92),
            nn.Sequential(Mlp(width, width, "relu"), nn.Linear(width, 4)),
        )

    def forward(self, x: Any) -> Any:
        """Scores of classes and boxes of every query."""
        rows = self.into(self.backbone.layers(x)).flatten(2).transpose(1, 2) + self.places
        for layer in self.encoder:
            rows = layer(rows)
        y = self.queries.expand(x.shape[0], -1, -1)
        for layer in self.decoder:
            y = layer(y, rows)
        return self.classes(y), self.boxes(y).sigmoid()


class UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al. (2015); norm: `group` or `batch`; grows by transposed convolutions."""

    def __init__(self, width: int, levels: int, norm: str = "group", classes: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(levels + 1)]
        self.norm = norm
        self.down = nn.ModuleList(self._block(a, b) for a, b in pairwise((3, *widths)))
        pairs = list(pairwise(widths[::-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(self._block(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def _block(self, inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a in (inputs, outputs):
            norm = nn.GroupNorm(8, outputs) if self.norm == "group" else nn.BatchNorm2d(outputs)
            layers += [nn.Conv2d(a, outputs, 3, 1, 1), norm, nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """Maps of classes as large as the image."""
        skips: list[Any] = []
        for block in self.down:
            x = block(functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for grow, block, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


class Dilated(nn.Module):  # type: ignore[misc]
    """DeepLabV3 (Chen et al. 2017): dilated convolutions of several rates beside the mean of the image."""

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        width: int,
        rates: Sequence[int],
        classes: int = 21,
    ) -> None:
        super().__init__()
        self.backbone = Residual(widths, depths, inner=0.25, pooled=True)
        self.rates = nn.ModuleList(conv(widths[-1], width, 3, act="relu", dilation=r) for r in rates)
        self.point = conv(widths[-1], width, 1, act="relu")
        self.mean = nn.Sequential(nn.Conv2d(widths[-1], width, 1), nn.ReLU())
        self.join = conv((len(rates) + 2) * width, width, 1, act="relu")
        self.head = nn.Sequential(conv(width, width, 3, act="relu"), nn.Conv2d(width, classes, 1))

    def forward(self, x: Any) -> Any:
        """Maps of classes as large as the image."""
        y = self.backbone.layers(x)
        size = y.shape[-2:]
        mean = self.mean(y.mean((2, 3), keepdim=True)).expand(-1, -1, *size)
        y = self.head(self.join(torch.cat([self.point(y), *(rate(y) for rate in self.rates), mean], 1)))
        return functional.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class _Reduced(nn.Module):  # type: ignore[misc]
    """A layer of SegFormer: keys of a smaller image, and a depthwise convolution in the small network."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads, context=width)
        self.shrink = nn.Conv2d(width, width, ratio, ratio) if ratio > 1 else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.depth = nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width)

    def forward(self, rows: Any, height: int, width: int) -> Any:
        """Rows like `rows`, which are the places of an image."""
        y = self.norms[0](rows)
        keys = y
        if self.shrink is not None:
            image = y.transpose(1, 2).reshape(y.shape[0], -1, height, width)
            keys = self.norms[2](self.shrink(image).flatten(2).transpose(1, 2))
        rows = rows + self.attention(y, keys)
        y = self.up(self.norms[1](rows))
        y = self.depth(y.transpose(1, 2).reshape(y.shape[0], -1, height, width)).flatten(2).transpose(1, 2)
        return rows + self.down(functional.gelu(y))


class SegFormer(nn.Module):  # type: ignore[misc]
    """Xie et al. (2021): stages of transformers on ever smaller images, joined by one layer each."""

    def __init__(
        self, widths: Sequence[int], depths: Sequence[int], heads: Sequence[int], classes: int = 150
    ) -> None:
        super().__init__()
        ratios = (8, 4, 2, 1)
        self.patches, self.stages, self.sides = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths)
        for i, (before, w) in enumerate(pairwise((3, *widths))):
            self.patches.append(nn.Conv2d(before, w, 3, 2, 1) if i else nn.Conv2d(3, w, 7, 4, 3))
            self.stages.append(nn.ModuleList(_Reduced(w, heads[i], ratios[i]) for _ in range(depths[i])))
            self.sides.append(nn.Conv2d(w, 256, 1))
        self.join, self.head = conv(1024, 256, 1, act="relu"), nn.Conv2d(256, classes, 1)

    def forward(self, x: Any) -> Any:
        """Maps of classes, a quarter as large as the image."""
        sides: list[Any] = []
        for patches, stage, norm, side in zip(self.patches, self.stages, self.norms, self.sides, strict=True):
            x = patches(x)
            height, width = x.shape[-2:]
            rows = x.flatten(2).transpose(1, 2)
            for layer in stage:
                rows = layer(rows, height, width)
            x = norm(rows).transpose(1, 2).reshape(x.shape)
            y = side(x)
            size = sides[0].shape[-2:] if sides else y.shape[-2:]
            sides.append(
                functional.interpolate(y, size=size, mode="bilinear", align_corners=False) if sides else y
            )
        return self.head(self.join(torch.cat(sides, 1)))


class Enlarger(nn.Module):  # type: ignore[misc]
    """EDSR (Lim et al. 2017): residual blocks without norms, then sub-pixel convolutions."""

    def __init__(self, width: int, blocks: int, scale: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))
            for _ in range(blocks)
        )
        self.after = nn.Conv2d(width, width, 3, 1, 1)
        self.head = nn.Sequential(nn.Conv2d(width, 3 * scale * scale, 3, 1, 1), nn.PixelShuffle(scale))

    def forward(self, x: Any) -> Any:
        """The enlarged image."""
        first = y = self.stem(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return self.head(first + self.after(y))


class Generator(nn.Module):  # type: ignore[misc]
    """A decoder of latent images in the manner of Esser et al. (2021): norms, nearest enlargement."""

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                ChannelNorm(a),
                nn.SiLU(),
                nn.Conv2d(a, b, 3, 1, 1),
                nn.GroupNorm(8, b),
                nn.SiLU(),
                nn.Conv2d(b, b, 3, 1, 1),
            )
            for a, b in pairwise((widths[0], *widths))
        )
        self.head = nn.Sequential(nn.GroupNorm(8, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, 1, 1))

    def forward(self, x: Any) -> Any:
        """Images, larger by two for every block but the first."""
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(functional.interpolate(x, scale_factor=2.0, mode="nearest") if i else x)
        return self.head(x).tanh()
