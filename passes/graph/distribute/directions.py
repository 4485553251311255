"""Directions of a split: which axis of a layer's result each one names."""

from __future__ import annotations

from typing import Final, Literal, get_args

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Op

#: image rows, image columns, samples, output channels (or units), positions of a sequence
Direction = Literal["h", "w", "batch", "channels", "sequence"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
#: a plan may also cut what a layer sums over: input channels or the inner extent, its results being added up
INNER: Final = "inner"

_PRODUCTS = frozenset(f"graph.{n}" for n in ("dense", "matmul", "batch_matmul"))
_LETTERS: dict[str, str] = {"h": "H", "w": "W", "batch": "N", "channels": "C"}


def is_layer(op: Op) -> bool:
    """Whether an op is one of the layers that a split starts at: windows over images and matrix products."""
    return op.name in _PRODUCTS or _image_layout(op) is not None


def is_product(op: Op) -> bool:
    """Whether an op is a layer with weights or a matrix product, not a pooling."""
    return op.name in _PRODUCTS or op.get("kernel_layout") is not None


def direction_axis(op: Op, direction: Direction) -> int | None:
    """The axis of a layer's result that a direction names; None where it has none."""
    layout, rank = _image_layout(op), op.results[0].tensor.rank
    if layout is not None:
        letter = _LETTERS.get(direction, "")
        return layout.index(letter) if letter and letter in layout else None
    if op.name not in _PRODUCTS or rank < 1:
        return None
    named = {"batch": 0, "sequence": rank - 2, "channels": rank - 1}.get(direction)
    return (
        named if named is not None and (named < rank - 1 or direction == "channels") and named >= 0 else None
    )


def inner_axis(op: Op) -> int | None:
    """The axis of a layer's first operand that its products are summed over; None where there is none."""
    if not is_product(op):
        return None
    layout = _image_layout(op)
    return (
        op.operands[0].tensor.rank - (2 if op.get("transpose_a") else 1)
        if layout is None
        else layout.index("C")
    )


def checked_direction(text: str) -> Direction:
    """The direction that a text names; raises InputError."""
    for direction in DIRECTIONS:
        if text == direction:
            return direction
    raise InputError(f"expected a direction among {', '.join(DIRECTIONS)}, got '{text}'")


def _image_layout(op: Op) -> str | None:
    """The layout of a convolution's or a sliding pool's image."""
    if op.get("kernel_layout") is not None:
        return str(op.get("data_layout")) if op.get("data_layout") is not None else None
    if op.get("pool_size") is not None:
        return str(op["layout"])
    return None
