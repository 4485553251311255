"""CUDA C as a dialect: no headers, vectors spelled lane by lane, loops unrolled by pragma."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.dialect import NARROW, bits_of, float_digits, wrapped

_TYPES = {
    "f64": "double", "f32": "float", "f16": "unsigned short", "bf16": "unsigned short",
    "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u64": "unsigned long long", "u32": "unsigned int", "u16": "unsigned short", "u8": "unsigned char",
    "bool": "unsigned char", "index": "long long",
}  # fmt: skip
_SUFFIX = {"i64": "ll", "u32": "u", "u64": "ull", "index": "ll"}
_SYMBOLS = {"tid": "threadIdx.x", "bid.x": "blockIdx.x", "bid.y": "blockIdx.y", "bid.z": "blockIdx.z"}


class CudaDialect:
    """See `Dialect`."""

    name = "cuda"
    native_vectors = False
    wide = "long long"
    function = "static __device__ __forceinline__"
    joins_kernels = False
    barrier = "__syncthreads();"

    def mem_type(self, dtype: str, lanes: int = 1) -> str:
        return _TYPES[dtype]

    def reg_type(self, dtype: str, lanes: int = 1) -> str:
        return "bool" if dtype == "bool" else _TYPES[dtype]

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype in NARROW:
            return f"(unsigned short)0x{bits_of(value, dtype):04x}"
        if dtype in ("f32", "f64"):
            return self._float(value, dtype)
        if dtype == "bool":
            return "true" if value else "false"
        return integer_literal(wrapped(value, "i64" if dtype == "index" else dtype), dtype, _SUFFIX)

    def _float(self, value: float | int | bool, dtype: str) -> str:
        digits = float_digits(value, dtype)
        if digits is not None:
            text = digits + ("f" if dtype == "f32" else "")
            return f"({text})" if text.startswith("-") else text
        x = float(value)
        bits = "7fffffff" if x != x else ("ff800000" if x < 0 else "7f800000")
        text = f"__int_as_float(0x{bits})"
        return text if dtype == "f32" else f"(double){text}"

    def symbol_definition(self, symbol: str) -> str:
        return f"(int){_SYMBOLS[symbol]}"

    def call(self, function: str, dtype: str, args: Sequence[str]) -> str:
        return f"{function}{'f' if dtype == 'f32' else ''}({', '.join(args)})"

    def unroll(self, factor: int) -> list[str]:
        return [{0: "#pragma unroll 1", 1: "#pragma unroll"}.get(factor, f"#pragma unroll {factor}")]

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        return False

    def pointer(self, dtype: str, name: str, *, const: bool, alone: bool = True) -> str:
        return f"{'const ' if const else ''}{_TYPES[dtype]}* {'__restrict__ ' if alone else ''}{name}"


def integer_literal(value: int, dtype: str, suffixes: dict[str, str]) -> str:
    """A C literal; the most negative values have none of their own."""
    suffix = suffixes.get(dtype, "")
    if value in (-(1 << 31), -(1 << 63)):
        return f"({value + 1}{suffix} - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"
