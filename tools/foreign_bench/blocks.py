"""Parts that several architectures share: attention in its usual forms, gated layers, norms, squeezes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

ACTIVATIONS = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "hardswish": nn.Hardswish,
}  # fmt: skip


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Zhang and Sennrich (2019): divided by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """Normed rows of `x`."""
        wide = x.float() if x.dtype != torch.float64 else x
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normed.to(x.dtype) * self.weight


class ChannelNorm(nn.Module):  # type: ignore[misc]
    """A layer norm over the channels of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        """Normed images [batch, channels, height, width]."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mlp(nn.Module):  # type: ignore[misc]
    """Two layers with an activation between, or, gated, three (Shazeer 2020)."""

    def __init__(
        self, width: int, inner: int, activation: str = "gelu", *, gated: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Any) -> Any:
        """Rows as wide as those of `x`."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


def rotated(x: Any, fraction: float = 1.0, base: float = 10000.0) -> Any:
    """Rotary positions (Su et al. 2021) on the first `fraction` of the heads [batch, heads, length, d]."""
    length, size = x.shape[-2], int(x.shape[-1] * fraction)
    half = size // 2
    rates = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half:size], x[..., size:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class Attention(nn.Module):  # type: ignore[misc]
    """Attention of `heads` heads whose keys and values may be fewer, over itself or over a context.

    rotary: the share of every head that is rotated by its position. window: how many keys back a query
    sees. positions: `relative` adds a learnt bias by distance to the scores, `alibi` a fixed one.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        groups: int | None = None,
        head: int | None = None,
        causal: bool = False,
        rotary: float = 0.0,
        bias: bool = True,
        context: int | None = None,
        window: int | None = None,
        positions: str = "",
        length: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups or heads, head or width // heads
        self.causal, self.rotary, self.window, self.positions = causal, rotary, window, positions
        self.query = nn.Linear(width, heads * self.head, bias=bias)
        self.key = nn.Linear(context or width, self.groups * self.head, bias=bias)
        self.value = nn.Linear(context or width, self.groups * self.head, bias=bias)
        self.out = nn.Linear(heads * self.head, width, bias=bias)
        if positions == "relative":
            self.bias = nn.Parameter(torch.zeros(heads, 2 * length - 1))

    def _mask(self, x: Any, queries: int) -> Any:
        place = torch.arange(queries, device=x.device)
        distance = place[:, None] - place
        if self.positions == "relative":
            return self.bias[:, distance + queries - 1][None].to(x.dtype)
        if self.positions == "alibi":
            slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, device=x.device) / self.heads)
            return (-slopes[:, None, None] * distance.abs())[None].to(x.dtype)
        if self.window is not None:
            return (distance >= 0) & (distance < self.window)
        return None

    def forward(self, x: Any, context: Any = None) -> Any:
        """Rows [batch, length, width]."""
        source = x if context is None else context
        batch, queries, keys = x.shape[0], x.shape[1], source.shape[1]
        q = self.query(x).view(batch, queries, self.heads, self.head).transpose(1, 2)
        k = self.key(source).view(batch, keys, self.groups, self.head).transpose(1, 2)
        v = self.value(source).view(batch, keys, self.groups, self.head).transpose(1, 2)
        if self.rotary:
            q, k = rotated(q, self.rotary), rotated(k, self.rotary)
        if self.groups != self.heads:
            share = self.heads // self.groups
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        mask = self._mask(x, queries)
        causal = self.causal and mask is None
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(batch, queries, self.heads * self.head))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a small network, each with a norm before it (or behind it) and a residual."""

    def __init__(
        self,
        width: int,
        attention: nn.Module,
        mlp: nn.Module,
        *,
        norm: str = "layer",
        before: bool = True,
        scale: bool = False,
        cross: nn.Module | None = None,
        parallel: bool = False,
    ) -> None:
        super().__init__()
        kind = RmsNorm if norm == "rms" else nn.LayerNorm
        self.attention, self.mlp, self.cross = attention, mlp, cross
        self.before, self.parallel = before, parallel
        self.norms = nn.ModuleList(kind(width) for _ in range(3 if cross is not None else 2))
        self.scales = nn.ParameterList([torch.ones(width), torch.ones(width)]) if scale else None

    def _scaled(self, y: Any, number: int) -> Any:
        return y if self.scales is None else y * self.scales[number]

    def forward(self, x: Any, context: Any = None) -> Any:
        """Rows as wide as those of `x`."""
        if self.parallel:
            return x + self.attention(self.norms[0](x)) + self.mlp(self.norms[1](x))
        if not self.before:
            x = self.norms[0](x + self.attention(x))
            return self.norms[1](x + self.mlp(x))
        x = x + self._scaled(self.attention(self.norms[0](x)), 0)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), context)
        return x + self._scaled(self.mlp(self.norms[1](x)), 1)


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """Hu et al. (2018): channels are weighed by what they hold on average."""

    def __init__(self, width: int, inner: int, *, hard: bool = False) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)
        self.gate = nn.Hardsigmoid() if hard else nn.Sigmoid()

    def forward(self, x: Any) -> Any:
        """Images like `x`."""
        mean = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.out(functional.relu(self.into(mean))))


def conv(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    act: str = "",
    dilation: int = 1,
) -> nn.Sequential:
    """A convolution that keeps the size at stride one, its batch norm, and an activation if named."""
    padding = dilation * (kernel - 1) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([ACTIVATIONS[act]()] if act else []))
