"""Types of IR values: scalars (optionally with vector lanes) and tensors in a memory space."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.ir.errors import InputError

_NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
#: dtypes a tensor may hold; `index` exists only for scalars.
DTYPES = frozenset(_NUMPY)
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
#: dtypes of quantised numbers, whose products are summed exactly in 32 bits
BYTES = ("i8", "u8")
#: floats of one byte, which are stored and multiplied: all other arithmetic is on what they are converted to
FLOAT8 = ("f8e4m3",)
#: memory spaces: device memory, block-shared memory, registers of one thread, matrix fragments of one warp.
SPACES = frozenset({"global", "shared", "reg", "frag"})
#: more elements than any memory holds; sizes in bytes stay within 64 bits
MAX_ELEMENTS = 1 << 48
#: dimensions of NumPy's arrays
MAX_RANK = 64
LANES = frozenset({1, 2, 4, 8, 16})

_LONG = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}
#: long names that say more than a kind and a number of bits
_OTHER = {"float8_e4m3fn": "f8e4m3", "bool_": "bool", "uint1": "bool"}
_widen: ContextVar[bool] = ContextVar("widen", default=False)


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One value of `dtype`, or a short vector of `lanes` values held by one thread."""

    dtype: str
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES and self.dtype != "index":
            raise InputError(f"expected a dtype among {', '.join(sorted(DTYPES))}, got '{self.dtype}'")
        if self.lanes not in LANES:
            raise InputError(f"expected 1, 2, 4, 8 or 16 lanes, got {self.lanes}")

    def __str__(self) -> str:
        return self.dtype if self.lanes == 1 else f"{self.dtype}x{self.lanes}"


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array of `shape` in one memory space; `()` is a rank-0 tensor.

    It is dense and row-major unless `steps` names the elements from one index to the next along each
    dimension: a box inside a larger array, as a piece of a concatenation is. `start` counts the elements
    before its first one.
    """

    dtype: str
    shape: tuple[int, ...]
    space: str = "global"
    steps: tuple[int, ...] = ()
    start: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"expected a dtype among {', '.join(sorted(DTYPES))}, got '{self.dtype}'")
        if self.space not in SPACES:
            raise InputError(f"expected a memory space among {', '.join(sorted(SPACES))}, got '{self.space}'")
        if len(self.shape) > MAX_RANK:
            raise InputError(f"expected at most {MAX_RANK} dimensions, got {len(self.shape)}")
        for d in self.shape:
            if type(d) is not int or d < 0:
                raise InputError(f"expected non-negative integer dimensions, got {self.shape}")
        if self.size > MAX_ELEMENTS:
            raise InputError(f"expected a tensor of at most {MAX_ELEMENTS} elements, got {self.shape}")
        if self.steps or self.start:
            self._check_steps()

    def _check_steps(self) -> None:
        if self.steps and (len(self.steps) != len(self.shape) or any(type(s) is not int for s in self.steps)):
            raise InputError(f"expected a step per dimension of {list(self.shape)}, got {list(self.steps)}")
        if type(self.start) is not int or self.start < 0 or any(s < 0 for s in self.steps):
            raise InputError(f"expected steps and a start of at least 0, got {self.steps} and {self.start}")
        if self.span > MAX_ELEMENTS:
            raise InputError(f"expected a tensor within {MAX_ELEMENTS} elements, got one within {self.span}")

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * itemsize(self.dtype)

    @property
    def span(self) -> int:
        """Elements from the beginning of its memory to its last element, those of others between included."""
        if not self.size:
            return 0
        return self.start + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def dense(self) -> bool:
        """Return whether its memory holds its elements in row-major order and nothing else."""
        return not self.steps and not self.start

    @property
    def rank(self) -> int:
        return len(self.shape)

    def rows_of(self, lanes: int) -> bool:
        """True when the last dimension is consecutive and begins at a multiple of `lanes` in every row."""
        *outer, last = self.strides or (1,)
        extents = self.shape[:-1]
        apart = all(s % lanes == 0 for s, n in zip(outer, extents, strict=True) if n > 1)
        return last == 1 and apart and self.start % lanes == 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next along each dimension."""
        if self.steps:
            return self.steps
        out: list[int] = []
        step = 1
        for d in reversed(self.shape):
            out.append(step)
            step *= d
        return tuple(reversed(out))

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        text = f"{self.dtype}[{dims}]" + ("" if self.space == "global" else f" in {self.space}")
        if self.steps:
            text += f" by [{', '.join(map(str, self.steps))}]"
        return text + (f" from {self.start}" if self.start else "")


Type = ScalarType | TensorType


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The caller's view of an input or output: shape and NumPy dtype name (`float32`, `bool`)."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def array_type(t: TensorType) -> ArrayType:
    """The caller's view of a tensor type."""
    return ArrayType(t.shape, _NUMPY[t.dtype].name)


def itemsize(dtype: str) -> int:
    """Bytes of one element of `dtype`."""
    return _NUMPY[dtype].itemsize


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype that stores `dtype`; within `widened()` every float is float64.

    Floats of one byte stay what they are: rounding to them is what a quantised network computes.
    """
    if _widen.get() and dtype in FLOATS:
        return _NUMPY["f64"]
    return _NUMPY[dtype]


def storage_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype that stores `dtype`, whatever the evaluation precision."""
    return _NUMPY[dtype]


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` as the NumPy dtype that stores `dtype`, as casts of every level convert.

    Floats become integers by leaving off the fraction. To floats of one byte, numbers are first rounded to
    float32, then to the nearest one with ties to even, and what is beyond the largest, infinities too,
    becomes that one with its sign (448 for f8e4m3), as the conversions of sm_89 and newer (`satfinite`) do.
    """
    if dtype not in FLOAT8:
        return x.astype(numpy_dtype(dtype))
    stored = _NUMPY[dtype]
    if x.dtype == stored:
        return x.copy()
    real = x.astype(np.float32)
    most = np.float32(ml_dtypes.finfo(stored).max)  # type: ignore[no-untyped-call]
    held = np.where(np.isnan(real), np.float32(np.nan), np.clip(real, -most, most))
    return np.asarray(held.astype(stored))


@contextmanager
def widened(on: bool = True) -> Iterator[None]:
    """Evaluate reference semantics with every float as float64 inside this context."""
    token = _widen.set(on)
    try:
        yield
    finally:
        _widen.reset(token)


def dtype_name(dtype: object) -> str:
    """Our name of a NumPy dtype or of a long name such as `float32`; raises InputError when there is none."""
    text = dtype if isinstance(dtype, str) else None
    if text is not None:
        if text in DTYPES:
            return text
        m = re.fullmatch(r"(float|int|uint|bfloat)(\d+)", text)
        if m and _LONG[m[1]] + m[2] in DTYPES:
            return _LONG[m[1]] + m[2]
        if text in _OTHER:
            return _OTHER[text]
        raise InputError(f"expected a dtype such as float32, int64 or bool, got '{text}'")
    for name, np_dtype in _NUMPY.items():
        if np.dtype(dtype) == np_dtype:  # type: ignore[call-overload]
            return name
    raise InputError(f"expected a numeric dtype, got {dtype}")


def parse_scalar(text: str) -> ScalarType:
    """`f32`, `index`, `f32x4` -> ScalarType; raises InputError."""
    if text in DTYPES or text == "index":
        return ScalarType(text)
    base, _, lanes = text.rpartition("x")
    if base and lanes.isdigit():
        return ScalarType(base, int(lanes))
    return ScalarType(text)
