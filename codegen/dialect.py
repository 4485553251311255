"""What differs between the C languages we emit: type names, literals, qualifiers, launch symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.ir.types import FLOATS, storage_dtype

#: 16-bit floats live in registers and memory as their bits and are computed on as f32.
NARROW = frozenset({"f16", "bf16"})


class Dialect(Protocol):
    """One C language. Registers hold `reg_type`, memory holds `mem_type`; they differ for bool only."""

    name: str
    #: whether a short vector is one native value (else it is spelled lane by lane)
    native_vectors: bool
    #: the 64-bit signed integer type
    wide: str
    #: qualifiers of a function of the prelude
    function: str
    #: whether texts of several kernels may be built as one program, in any order
    joins_kernels: bool
    #: the barrier statement
    barrier: str

    def mem_type(self, dtype: str, lanes: int = 1) -> str: ...

    def reg_type(self, dtype: str, lanes: int = 1) -> str: ...

    def literal(self, value: float | int | bool, dtype: str) -> str: ...

    def symbol_definition(self, symbol: str) -> str:
        """The C expression of `tid`, `bid.x`, `bid.y` or `bid.z`, an `int`."""
        ...

    def call(self, function: str, dtype: str, args: Sequence[str]) -> str:
        """A call of the math library: `exp` of f32 is `expf(a)` in CUDA and `exp(a)` in OpenCL."""
        ...

    def unroll(self, factor: int) -> list[str]:
        """Lines before a loop that is never (0), fully (1) or `factor` times unrolled."""
        ...

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        """Whether a fully unrolled loop of `ops` ops is written out `extent` times."""
        ...

    def pointer(self, dtype: str, name: str, *, const: bool, alone: bool = True) -> str:
        """Declaration of a pointer to global memory; `alone` promises that nothing else writes there."""
        ...


def float_digits(value: float | int | bool, dtype: str) -> str | None:
    """The shortest decimal text that reads back as `value` in `dtype`; None for infinities and nan."""
    x = np.asarray(value).astype(storage_dtype(dtype if dtype in FLOATS else "f64"))
    wide = float(x)
    if not np.isfinite(wide):
        return None
    text = repr(wide) if dtype == "f64" else str(np.float32(wide))
    return text if any(c in text for c in ".e") else text + ".0"


def bits_of(value: float | int | bool, dtype: str) -> int:
    """The bits of a 16-bit float."""
    return int(np.asarray(value).astype(storage_dtype(dtype)).view(np.uint16))


def wrapped(value: float | int | bool, dtype: str) -> int:
    """`value` as an integer of `dtype`, wrapped around."""
    t = storage_dtype(dtype)
    n = int(value) % (1 << (8 * t.itemsize))
    return n - (1 << (8 * t.itemsize)) if t.kind == "i" and n >> (8 * t.itemsize - 1) else n
