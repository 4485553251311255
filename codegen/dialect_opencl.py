"""OpenCL C 1.2 as a dialect: native short vectors, no half arithmetic, small loops unrolled as text."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.dialect import NARROW, bits_of, float_digits, wrapped
from tilewright.codegen.dialect_cuda import integer_literal

_TYPES = {
    "f64": "double", "f32": "float", "f16": "ushort", "bf16": "ushort",
    "i64": "long", "i32": "int", "i16": "short", "i8": "char",
    "u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar", "bool": "uchar", "index": "long",
}  # fmt: skip
_SUFFIX = {"i64": "l", "u32": "u", "u64": "ul", "index": "l"}
_SYMBOLS = {
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
        return _TYPES[dtype] + (str(lanes) if lanes > 1 else "")

    def reg_type(self, dtype: str, lanes: int = 1) -> str:
        return self.mem_type(dtype, lanes)

    def literal(self, value: float | int | bool, dtype: str) -> str:
        if dtype in NARROW:
            return f"(ushort)0x{bits_of(value, dtype):04x}"
        if dtype in ("f32", "f64"):
            return self._float(value, dtype)
        if dtype == "bool":
            return "(uchar)1" if value else "(uchar)0"
        return integer_literal(wrapped(value, "i64" if dtype == "index" else dtype), dtype, _SUFFIX)

    def _float(self, value: float | int | bool, dtype: str) -> str:
        digits = float_digits(value, dtype)
        if digits is not None:
            text = digits + ("f" if dtype == "f32" else "")
            return f"({text})" if text.startswith("-") else text
        x = float(value)
        text = "NAN" if x != x else ("-INFINITY" if x < 0 else "INFINITY")
        return f"({text})" if dtype == "f32" else f"((double){text})"

    def symbol_definition(self, symbol: str) -> str:
        return f"(int){_SYMBOLS[symbol]}"

    def call(self, function: str, dtype: str, args: Sequence[str]) -> str:
        return f"{function}({', '.join(args)})"

    def unroll(self, factor: int) -> list[str]:
        return [{0: "#pragma nounroll", 1: "#pragma unroll"}.get(factor, f"#pragma unroll {factor}")]

    def unrolls_as_text(self, extent: int, ops: int) -> bool:
        return extent * ops <= TEXT_BUDGET

    def pointer(self, dtype: str, name: str, *, const: bool, alone: bool = True) -> str:
        return f"__global {'const ' if const else ''}{_TYPES[dtype]}* {'restrict ' if alone else ''}{name}"
