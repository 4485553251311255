"""Checks shared by type inference of graph ops; each raises InputError saying what was expected and came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import Attrs, compute
from tilewright.ir.types import BYTES, FLOAT8, FLOATS, TensorType, Type, dtype_name, numpy_dtype


def tensors(types: Sequence[Type]) -> list[TensorType]:
    """All operands, known to be tensors."""
    out = []
    for t in types:
        if not isinstance(t, TensorType):
            raise InputError(f"expected tensor operands, got {t}")
        out.append(t)
    return out


def alike(types: Sequence[Type]) -> list[TensorType]:
    """All operands, known to be tensors of one dtype."""
    operands = tensors(types)
    if len({t.dtype for t in operands}) > 1:
        raise InputError(f"expected operands of one dtype, got {', '.join(map(str, operands))}")
    return operands


def factors(types: Sequence[Type], attrs: Attrs) -> list[TensorType]:
    """Two factors of one dtype, or of signed and unsigned bytes whose sums have a dtype of their own."""
    operands = tensors(types)
    if any(t.dtype in FLOAT8 for t in operands):
        named = attrs["out_dtype"] in FLOATS
        require(
            named, f"expected a floating out_dtype for products of {operands[0]}, got {attrs['out_dtype']}"
        )
    if attrs["out_dtype"] and {t.dtype for t in operands} <= {*BYTES}:
        return operands
    return alike(types)


def require(condition: bool, message: str) -> None:
    """Raise InputError with the message unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_float(t: TensorType) -> None:
    """The operand must be floating."""
    require(t.dtype in FLOATS, f"expected floating operands, got {t}")


def require_integer(t: TensorType) -> None:
    """The operand must hold integers (bool is none)."""
    require(t.dtype not in FLOATS and t.dtype != "bool", f"expected integer operands, got {t}")


def require_rank(t: TensorType, rank: int) -> None:
    """The operand must have `rank` dimensions."""
    require(t.rank == rank, f"expected an operand of rank {rank}, got {t}")


def axis_of(axis: int, rank: int, what: str = "") -> int:
    """`axis` counted from the front; negative ones count from the back. An error begins with `what` it is."""
    if not -rank <= axis < rank:
        raise InputError(f"expected an axis in [{-rank}, {rank - 1}], got {axis}", where=what)
    return axis % rank


def axes_of(axes: Sequence[int], rank: int, what: str = "") -> tuple[int, ...]:
    """Distinct axes counted from the front, in the order given. An error begins with `what` they are."""
    counted = tuple(axis_of(a, rank, what) for a in axes)
    if len(set(counted)) < len(counted):
        raise InputError(f"expected distinct axes, got {tuple(axes)}", where=what)
    return counted


def broadcast_shapes(shapes: Sequence[tuple[int, ...]], what: str = "") -> tuple[int, ...]:
    """The common shape under NumPy's broadcasting rules. An error begins with `what` the shapes are."""
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for d in range(-rank, 0):
        extents = {s[d] for s in shapes if -d <= len(s)} - {1}
        if len(extents) > 1:
            listed = " and ".join(map(str, shapes))
            raise InputError(f"expected shapes that broadcast, got {listed}", where=what)
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def entries(values: Sequence[int], count: int, what: str, least: int = 0) -> tuple[int, ...]:
    """An attribute known to hold `count` integers of at least `least`."""
    good = len(values) == count and all(v >= least for v in values)
    require(good, f"expected {count} entries of at least {least} in '{what}', got {tuple(values)}")
    return tuple(values)


def accumulator_dtype(dtype: str) -> str:
    """The dtype sums of `dtype` are held in: 16-bit floats accumulate in float32."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def wide(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` as the dtype in which sums of `dtype` are held."""
    return x.astype(numpy_dtype(accumulator_dtype(dtype)), copy=False)


def dtype_of(x: np.ndarray) -> str:
    """Our name of an array's dtype."""
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


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b in the dtype of `a`; integers round towards zero. Where `a` has no elements, `b` may be 0."""
    if a.size == 0:
        return a
    division = "scalar.truncdiv" if np.issubdtype(a.dtype, np.integer) else "scalar.div"
    return np.asarray(compute(division, a, b.astype(a.dtype)))
