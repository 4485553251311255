"""Helpers with inline PTX or atomics: asynchronous copies and atomic additions."""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper

_COPY = {
    4: ("unsigned int", "ca", "0u"),
    8: ("uint2", "ca", "uint2{0u, 0u}"),
    16: ("uint4", "cg", "uint4{0u, 0u, 0u, 0u}"),
}
for _bytes, (_kind, _level, _zero) in _COPY.items():
    helper(
        f"copy_async_{_bytes}",
        f"""
FN void NAME(void* target, const void* source, bool keep) {{
#if __CUDA_ARCH__ >= 800
    const unsigned int to = (unsigned int)__cvta_generic_to_shared(target);
    const int bytes = keep ? {_bytes} : 0;
    asm volatile("cp.async.{_level}.shared.global [%0], [%1], {_bytes}, %2;"
                 ::"r"(to), "l"(source), "r"(bytes)
                 : "memory");
#else
    *({_kind}*)target = keep ? *(const {_kind}*)source : {_zero};
#endif
}}
""",
        "cuda",
        emulated=True,
    )
helper(
    "async_commit",
    """
FN void NAME() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
""",
    "cuda",
    emulated=True,
)
helper(
    "async_wait",
    """
template <int pending>
FN void NAME() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}
""",
    "cuda",
    emulated=True,
)

helper(
    "dynamic_shared",
    "#define TW_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]",
    "cuda",
    emulated=True,
)

for _dtype in ("f32", "f64", "i32", "u32", "u64"):
    helper(
        f"atomic_add_{_dtype}",
        f"FN void NAME(${_dtype}* place, ${_dtype} value) {{ atomicAdd(place, value); }}",
        "cuda",
    )
helper(
    "atomic_add_i64",
    "FN void NAME($i64* place, $i64 value) { atomicAdd(($u64*)place, ($u64)value); }",
    "cuda",
)
for _where in ("global", "local"):
    for _dtype in ("i32", "u32"):
        helper(
            f"atomic_add_{_dtype}_{_where}",
            f"FN void NAME(__{_where} ${_dtype}* place, ${_dtype} value) {{ atomic_add(place, value); }}",
            "opencl",
        )
    for _dtype in ("i64", "u64"):
        helper(
            f"atomic_add_{_dtype}_{_where}",
            f"""
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
FN void NAME(__{_where} ${_dtype}* place, ${_dtype} value) {{ atom_add(place, value); }}
""",
            "opencl",
        )
    for _dtype, _bits, _word, _exchange in (
        ("f32", "u32", "uint", "atomic_cmpxchg"),
        ("f64", "u64", "ulong", "atom_cmpxchg"),
    ):
        _enable = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n" if _dtype == "f64" else ""
        _real = "float" if _dtype == "f32" else "double"
        helper(
            f"atomic_add_{_dtype}_{_where}",
            f"""
{_enable}FN void NAME(volatile __{_where} ${_dtype}* place, ${_dtype} value) {{
    {_word} seen, wanted;
    do {{
        seen = as_{_word}(*place);
        wanted = as_{_word}(as_{_real}(seen) + value);
    }} while ({_exchange}((volatile __{_where} {_word}*)place, seen, wanted) != seen);
}}
""",
            "opencl",
        )
