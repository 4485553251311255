"""Helpers for elements of fragments: packed pairs of 16-bit floats, powers of two without rare cases."""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper

for _dtype in ("f16", "bf16"):
    helper(
        f"pair_{_dtype}",
        f"""
FN unsigned int NAME(float low, float high) {{
#if defined(TW_EMULATOR) || __CUDA_ARCH__ < 800
    return (unsigned int)@{_dtype}_from_f32@(low) | (unsigned int)@{_dtype}_from_f32@(high) << 16;
#else
    unsigned int r;
    asm("cvt.rn.{_dtype}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#endif
}}
""",
        "cuda",
    )

helper(
    "power",
    """
FN float NAME(float power) {
#ifdef TW_EMULATOR
    return exp2f(power);
#else
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(power));
    return r;
#endif
}
""",
    "cuda",
)
helper(
    "renewed",
    """
FN float NAME(float before, float* largest, float scale) {
    if (!((*largest - before) * scale > 8.0f)) {
        *largest = before;
        return 1.0f;
    }
    return before == __int_as_float(0xff800000) ? 1.0f : @power@((before - *largest) * scale);
}
""",
    "cuda",
)

# An instruction under a condition that never holds, and that needs the sum, keeps what it is computed from
# before later waits: ptxas begins waits for multiplications as early as it can.
helper(
    "settled",
    """
FN void NAME(float sum) {
    asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 1; }"
                 ::"f"(sum) : "memory");
}
""",
    "cuda",
    emulated=True,
)

helper(
    "larger",
    """
FN float NAME(float a, float b) {
#ifdef TW_EMULATOR
    return a > b || b != b ? a : b;
#else
    return fmaxf(a, b);
#endif
}
""",
    "cuda",
)
