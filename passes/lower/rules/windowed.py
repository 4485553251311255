"""Names and index expressions shared by the rules of convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.graph_ops.layouts import SPATIAL
from tilewright.passes.lower.lowering import dim_names, elementwise, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars

#: dimension of the iteration domain that counts the windows along a spatial dimension
OUTPUTS = {"D": "z", "H": "y", "W": "x"}
#: reduced dimension that counts the taps along a spatial dimension
TAPS = {"D": "q", "H": "r", "W": "s"}


def letters_of(layout: str) -> str:
    """The spatial letters of a data layout, in their canonical order."""
    return SPATIAL[len(layout) - 2]


def window_read(letter: str, stride: int, dilation: int, before: int) -> Expr:
    """The index at which a tap of a window reads along a spatial dimension; may lie outside."""
    start = Sym(OUTPUTS[letter]) * stride
    reach = start + Sym(TAPS[letter]) * dilation
    return reach - before


def window_reads(attrs: Mapping[str, Any], letters: str) -> dict[str, Expr]:
    """`window_read` along every spatial dimension, from strides, padding and dilation."""
    steps = zip(letters, attrs["strides"], attrs["dilation"], attrs["padding"][: len(letters)], strict=True)
    return {d: window_read(d, stride, dilation, before) for d, stride, dilation, before in steps}


def tap_dims(taps: Mapping[str, int], channels: Mapping[str, int]) -> dict[str, int]:
    """Reduced dimensions in the order kernels expect: taps beyond two dimensions, channels, other taps."""
    named = {TAPS[d]: n for d, n in taps.items()}
    outer = {d: n for d, n in named.items() if d == TAPS["D"]}
    return {**outer, **channels, **named}


def divided(b: Builder, sums: Value, op: Op, counts: Mapping[str, Expr]) -> Value:
    """`sums` over the product of `counts` (at least 1) at each point, in the result's dtype.

    counts: number of elements per letter of the layout, over dimension names i0, i1, ...
    """
    t, acc = result_type(op), sums.tensor.dtype
    names = dim_names(t.rank)
    division = "scalar.div" if acc.startswith(("f", "bf")) else "scalar.truncdiv"
    total: Expr = 1
    for e in counts.values():
        total *= e

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        taps = i.index(total, "i32").max(1)
        return i.cast(i.value(division, p[0], i.cast(taps, acc)), t.dtype)

    return elementwise(b, [sums], t, body, [tuple(map(Sym, names))])
