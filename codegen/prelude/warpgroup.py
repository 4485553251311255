"""Helpers with inline PTX for warpgroups: descriptors of tiles in shared memory, wgmma, fences and waits."""

from __future__ import annotations

from itertools import product

from tilewright.codegen.prelude.registry import helper
from tilewright.ir.thread.warpgroup_ops import BYTES_N, GROUP_N, MOST_N
from tilewright.ir.types import BYTES

#: by the dtype of the factors: its name in the instruction, depth, and which factors may be turned
_KINDS = {
    "f16": ("f16", 16, ("", "a", "b", "ab")),
    "bf16": ("bf16", 16, ("", "a", "b", "ab")),
    "f32": ("tf32", 8, ("",)),
    "f8e4m3": ("e4m3", 32, ("",)),
}
#: code of the swizzle in a descriptor, by bytes of a row
SWIZZLES = {128: 1, 64: 2, 32: 3}

# Bits 0 to 13: address / 16; 32 to 45: bytes from eight rows to the next eight / 16; 62 and 63: swizzle. Of
# turned tiles, bits 16 to 29: bytes from a panel to the next one / 16.
for _row, _code in SWIZZLES.items():
    helper(
        f"tile_{_row}",
        f"""
FN unsigned long long NAME(const void* tile) {{
    const unsigned long long at = (unsigned long long)__cvta_generic_to_shared(tile);
    return (at & 0x3ffff) >> 4 | {_row * 8 >> 4}ull << 32 | {_code}ull << 62;
}}
""",
        "cuda",
        emulated=True,
    )
    helper(
        f"panels_{_row}",
        f"""
template <int panel_bytes>
FN unsigned long long NAME(const void* tile) {{
    const unsigned long long at = (unsigned long long)__cvta_generic_to_shared(tile);
    const unsigned long long panel = panel_bytes >> 4;
    return (at & 0x3ffff) >> 4 | panel << 16 | {_row * 8 >> 4}ull << 32 | {_code}ull << 62;
}}
""",
        "cuda",
        emulated=True,
    )

# `fresh` sums are not read.
for _dtype, (_name, _k, _turns) in _KINDS.items():
    for _n, _turned, _fresh in product(range(GROUP_N, MOST_N + 1, GROUP_N), _turns, ("", "_fresh")):
        _flags = f", {int('a' in _turned)}, {int('b' in _turned)}" if len(_turns) > 1 else ""
        _count = _n // 2
        _sums = ", ".join(f"%{i}" for i in range(_count))
        _outputs = ", ".join(f'"+f"(c[{i}])' for i in range(_count))
        helper(
            f"wgmma_{_dtype}{f'_{_turned}' if _turned else ''}{_fresh}_{_n}",
            f"""
FN void NAME(float* c, unsigned long long a, unsigned long long b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{_n}k{_k}.f32.{_name}.{_name} "
                 "{{{_sums}}}, %{_count}, %{_count + 1}, {0 if _fresh else 1}, 1, 1{_flags};"
                 : {_outputs}
                 : "l"(a), "l"(b));
}}
""",
            "cuda",
            emulated=True,
        )

# Bytes, each factor signed or not: sums wrap at 32 bits, as without `.satfinite`.
for _a, _b, _n, _fresh in product(BYTES, BYTES, BYTES_N, ("", "_fresh")):
    _count = _n // 2
    _sums = ", ".join(f"%{i}" for i in range(_count))
    _outputs = ", ".join(f'"+r"(c[{i}])' for i in range(_count))
    helper(
        f"wgmma_{'_'.join(dict.fromkeys((_a, _b)))}{_fresh}_{_n}",
        f"""
FN void NAME(int* c, unsigned long long a, unsigned long long b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{_n}k32.s32.{_a.replace("i", "s")}.{_b.replace("i", "s")} "
                 "{{{_sums}}}, %{_count}, %{_count + 1}, {0 if _fresh else 1};"
                 : {_outputs}
                 : "l"(a), "l"(b));
}}
""",
        "cuda",
        emulated=True,
    )

# The first factor from registers: those of float32 are rounded there.
_HELD = (
    ("f32", "tf32", 8, "", ("",), ("",)),
    *((d, d, 16, ", 0", ("", "b"), ("", "_fresh")) for d in ("f16", "bf16")),
)
for _dtype, _name, _k, _flag, _turns, _kinds in _HELD:
    for _n, _turned, _fresh in product(range(GROUP_N, MOST_N + 1, GROUP_N), _turns, _kinds):
        _flags = ", 1" if _turned else _flag
        _count = _n // 2
        _sums = ", ".join(f"%{i}" for i in range(_count))
        _held = ", ".join(f"%{_count + i}" for i in range(4))
        _outputs = ", ".join(f'"+f"(c[{i}])' for i in range(_count))
        _register = "__float_as_uint(a[{}])" if _dtype == "f32" else "a[{}]"
        _inputs = ", ".join(f'"r"({_register.format(i)})' for i in range(4))
        helper(
            f"wgmma_{_dtype}_held{f'_{_turned}' if _turned else ''}{_fresh}_{_n}",
            f"""
FN void NAME(float* c, const {"float" if _dtype == "f32" else "unsigned int"}* a, unsigned long long b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{_n}k{_k}.f32.{_name}.{_name} "
                 "{{{_sums}}}, {{{_held}}}, %{_count + 4}, {0 if _fresh else 1}, 1, 1{_flags};"
                 : {_outputs}
                 : {_inputs}, "l"(b));
}}
""",
            "cuda",
            emulated=True,
        )

for _function, _instruction in (
    ("wgmma_begin", "wgmma.fence.sync.aligned"),
    ("wgmma_commit", "wgmma.commit_group.sync.aligned"),
    ("publish_shared", "fence.proxy.async.shared::cta"),
):
    helper(
        _function,
        f"""
FN void NAME() {{
    asm volatile("{_instruction};" ::: "memory");
}}
""",
        "cuda",
        emulated=True,
    )
helper(
    "wgmma_wait",
    """
template <int pending>
FN void NAME() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
""",
    "cuda",
    emulated=True,
)
# Sums that a multiplication has still to write look finished to the compiler: a statement that may change
# them keeps what reads them behind the wait.
helper(
    "finished",
    """
template <int count>
FN void NAME(float* sums) {
    #pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int count>
FN void NAME(int* sums) {
    #pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}
""",
    "cuda",
    emulated=True,
)

helper(
    "turn_words",
    """
FN void NAME(const void* a, const void* b, const void* c, const void* d, void* x, void* y, void* z, void* w) {
    const float4 i = *(const float4*)a, j = *(const float4*)b, k = *(const float4*)c, l = *(const float4*)d;
    *(float4*)x = float4{i.x, j.x, k.x, l.x};
    *(float4*)y = float4{i.y, j.y, k.y, l.y};
    *(float4*)z = float4{i.z, j.z, k.z, l.z};
    *(float4*)w = float4{i.w, j.w, k.w, l.w};
}
""",
    "cuda",
)
