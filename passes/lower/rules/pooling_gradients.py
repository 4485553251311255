"""Gradients of pooling: the position of the largest tap, and what every element gathers from its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import substitute
from tilewright.ir.graph_ops.layouts import Window
from tilewright.ir.graph_ops.pooling import lowest_finite, pool_windows
from tilewright.ir.graph_ops.pooling_gradients import image_windows
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    elementwise,
    larger,
    lowering,
    mapped,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.pooling import counted_taps
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, letters_of, tap_dims, window_reads
from tilewright.passes.lower.scalars import Scalar, Scalars

_NAMES = {"N": "n", "C": "c", **OUTPUTS}
#: most taps that one map compares one after the other
MAX_TAPS = 64


@lowering("graph.max_pool1d_position", "graph.max_pool2d_position", "graph.max_pool3d_position")
def position(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A map that compares the taps in their order; where they are many, a window for the largest element and
    one for the first tap that holds it.

    One map compares what it has read, whatever it was computed from: it cannot miss the largest element.
    """
    attrs = op.attributes
    layout = attrs["layout"]
    along = pool_windows(x[0].tensor, attrs, len(layout) - 2)
    if prod(w.kernel for w in along) > MAX_TAPS:
        return [_position_by_windows(b, op, x[0])]
    letters = letters_of(layout)
    t, outside = result_type(op), lowest_finite(x[0].tensor.dtype)
    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    where: dict[str, Expr] = {"N": Sym("n"), "C": Sym("c"), **window_reads(attrs, letters)}
    reads = []
    for tap in np.ndindex(*(w.kernel for w in along)):
        env = {TAPS[d]: k for d, k in zip(letters, tap, strict=True)}
        reads.append(tuple(substitute(where[d], env) for d in layout))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        best, place = p[0], i.const(0, "i32")
        for k, v in enumerate(p[1:], 1):
            better = (v > best) | (v.apply("isnan") & ~best.apply("isnan"))
            best, place = better.select(v, best), better.select(k, place)
        return i.cast(place, t.dtype)

    return [mapped(b, [x[0]] * len(reads), t, par, reads, body, (outside,) * len(reads))]


def _position_by_windows(b: Builder, op: Op, x: Value) -> Value:
    attrs, t, outside = op.attributes, result_type(op), lowest_finite(x.tensor.dtype)
    layout, sizes = attrs["layout"], attrs["pool_size"]
    letters = letters_of(layout)
    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    red = tap_dims(dict(zip(letters, sizes, strict=True)), {})
    where: dict[str, Expr] = {"N": Sym("n"), "C": Sym("c"), **window_reads(attrs, letters)}
    window = tuple(where[d] for d in layout)
    extreme = TensorType(x.tensor.dtype, t.shape)
    best = reduced(
        b, "tensor.window", [x], extreme, par, red, [window], larger, init=outside, fill=(outside,)
    )
    place: Expr = 0
    for d, n in zip(letters, sizes, strict=True):
        place = place * n + Sym(TAPS[d])
    nowhere = prod(sizes)

    def first(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here = p[0].equals(p[1]) | p[0].apply("isnan")
        return here.select(i.index(place), nowhere).min(p[2])

    places = tuple(Sym(_NAMES[d]) for d in layout)
    number = TensorType("i32", t.shape)
    numbers = reduced(
        b, "tensor.window", [x, best], number, par, red, [window, places], first, init=nowhere,
        fill=(outside, None),
    )  # fmt: skip
    return converted(b, numbers, t)


@dataclass(frozen=True)
class _Windows:
    """The windows along one dimension that hold an element of the image.

    There are up to `count` of them, one for each value of the reduced dimension `step`: the window `number`,
    of which the element is tap `tap`. It is none where the division by the dilation leaves a `remainder`
    (None: it never does) or, if `bounded`, where the window has fewer taps.
    """

    step: str
    count: int
    number: Expr
    tap: Expr
    remainder: Expr | None
    bounded: bool

    @classmethod
    def of(cls, letter: str, w: Window) -> _Windows:
        step = TAPS[letter]
        count = (w.reach - 1) // w.stride + 1
        shifted = Sym(_NAMES[letter]) + w.before
        ranges = {_NAMES[letter]: (0, w.size - 1), step: (0, count - 1)}
        distance = simplify(shifted % w.stride + Sym(step) * w.stride, ranges)
        remainder = simplify(distance % w.dilation, ranges) if w.dilation > 1 else None
        farthest = (w.stride - 1 + (count - 1) * w.stride) // w.dilation
        return cls(
            step,
            count,
            simplify(shifted // w.stride - Sym(step), ranges),
            simplify(distance // w.dilation, ranges),
            remainder,
            farthest >= w.kernel,
        )

    def conditions(self, i: Scalars, kernel: int) -> list[Scalar]:
        """What must be true so that a tap of this window reads the element."""
        checks = [i.index(self.tap) < kernel] if self.bounded else []
        return [*checks, *([i.index(self.remainder).equals(0)] if self.remainder is not None else [])]


def _gathered(b: Builder, op: Op, operands: Sequence[Value], along: Sequence[Window]) -> Value:
    """Sums over the windows that hold an element of what comes back from them.

    operands: what every window sends back, and where there is one, which of its taps it goes to.
    """
    layout = str(op["layout"])
    letters = letters_of(layout)
    t = accumulated(result_type(op))
    windows = {d: _Windows.of(d, w) for d, w in zip(letters, along, strict=True)}
    kernel = {d: w.kernel for d, w in zip(letters, along, strict=True)}
    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    red = tap_dims({d: w.count for d, w in windows.items()}, {})
    at: Mapping[str, Expr] = {"N": Sym("n"), "C": Sym("c"), **{d: w.number for d, w in windows.items()}}
    place: Expr = 0
    for d, w in windows.items():
        place = place * kernel[d] + w.tap

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        g, *position, acc = p
        checks = [c for d, w in windows.items() for c in w.conditions(i, kernel[d])]
        checks += [i.cast(v, "i32").equals(i.index(place)) for v in position]
        g = i.cast(g, acc.dtype)
        if checks:
            reads = checks[0]
            for check in checks[1:]:
                reads = reads & check
            g = reads.select(g, 0)
        return g + acc

    reads = [tuple(at[d] for d in layout)] * len(operands)
    fill = (0.0, 0)[: len(operands)]
    sums = reduced(b, "tensor.window", operands, t, par, red, reads, body, fill=fill)
    return converted(b, sums, result_type(op))


@lowering("graph.max_pool1d_grad", "graph.max_pool2d_grad", "graph.max_pool3d_grad")
def max_pool_gradient(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every element gathers from the windows that have it at their position: nothing is added atomically."""
    return [_gathered(b, op, x, image_windows(x[0].tensor, op.attributes, len(str(op["layout"])) - 2))]


@lowering("graph.avg_pool1d_grad", "graph.avg_pool2d_grad", "graph.avg_pool3d_grad")
def avg_pool_gradient(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every window sends its cotangent, divided by how many elements count, to each of its elements."""
    t = accumulated(x[0].tensor)
    counts = counted_taps(op, op.integers("image"))
    total: Expr = 1
    for e in counts.values():
        total *= e
    whole = tuple(map(Sym, dim_names(t.rank)))

    def share(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        taps = i.index(total, "i32").max(1)
        return i.cast(p[0], t.dtype) / i.cast(taps, t.dtype)

    shares = elementwise(b, x, t, share, [whole])
    return [_gathered(b, op, [shares], image_windows(x[0].tensor, op.attributes, t.rank - 2))]
