"""Directions of a split: which axis of a layer's result each one names."""

from __future__ import annotations

from typing import Final, Literal, get_args

from tilewright.ir.errors import InputError
from tilewright.ir.facts import Elements
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import facts_of

#: image rows, image columns, samples, output channels (or units), positions of a sequence
Direction = Literal["h", "w", "batch", "channels", "sequence"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
#: a plan may also cut what a layer sums over: input channels or the inner extent, its results being added up
INNER: Final = "inner"

_LETTERS: dict[str, str] = {"h": "H", "w": "W", "batch": "N", "channels": "C"}


def is_layer(op: Op) -> bool:
    """Return True for the layers that a split starts at: windows over images and matrix products."""
    return image_layout(op) is not None or is_matrix_product(op)


def is_product(op: Op) -> bool:
    """Return True for layers with weights and matrix products, not for poolings."""
    return op.get("kernel_layout") is not None or is_matrix_product(op)


def is_matrix_product(op: Op) -> bool:
    """Return True for ops that sum products along a dimension that may be divided, and read no images."""
    facts = facts_of(op.name)
    if facts.elements is not Elements.CONTRACTS or image_layout(op) is not None:
        return False
    labels = facts.division(op)
    return labels is not None and bool(labels.sums)


def direction_axis(op: Op, direction: Direction) -> int | None:
    """The axis of a layer's result that a direction names; None where it has none."""
    layout, rank = image_layout(op), op.results[0].tensor.rank
    if layout is not None:
        letter = _LETTERS.get(direction, "")
        return layout.index(letter) if letter and letter in layout else None
    if rank < 1 or not is_matrix_product(op):
        return None
    if direction == "channels":
        return rank - 1
    named = {"batch": 0, "sequence": rank - 2}.get(direction)
    return named if named is not None and 0 <= named < rank - 1 else None


def inner_axis(op: Op) -> int | None:
    """The axis of a layer's first operand that its products are summed over; None where there is none."""
    labels = facts_of(op.name).division(op) if is_product(op) else None
    if labels is None:
        return None
    return next((d for d, label in enumerate(labels.operands[0]) if label in labels.sums), None)


def checked_direction(text: str) -> Direction:
    """The direction that a text names; raises InputError."""
    for direction in DIRECTIONS:
        if text == direction:
            return direction
    raise InputError(f"expected a direction among {', '.join(DIRECTIONS)}, got '{text}'")


def image_layout(op: Op) -> str | None:
    """The layout of the image that the windows of a convolution or a pool slide over; None for other ops."""
    if op.get("kernel_layout") is not None:
        return str(op.get("data_layout")) if op.get("data_layout") is not None else None
    if op.get("pool_size") is not None:
        return str(op["layout"])
    return None
