"""The element types a buffer may have, by name, as NumPy dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "float32", "float64", "float16", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
} | {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn")}  # fmt: skip


def dtype_named(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a buffer's element type; raises `InputError` for an unknown name."""
    dtype = DTYPES.get(name)
    if dtype is None:
        raise InputError(f"expected an element type among {', '.join(DTYPES)}, got {name!r}")
    return dtype
