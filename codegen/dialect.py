"""The differences between the C languages we emit: type names, literals, qualifiers, launch symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tilewright.ir.types import FLOAT8, FLOATS, converted, storage_dtype

#: floats of 16 bits, two of which share a register of a matrix fragment
HALVES = frozenset({"f16", "bf16"})
#: floats of 16 and 8 bits live in registers and memory as their bits and are computed on as f32.
NARROW = HALVES | {*FLOAT8}


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

    def unroll(self, factor: int, *, subtracts: bool = False) -> list[str]:
        """Lines before a loop that is never (0), fully (1) or `factor` times unrolled.

        subtracts: whether the loop takes something off a sum that it carries on.
        """
        ...

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        """Return whether a fully unrolled loop of `ops` ops is written out `extent` times."""
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
    """The bits of a 16-bit or 8-bit float."""
    t = storage_dtype(dtype)
    stored = converted(np.asarray(value), dtype) if dtype in FLOAT8 else np.asarray(value).astype(t)
    return int(stored.view(f"u{t.itemsize}"))


def wrapped(value: float | int | bool, dtype: str) -> int:
    """`value` as an integer of `dtype`, wrapped around."""
    t = storage_dtype(dtype)
    n = int(value) % (1 << (8 * t.itemsize))
    return n - (1 << (8 * t.itemsize)) if t.kind == "i" and n >> (8 * t.itemsize - 1) else n


def integer_literal(value: int, dtype: str, suffixes: dict[str, str]) -> str:
    """A C literal; the most negative values have none of their own."""
    suffix = suffixes.get(dtype, "")
    if value in (-(1 << 31), -(1 << 63)):
        return f"({value + 1}{suffix} - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"


def number_literal(
    value: float | int | bool,
    dtype: str,
    types: dict[str, str],
    suffixes: dict[str, str],
    not_finite: Callable[[float, str], str],
) -> str:
    """A C literal of a number; short floats are their bits, and `not_finite` writes infinities and nan."""
    if dtype in NARROW:
        return f"({types[dtype]})0x{bits_of(value, dtype):0{2 * storage_dtype(dtype).itemsize}x}"
    if dtype not in ("f32", "f64"):
        return integer_literal(wrapped(value, "i64" if dtype == "index" else dtype), dtype, suffixes)
    digits = float_digits(value, dtype)
    if digits is None:
        return not_finite(float(value), dtype)
    text = digits + ("f" if dtype == "f32" else "")
    return f"({text})" if text.startswith("-") else text


_CUDA_TYPES = {
    "f64": "double", "f32": "float", "f16": "unsigned short", "bf16": "unsigned short",
    "f8e4m3": "unsigned char",
    "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u64": "unsigned long long", "u32": "unsigned int", "u16": "unsigned short", "u8": "unsigned char",
    "bool": "unsigned char", "index": "long long",
}  # fmt: skip
_CUDA_SUFFIX = {"i64": "ll", "u32": "u", "u64": "ull", "index": "ll"}
_CUDA_SYMBOLS = {"tid": "threadIdx.x", "bid.x": "blockIdx.x", "bid.y": "blockIdx.y", "bid.z": "blockIdx.z"}


class CudaDialect:
    """See `Dialect`."""

    name = "cuda"
    native_vectors = False
    wide = "long long"
    function = "static __device__ __forceinline__"
    joins_kernels = False
    barrier = "__syncthreads();"

    def mem_type(self, dtype: str, lanes: int = 1) -> str:
        return _CUDA_TYPES[dtype]

    def reg_type(self, dtype: str, lanes: int = 1) -> str:
        return "bool" if dtype == "bool" else _CUDA_TYPES[dtype]

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        return number_literal(value, dtype, _CUDA_TYPES, _CUDA_SUFFIX, self._not_finite)

    def _not_finite(self, x: float, dtype: str) -> str:
        bits = "7fffffff" if x != x else ("ff800000" if x < 0 else "7f800000")
        text = f"__int_as_float(0x{bits})"
        return text if dtype == "f32" else f"(double){text}"

    def symbol_definition(self, symbol: str) -> str:
        return f"(int){_CUDA_SYMBOLS[symbol]}"

    def call(self, function: str, dtype: str, args: Sequence[str]) -> str:
        return f"{function}{'f' if dtype == 'f32' else ''}({', '.join(args)})"

    def unroll(self, factor: int, *, subtracts: bool = False) -> list[str]:
        return [{0: "#pragma unroll 1", 1: "#pragma unroll"}.get(factor, f"#pragma unroll {factor}")]

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        return False

    def pointer(self, dtype: str, name: str, *, const: bool, alone: bool = True) -> str:
        return f"{'const ' if const else ''}{_CUDA_TYPES[dtype]}* {'__restrict__ ' if alone else ''}{name}"


_OPENCL_TYPES = {
    "f64": "double", "f32": "float", "f16": "ushort", "bf16": "ushort", "f8e4m3": "uchar",
    "i64": "long", "i32": "int", "i16": "short", "i8": "char",
    "u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar", "bool": "uchar", "index": "long",
}  # fmt: skip
_OPENCL_SUFFIX = {"i64": "l", "u32": "u", "u64": "ul", "index": "l"}
_OPENCL_SYMBOLS = {
    "tid": "get_local_id(0)",
    "bid.x": "get_group_id(0)",
    "bid.y": "get_group_id(1)",
    "bid.z": "get_group_id(2)",
}
#: ops a loop may grow to when it is written out; LLVM's own unroller gives up on far less.
TEXT_BUDGET = 2048


class OpenClDialect:
    """See `Dialect`."""

    name = "opencl"
    native_vectors = True
    wide = "long"
    function = "static inline"
    joins_kernels = True
    barrier = "barrier(CLK_LOCAL_MEM_FENCE);"

    def mem_type(self, dtype: str, lanes: int = 1) -> str:
        return _OPENCL_TYPES[dtype] + (str(lanes) if lanes > 1 else "")

    def reg_type(self, dtype: str, lanes: int = 1) -> str:
        return self.mem_type(dtype, lanes)

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "(uchar)1" if value else "(uchar)0"
        return number_literal(value, dtype, _OPENCL_TYPES, _OPENCL_SUFFIX, self._not_finite)

    def _not_finite(self, x: float, dtype: str) -> str:
        text = "NAN" if x != x else ("-INFINITY" if x < 0 else "INFINITY")
        return f"({text})" if dtype == "f32" else f"((double){text})"

    def symbol_definition(self, symbol: str) -> str:
        return f"(int){_OPENCL_SYMBOLS[symbol]}"

    def call(self, function: str, dtype: str, args: Sequence[str]) -> str:
        return f"{function}({', '.join(args)})"

    def unroll(self, factor: int, *, subtracts: bool = False) -> list[str]:
        if factor == 0 and subtracts:
            # Intel's runtime for CPUs (2026.2) vectorises such a loop, and where it may not unroll it, what
            # is left of 45, 135 or 1000 turns comes out wrong; without the pragma it is right.
            return []
        return [{0: "#pragma nounroll", 1: "#pragma unroll"}.get(factor, f"#pragma unroll {factor}")]

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        return extent * ops <= TEXT_BUDGET

    def pointer(self, dtype: str, name: str, *, const: bool, alone: bool = True) -> str:
        kind = f"{'const ' if const else ''}{_OPENCL_TYPES[dtype]}"
        return f"__global {kind}* {'restrict ' if alone else ''}{name}"
