"""Pooling: windows, and reductions over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.graph_ops.operands import lowest, zero
from tilewright.ir.graph_ops.pooling import lowest_finite
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    dim_names,
    larger,
    lowering,
    quotient,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.windowed import (
    OUTPUTS,
    divided,
    letters_of,
    tap_dims,
    window_reads,
)
from tilewright.passes.lower.scalars import Body

_NAMES = {"N": "n", "C": "c", **OUTPUTS}


def _pool(
    b: Builder, op: Op, x: Sequence[Value], t: TensorType, body: Body, init: float | int | bool
) -> Value:
    """The window reduction of a pooling op to type `t`; what lies outside the image counts as `init`."""
    attrs = op.attributes
    layout = attrs["layout"]
    letters = letters_of(layout)
    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    red = tap_dims(dict(zip(letters, attrs["pool_size"], strict=True)), {})
    where: dict[str, Expr] = {"N": Sym("n"), "C": Sym("c"), **window_reads(attrs, letters)}
    reads = [tuple(where[d] for d in layout)]
    return reduced(b, "tensor.window", x, t, par, red, reads, body, init=init, fill=(init,))


@lowering("graph.max_pool1d", "graph.max_pool2d", "graph.max_pool3d")
def max_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The largest element of each window."""
    return [_pool(b, op, x, result_type(op), larger, lowest_finite(x[0].tensor.dtype))]


@lowering("graph.avg_pool1d", "graph.avg_pool2d", "graph.avg_pool3d")
def avg_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum of each window over the number of elements that count."""
    attrs = op.attributes
    layout, t = attrs["layout"], result_type(op)
    letters = letters_of(layout)
    sums = _pool(b, op, x, accumulated(t), added, zero(t.dtype))
    extents = dict(zip(layout, x[0].tensor.shape, strict=True))
    return [divided(b, sums, op, counted_taps(op, [extents[d] for d in letters]))]


def counted_taps(op: Op, image: Sequence[int]) -> dict[str, Expr]:
    """Per letter, how many taps of a window of an avg_pool over `image` count, over dims i0, i1, ... of the
    windows: those inside the image (or the padded image).
    """
    attrs = op.attributes
    letters = letters_of(attrs["layout"])
    at = {d: Sym(n) for d, n in zip(attrs["layout"], dim_names(len(attrs["layout"])), strict=True)}

    def counted(axis: int) -> Expr:
        before, after = attrs["padding"][axis], attrs["padding"][axis + len(letters)]
        window, dilation = attrs["pool_size"][axis], attrs["dilation"][axis]
        start = at[letters[axis]] * attrs["strides"][axis] - before
        low, high = (-before, image[axis] + after) if attrs["count_include_pad"] else (0, image[axis])
        # taps t with low <= start + t * dilation < high
        first = maximum(0, (low - start + (dilation - 1)) // dilation)
        last = minimum(window, (high - start + (dilation - 1)) // dilation)
        # a window that reaches past both ends of a short image may hold nothing
        return maximum(0, last - first)

    return {d: counted(axis) for axis, d in enumerate(letters)}


@lowering(*(f"graph.global_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)))
def global_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Mean or maximum over whole images; the image dimensions stay with extent 1."""
    return [over_whole_images(b, op, x)]


def over_whole_images(b: Builder, op: Op, x: Sequence[Value]) -> Value:
    """The reduction of a pooling op whose only window is the image: many threads share each result."""
    layout, t = str(op["layout"]), result_type(op)
    letters = letters_of(layout)
    shape = dict(zip(layout, x[0].tensor.shape, strict=True))
    ones = {"N": "n", "C": "c", **{d: f"one_{d.lower()}" for d in letters}}
    par = {ones[d]: n for d, n in zip(layout, t.shape, strict=True)}
    red = {_NAMES[d]: shape[d] for d in letters}
    reads = [tuple(Sym(_NAMES[d]) for d in layout)]
    if "max" in op.name:
        return reduced(b, "tensor.reduce", x, t, par, red, reads, larger, init=lowest(t.dtype))
    acc = accumulated(t)
    sums = reduced(b, "tensor.reduce", x, acc, par, red, reads, added)
    size = prod(shape[d] for d in letters)
    return quotient(b, sums, size, t)
