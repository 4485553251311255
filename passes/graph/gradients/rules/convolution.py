"""Gradients of convolutions: transposed convolutions, convolutions and gradients by kernels of each other.

With y = C(x, w) for a convolution, <g, C(x, w)> = <T(g, w), x> = <W(g, x), w>: T is the transposed
convolution and W the gradient by the kernel, both with the same strides, padding, dilation and groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.layouts import SPATIAL, arranged
from tilewright.ir.graph_ops.octave import octave_parts
from tilewright.ir.nodes import Value
from tilewright.passes.graph.gradients.registry import GRADIENTS, Backward, derived, gradient

_TRANSPOSED_LETTERS = str.maketrans("OI", "IO")


@dataclass(frozen=True)
class _Convolution:
    """What a convolution, a transposed one and a gradient by a kernel have in common."""

    spatial: int
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    data_layout: str
    kernel_layout: str

    @classmethod
    def of(cls, b: Backward) -> _Convolution:
        """That of an op; the layout of a transposed convolution's kernel becomes the convolution's."""
        layout = str(b.attr("kernel_layout"))
        transposed = b.op.name.endswith("_transpose")
        return cls(
            len(layout) - 2,
            b.op.integers("strides"),
            b.op.integers("padding"),
            b.op.integers("dilation"),
            b.op.integer("groups"),
            str(b.attr("data_layout")),
            layout.translate(_TRANSPOSED_LETTERS) if transposed else layout,
        )

    @property
    def letters(self) -> str:
        return SPATIAL[self.spatial]

    def attrs(self, kernel_layout: str = "") -> dict[str, Any]:
        """Attributes of a convolution with its kernel in this layout."""
        return {
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "data_layout": self.data_layout,
            "kernel_layout": kernel_layout or self.kernel_layout,
        }

    def sizes(self, x: Tensor) -> tuple[int, ...]:
        """Spatial extents of data."""
        return arranged(x.shape, self.data_layout, self.letters)

    def taps(self, w: Tensor) -> tuple[int, ...]:
        """Spatial extents of a kernel."""
        return arranged(w.shape, self.kernel_layout, self.letters)

    def channels(self, x: Tensor) -> int:
        """Channels of data."""
        return x.shape[self.data_layout.index("C")]

    def reaches(self, w: Tensor) -> tuple[int, ...]:
        """Elements between the first and the last tap of a kernel, along each dimension."""
        return tuple((k - 1) * d for k, d in zip(self.taps(w), self.dilation, strict=True))

    # -- the three products ----------------------------------------------------------------------------------
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """C(x, w)."""
        return x.writer.op(f"conv{self.spatial}d", x, w, **self.attrs())

    def transposed(self, g: Tensor, w: Tensor, sizes: Sequence[int]) -> Tensor:
        """T(g, w) for data of spatial extents `sizes`.

        With strides of 1 it is a convolution by the kernel turned round, for which more algorithms are known.
        """
        turned = self._turned(g, w)
        if turned is not None:
            return turned
        n = self.spatial
        extra = [
            size + self.padding[d] + self.padding[d + n] - reach - 1 - (count - 1) * self.strides[d]
            for d, (size, reach, count) in enumerate(zip(sizes, self.reaches(w), self.sizes(g), strict=True))
        ]
        layout = self.kernel_layout.translate(_TRANSPOSED_LETTERS)
        return g.writer.op(f"conv{n}d_transpose", g, w, output_padding=tuple(extra), **self.attrs(layout))

    def _turned(self, g: Tensor, w: Tensor) -> Tensor | None:
        """T(g, w) as a convolution; None where strides, padding or groups of several channels forbid it."""
        layout = self.kernel_layout
        reaches = self.reaches(w)
        pads = tuple(r - p for r, p in zip((*reaches, *reaches), self.padding, strict=True))
        outputs, inputs = arranged(w.shape, layout, "OI")
        depthwise = self.groups == outputs and inputs == 1
        if set(self.strides) != {1} or min(pads) < 0 or not (self.groups == 1 or depthwise):
            return None
        for d, k in zip(self.letters, self.taps(w), strict=True):
            w = w.writer.op("reverse", w, axis=layout.index(d)) if k > 1 else w
        turned = layout if depthwise else layout.translate(_TRANSPOSED_LETTERS)
        return replace(self, padding=pads, kernel_layout=turned).forward(g, w)

    def by_kernel(self, g: Tensor, x: Tensor, taps: Sequence[int]) -> Tensor:
        """W(g, x) for a kernel of spatial extents `taps`."""
        name = f"conv{self.spatial}d_weight_grad"
        return x.writer.op(name, g, x, kernel_size=tuple(taps), **self.attrs())


@gradient("graph.conv1d", "graph.conv2d", "graph.conv3d")
def convolution(b: Backward) -> Sequence[Tensor | None]:
    """dx = T(g, w), dw = W(g, x)."""
    c, (x, w) = _Convolution.of(b), b.x
    g = b.g.cast(x.dtype)
    if c.groups > 1 and c.channels(x) == c.groups and w.shape[c.kernel_layout.index("I")] > 1:
        return _multiplied(b, c, g)
    return [
        c.transposed(g, w, c.sizes(x)) if b.needed[0] else None,
        c.by_kernel(g, x, c.taps(w)) if b.needed[1] else None,
    ]


def _multiplied(b: Backward, c: _Convolution, g: Tensor) -> list[Tensor | None]:
    """The same with a depthwise kernel stored as [channels, multiplier, taps]: as one of [channels *
    multiplier, 1, taps].
    """
    x, w = b.x
    order = f"OI{c.letters}"
    plain = replace(c, kernel_layout=order)
    axes = [c.kernel_layout.index(d) for d in order]
    kernel = w.transpose(*axes)
    flat = kernel.reshape(kernel.shape[0] * kernel.shape[1], 1, *kernel.shape[2:])
    back = [order.index(d) for d in c.kernel_layout]
    dw = None
    if b.needed[1]:
        dw = plain.by_kernel(g, x, kernel.shape[2:]).reshape(*kernel.shape).transpose(*back)
    return [plain.transposed(g, flat, c.sizes(x)) if b.needed[0] else None, dw]


@gradient("graph.conv1d_transpose", "graph.conv2d_transpose", "graph.conv3d_transpose")
def transposed_convolution(b: Backward) -> Sequence[Tensor | None]:
    """y = T(x, w): dx = C(g, w), dw = W(x, g). What lies behind all that x adds to is cut off."""
    c, (x, w) = _Convolution.of(b), b.x
    g = b.g.cast(x.dtype)
    extra = b.op.integers("output_padding")
    if any(e >= s for e, s in zip(extra, c.strides, strict=True)):
        surplus = {d: e - e % s for d, e, s in zip(c.letters, extra, c.strides, strict=True)}
        size = tuple(n - surplus.get(d, 0) for d, n in zip(c.data_layout, g.shape, strict=True))
        g = g.writer.op("strided_slice", g, begin=(0,) * g.rank, size=size, strides=(1,) * g.rank)
    return [
        c.forward(g, w) if b.needed[0] else None,
        c.by_kernel(x, g, c.taps(w)) if b.needed[1] else None,
    ]


@gradient("graph.conv1d_weight_grad", "graph.conv2d_weight_grad", "graph.conv3d_weight_grad")
def weight_gradient(b: Backward) -> Sequence[Tensor | None]:
    """y = W(g, x), and u comes back: dg = C(x, u), dx = T(g, u)."""
    c, (g, x) = _Convolution.of(b), b.x
    u = b.g.cast(x.dtype)
    return [
        c.forward(x, u) if b.needed[0] else None,
        c.transposed(g, u, c.sizes(x)) if b.needed[1] else None,
    ]


@gradient("graph.octave_conv2d")
def octave(b: Backward) -> Sequence[Tensor | None]:
    """The gradients of its parts; `decompose-octave` makes the forward op of the same ones."""
    writer = b.w.builder
    before = len(writer.ops)
    results = octave_parts(writer.emit, b.op.operands, dict(b.op.attrs))
    parts = writer.ops[before:]
    back: dict[Value, Tensor] = {r: b.cotangent(i) for i, r in enumerate(results)}
    for part in reversed(parts):
        inner = Backward(
            b.w,
            part,
            tuple(map(b.w.tensor, part.operands)),
            tuple(map(b.w.tensor, part.results)),
            tuple(back.get(r) for r in part.results),
            (True,) * len(part.operands),
        )
        gradients = GRADIENTS.get(part.name, derived)(inner)
        for v, g in zip(part.operands, gradients, strict=True):
            if g is not None:
                back[v] = back[v] + g if v in back else g
    return [back[v] if needed else None for v, needed in zip(b.op.operands, b.needed, strict=True)]
