"""Helpers with inline PTX or atomics: asynchronous copies, matrix fragments, atomic additions."""

from __future__ import annotations

from tilewright.codegen.prelude import helper

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
    "#define TW_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]",
    "cuda",
    emulated=True,
)

for _count in (2, 4):
    for _turn in ("", ".trans"):
        _outputs = ", ".join(f'"=r"(r[{i}])' for i in range(_count))
        _slots = ", ".join(f"%{i}" for i in range(_count))
        helper(
            f"ldmatrix_x{_count}{_turn.replace('.', '_')}",
            f"""
FN void NAME(unsigned int* r, const void* row) {{
    const unsigned int from = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x{_count}{_turn}.shared.b16 {{{_slots}}}, [%{_count}];"
                 : {_outputs}
                 : "r"(from)
                 : "memory");
}}
""",
            "cuda",
            emulated=True,
        )

_ACCUMULATE = '"+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])'
_MMA_K16 = """    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                 "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                 : {accumulate}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));"""
_MMA_K8_TWICE = """    #pragma unroll
    for (int k = 0; k < 2; ++k)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{{%0, %1, %2, %3}}, {{%4, %5}}, {{%6}}, {{%0, %1, %2, %3}};"
                     : {accumulate}
                     : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));"""
for _dtype, _older in (
    ("f16", _MMA_K8_TWICE),
    ("bf16", '#error "bf16 matrix fragments need sm_80 or newer"'),
):
    helper(
        f"mma_{_dtype}",
        "FN void NAME(float* c, const unsigned int* a, const unsigned int* b) {\n#if __CUDA_ARCH__ >= 800\n"
        + _MMA_K16.format(kind=_dtype, accumulate=_ACCUMULATE)
        + "\n#else\n"
        + (_older.format(accumulate=_ACCUMULATE) if _dtype == "f16" else _older)
        + "\n#endif\n}",
        "cuda",
        emulated=True,
    )
helper(
    "mma_tf32",
    """
FN unsigned int tw_tf32(float x) {
    unsigned int r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

FN void NAME(float* c, const float* a, const float* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : ACCUMULATE
                 : "r"(tw_tf32(a[0])), "r"(tw_tf32(a[1])), "r"(tw_tf32(a[2])), "r"(tw_tf32(a[3])),
                   "r"(tw_tf32(b[0])), "r"(tw_tf32(b[1])));
#else
#error "tf32 matrix fragments need sm_80 or newer"
#endif
}
""".replace("ACCUMULATE", _ACCUMULATE),
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
