"""The tensor op that names a part of an array: nothing is computed and nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _infer_part(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    whole, start, shape = types[0], attrs["start"], tuple(attrs["shape"])
    if not isinstance(whole, TensorType) or not whole.dense:
        raise InputError(f"expected a dense array, got {whole}")
    part = TensorType(whole.dtype, shape, whole.space)
    if start < 0 or start + part.size > whole.size:
        raise InputError(f"elements {start} to {start + part.size} leave the {whole.size} of {whole}")
    return [part]


def _evaluate_part(operands: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    start, shape = attrs["start"], tuple(attrs["shape"])
    return [operands[0].reshape(-1)[start : start + prod(shape)].reshape(shape)]


define(
    "tensor.part",
    ("whole",),
    "Elements of an array, from `start` on in row-major order, as an array of `shape`. Nothing moves: "
    "kernels read the part where it lies in the whole.",
    attrs={
        "start": AttrDef("int", doc="elements before the first one of the part"),
        "shape": AttrDef("ints", doc="extents of the part"),
    },
    infer=_infer_part,
    evaluate=_evaluate_part,
)
