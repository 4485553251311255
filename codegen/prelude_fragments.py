"""Helpers for elements of fragments: packed pairs of 16-bit floats, powers of two without rare cases."""

from __future__ import annotations

from tilewright.codegen.prelude import helper

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
    "exp_difference",
    """
FN float NAME(float x, float largest) {
    const float power = (x - largest) * 1.4426950408889634f;
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
