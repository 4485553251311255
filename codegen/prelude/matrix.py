"""Helpers with inline PTX for matrix fragments: ldmatrix and mma.sync, with rounding to TF32."""

from __future__ import annotations

from itertools import product

from tilewright.codegen.prelude.registry import helper
from tilewright.ir.types import BYTES

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

for _a, _b in product(BYTES, BYTES):
    helper(
        f"mma_{'_'.join(dict.fromkeys((_a, _b)))}",
        f"""
FN void NAME(int* c, const unsigned int* a, const unsigned int* b) {{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.{_a.replace("i", "s")}.{_b.replace("i", "s")}.s32 "
                 "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#error "matrix fragments of bytes need sm_80 or newer"
#endif
}}
""",
        "cuda",
        emulated=True,
    )

helper(
    "mma_f8e4m3",
    """
FN void NAME(float* c, const unsigned int* a, const unsigned int* b) {
#if __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#error "matrix fragments of 8-bit floats need sm_89 or newer"
#endif
}
""",
    "cuda",
    emulated=True,
)

helper(
    "round_tf32",
    """
FN float NAME(float x) {
    unsigned int r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return __uint_as_float(r);
}
""",
    "cuda",
    emulated=True,
)
for _count in (2, 4):
    for _rounding in ("", "_tf32"):
        _outputs = ", ".join(f'"=r"(w[{i}])' for i in range(_count))
        _slots = ", ".join(f"%{i}" for i in range(_count))
        _convert = (
            'asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(w[i]) : "f"(__uint_as_float(w[i])));' if _rounding else ""
        )
        helper(
            f"ldmatrix_x{_count}_f32{_rounding}",
            f"""
FN void NAME(float* r, const void* row) {{
    unsigned int w[{_count}];
    const unsigned int from = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x{_count}.shared.b16 {{{_slots}}}, [%{_count}];"
                 : {_outputs}
                 : "r"(from)
                 : "memory");
    #pragma unroll
    for (int i = 0; i < {_count}; ++i) {{
        {_convert}
        r[i] = __uint_as_float(w[i]);
    }}
}}
""",
            "cuda",
            emulated=True,
        )

_MMA_TF32 = """
ROUNDFN void NAME(float* c, const float* a, const float* b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : ACCUMULATE
                 : "r"(AS(a[0])), "r"(AS(a[1])), "r"(AS(a[2])), "r"(AS(a[3])), "r"(AS(b[0])), "r"(AS(b[1])));
#else
#error "tf32 matrix fragments need sm_80 or newer"
#endif
}
""".replace("ACCUMULATE", _ACCUMULATE)
_ROUND = """FN unsigned int tw_tf32(float x) {
    unsigned int r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

"""
helper("mma_tf32", _MMA_TF32.replace("ROUND", _ROUND).replace("AS(", "tw_tf32("), "cuda", emulated=True)
helper(
    "mma_tf32_rounded",
    _MMA_TF32.replace("ROUND", "").replace("AS(", "__float_as_uint("),
    "cuda",
    emulated=True,
)
