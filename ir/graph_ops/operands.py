"""Checks shared by type inference of graph ops; each raises InputError saying what was expected and came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.types import FLOATS, TensorType, Type, numpy_dtype


def tensors(types: Sequence[Type], name: str) -> list[TensorType]:
    """All operands, known to be tensors."""
    out = []
    for t in types:
        if not isinstance(t, TensorType):
            raise InputError(f"{name}: expected tensor operands, got {t}")
        out.append(t)
    return out


def alike(types: Sequence[Type], name: str) -> list[TensorType]:
    """All operands, known to be tensors of one dtype."""
    found = tensors(types, name)
    if len({t.dtype for t in found}) > 1:
        raise InputError(f"{name}: expected operands of one dtype, got {', '.join(map(str, found))}")
    return found


def require(condition: bool, name: str, message: str) -> None:
    """Raise InputError `name: message` unless the condition holds."""
    if not condition:
        raise InputError(f"{name}: {message}")


def require_float(t: TensorType, name: str) -> None:
    """The operand must be floating."""
    require(t.dtype in FLOATS, name, f"expected floating operands, got {t}")


def require_integer(t: TensorType, name: str) -> None:
    """The operand must hold integers (bool is none)."""
    require(t.dtype not in FLOATS and t.dtype != "bool", name, f"expected integer operands, got {t}")


def require_rank(t: TensorType, rank: int, name: str) -> None:
    """The operand must have `rank` dimensions."""
    require(t.rank == rank, name, f"expected an operand of rank {rank}, got {t}")


def axis_of(axis: int, rank: int, name: str) -> int:
    """`axis` counted from the front; negative ones count from the back."""
    require(-rank <= axis < rank, name, f"expected an axis in [{-rank}, {rank - 1}], got {axis}")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    """Distinct axes counted from the front, in the order given."""
    found = tuple(axis_of(a, rank, name) for a in axes)
    require(len(set(found)) == len(found), name, f"expected distinct axes, got {tuple(axes)}")
    return found


def broadcast_shapes(shapes: Sequence[tuple[int, ...]], name: str) -> tuple[int, ...]:
    """The common shape under NumPy's broadcasting rules."""
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for d in range(-rank, 0):
        extents = {s[d] for s in shapes if -d <= len(s)} - {1}
        if len(extents) > 1:
            raise InputError(f"{name}: expected shapes that broadcast, got {' and '.join(map(str, shapes))}")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def entries(values: Sequence[int], count: int, name: str, what: str, least: int = 0) -> tuple[int, ...]:
    """An attribute known to hold `count` integers of at least `least`."""
    good = len(values) == count and all(v >= least for v in values)
    require(good, name, f"expected {count} entries of at least {least} in '{what}', got {tuple(values)}")
    return tuple(values)


def accumulator_dtype(dtype: str) -> str:
    """The dtype sums of `dtype` are held in: 16-bit floats accumulate in float32."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def wide(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` as the dtype in which sums of `dtype` are held."""
    return x.astype(numpy_dtype(accumulator_dtype(dtype)), copy=False)


def dtype_of(x: np.ndarray) -> str:
    """Our name of an array's dtype."""
    from tilewright.ir.types import dtype_name

    return dtype_name(x.dtype)


def lowest(dtype: str) -> float | int | bool:
    """The neutral element of max: -inf for floats."""
    if dtype in FLOATS:
        return -float("inf")
    return False if dtype == "bool" else int(np.iinfo(numpy_dtype(dtype)).min)


def highest(dtype: str) -> float | int | bool:
    """The neutral element of min: inf for floats."""
    if dtype in FLOATS:
        return float("inf")
    return True if dtype == "bool" else int(np.iinfo(numpy_dtype(dtype)).max)


def zero(dtype: str) -> float | int | bool:
    """The neutral element of a sum, typed like `dtype`."""
    if dtype in FLOATS:
        return 0.0
    return False if dtype == "bool" else 0
