"""The tensor op that says where the pieces of a concatenation lie: nothing is computed and nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType

#: first index and extents of a box inside an array
Box = tuple[tuple[int, ...], tuple[int, ...]]


def boxes_of(op: Op) -> tuple[Box, ...]:
    """The box of the result that each operand of a tensor.join fills."""
    at: Any = op["at"]
    extents: Any = op["extents"]
    return tuple(zip(at, extents, strict=True))


def layout_in(
    shape: tuple[int, ...], steps: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Steps at which an array of shape `target` meets the elements of a box in row-major order.

    shape, steps: of the box; both hold equally many elements. None where no steps do.
    """
    if prod(shape) == 0:
        return None
    left = [(n, s) for n, s in zip(shape, steps, strict=True) if n > 1]
    runs: list[tuple[int, int]] = []  # neighbouring dimensions that are one run of equal steps
    for n, s in left:
        if runs and runs[-1][1] == n * s:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    out: list[int] = []
    for n in reversed(target):
        if n == 1:
            out.append(0)
            continue
        size, step = runs.pop()
        if size % n:
            return None
        out.append(step)
        if size > n:
            runs.append((size // n, step * n))
    return tuple(reversed(out))


def placed(t: TensorType, steps: tuple[int, ...], start: int) -> TensorType:
    """The type with these steps; without them where its elements are dense anyway."""
    dense = TensorType(t.dtype, t.shape, t.space)
    same = all(n == 1 or s == d for n, s, d in zip(t.shape, steps, dense.strides, strict=True))
    plain = tuple(s if n > 1 else 1 for n, s in zip(t.shape, steps, strict=True))
    return TensorType(t.dtype, t.shape, t.space, () if same else plain, start)


def _verify_join(op: Op) -> Sequence[str]:
    places: Any = op["at"]
    sizes: Any = op["extents"]
    if not isinstance(op.result.type, TensorType) or len(places) != len(op.operands):
        return ["expected a tensor as result, and a place per operand"]
    if len(sizes) != len(op.operands):
        return ["expected the extents of a box per operand"]
    shape, boxes = op.result.tensor.shape, boxes_of(op)
    faults = []
    for i, (v, (at, extents)) in enumerate(zip(op.operands, boxes, strict=True)):
        if v.type.dtype != op.result.type.dtype:
            faults.append(f"expected operand {i} to hold {op.result.type.dtype}, got {v.type}")
        if not isinstance(v.type, TensorType) or prod(extents) != v.type.size:
            faults.append(
                f"expected a box of as many elements as operand {i} ({v.type}), got {list(extents)}"
            )
        if len(at) != len(shape) or len(extents) != len(shape):
            return [*faults, f"expected boxes of {len(shape)} dimensions, got {list(at)}, {list(extents)}"]
        if any(a < 0 or n < 0 or a + n > whole for a, n, whole in zip(at, extents, shape, strict=True)):
            faults.append(f"the box of operand {i} leaves the result: {list(extents)} at {list(at)}")
    if any(_overlap(a, b) for a, b in combinations(boxes, 2)):
        faults.append("two operands fill the same elements")
    if sum(prod(extents) for _, extents in boxes) != op.result.type.size:
        faults.append("expected operands that fill the result, some elements are left")
    return faults


def _overlap(a: Box, b: Box) -> bool:
    return all(x < y + m and y < x + n for x, n, y, m in zip(*a, *b, strict=True))


def _evaluate_join(operands: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    boxes = list(zip(attrs["at"], attrs["extents"], strict=True))
    shape = [max(a[d] + n[d] for a, n in boxes) for d in range(len(boxes[0][0]))]
    out = np.empty(shape, operands[0].dtype)
    for x, (at, extents) in zip(operands, boxes, strict=True):
        out[tuple(slice(a, a + n) for a, n in zip(at, extents, strict=True))] = x.reshape(extents)
    return [out]


define(
    "tensor.join",
    ("first", "operands*"),
    "One array made of the operands: the elements of operand k in row-major order are the box of "
    "extents[k] at index at[k]. Nothing moves: kernels write the operands where they lie in the result.",
    attrs={
        "at": AttrDef("accesses", doc="first index of each operand's box in the result"),
        "extents": AttrDef("accesses", doc="extents of each operand's box"),
    },
    evaluate=_evaluate_join,
    verify=_verify_join,
    work=WorkClass.ELEMENTWISE,
)
