"""Scalar helpers: NumPy's integer division, powers and shifts, nan-keeping extremes, 16-bit floats."""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper

helper(
    "floordiv",
    """
FN $T NAME($T a, $T b) {
    if (b == 0) return 0;
    if (b == -1) return ($T)(0 - ($U)a);
    $T q = a / b;
    return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
""",
)
helper(
    "floormod",
    """
FN $T NAME($T a, $T b) {
    if (b == 0 || b == -1) return 0;
    $T r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
""",
)
helper(
    "truncdiv",
    """
FN $T NAME($T a, $T b) {
    if (b == 0) return 0;
    return b == -1 ? ($T)(0 - ($U)a) : ($T)(a / b);
}
""",
)
helper("truncmod", "FN $T NAME($T a, $T b) { return b == 0 || b == -1 ? 0 : a % b; }")
helper("udiv", "FN $T NAME($T a, $T b) { return b == 0 ? 0 : a / b; }")
helper("umod", "FN $T NAME($T a, $T b) { return b == 0 ? 0 : a % b; }")
helper(
    "shl",
    "FN $T NAME($T a, $T b) { return b < 0 || b >= ($T)(8 * sizeof($T)) ? 0 : ($T)(($U)a << b); }",
)
helper(
    "shr",
    """
FN $T NAME($T a, $T b) {
    return b < 0 || b >= ($T)(8 * sizeof($T)) ? ($T)(a < 0 ? -1 : 0) : ($T)(a >> b);
}
""",
)
helper(
    "ipow",
    """
FN $T NAME($T a, $T b) {
    $u64 result = 1, power = ($u64)a;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (; b > 0; b >>= 1) {
        if (b & 1) result *= power;
        power *= power;
    }
    return ($T)result;
}
""",
)
_FLOAT_MOD = """
FN $T NAME($T a, $T b) {
    $T r = FMOD(a, b);
    if (r == 0) return COPYSIGN(r, b);
    return (r < 0) != (b < 0) ? r + b : r;
}
"""
helper(
    "fmod_f32",
    _FLOAT_MOD.replace("$T", "$f32").replace("FMOD", "fmodf").replace("COPYSIGN", "copysignf"),
    "cuda",
)
helper(
    "fmod_f64",
    _FLOAT_MOD.replace("$T", "$f64").replace("FMOD", "fmod").replace("COPYSIGN", "copysign"),
    "cuda",
)
for _dtype in ("f32", "f64"):
    _text = _FLOAT_MOD.replace("$T", f"${_dtype}").replace("FMOD", "fmod").replace("COPYSIGN", "copysign")
    helper(f"fmod_{_dtype}", _text, "opencl")
helper("sign", "FN $T NAME($T a) { return a > 0 ? 1 : a < 0 ? -1 : a; }")

for _name, _sign in (("max", ">"), ("min", "<")):
    helper(f"{_name}_f64", f"FN $f64 NAME($f64 a, $f64 b) {{ return a {_sign} b || a != a ? a : b; }}")
    helper(
        f"{_name}_f32",
        f"""
FN float NAME(float a, float b) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float r;
    asm("{_name}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a {_sign} b || a != a ? a : b;
#endif
}}
""",
        "cuda",
    )
    helper(
        f"{_name}_f32",
        f"FN float NAME(float a, float b) {{ return a {_sign} b || a != a ? a : b; }}",
        "opencl",
    )

# 16-bit floats: conversions round to nearest, ties to even.
helper(
    "f32_from_f16",
    """
FN float NAME(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
""",
    "cuda",
    emulated=True,
)
helper(
    "f16_from_f32",
    """
FN unsigned short NAME(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
""",
    "cuda",
    emulated=True,
)
helper(
    "f32_from_f16",
    "FN float NAME(ushort h) { return vload_half(0, (const __private half*)&h); }",
    "opencl",
)
helper(
    "f16_from_f32",
    "FN ushort NAME(float f) { ushort h; vstore_half_rte(f, 0, (__private half*)&h); return h; }",
    "opencl",
)
helper(
    "f32_from_bf16",
    "FN float NAME(unsigned short h) { return __uint_as_float((unsigned int)h << 16); }",
    "cuda",
)
helper("f32_from_bf16", "FN float NAME(ushort h) { return as_float((uint)h << 16); }", "opencl")
_BF16 = """
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return ($u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
"""
helper(
    "bf16_from_f32",
    """
FN $u16 NAME(float f) {
#if __CUDA_ARCH__ >= 800
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    unsigned int u = __float_as_uint(f);"""
    + _BF16.replace("}\n", "#endif\n}\n"),
    "cuda",
)
for _dtype in ("f16", "bf16"):
    helper(
        f"{_dtype}x2_from_f32",
        f"""
FN unsigned int NAME(float low, float high) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned int both;
    asm("cvt.rn.{_dtype}x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return @{_dtype}_from_f32@(low) | (unsigned int)@{_dtype}_from_f32@(high) << 16;
#endif
}}
""",
        "cuda",
    )
helper("bf16_from_f32", "FN $u16 NAME(float f) {\n    uint u = as_uint(f);" + _BF16, "opencl")

# 8-bit floats with four bits of exponent (bias 7), three of mantissa and no infinities; 0x7f and 0xff are
# nan. Their bits, moved up, are those of a float16 2 ** 8 times smaller, denormal ones too: that is exact.
_F32_FROM_E4M3 = """
    const float f = @f32_from_f16@(($u16)((h & 0x80) << 8 | (h & 0x7f) << 7)) * 256.0f;
    return (h & 0x7f) == 0x7f ? NAN_OF : f;
}
"""
_ASSEMBLED_E4M3 = """
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned int both;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"((unsigned short)h));
    return @f32_from_f16@((unsigned short)both);
#else"""
helper(
    "f32_from_f8e4m3",
    "FN float NAME(unsigned char h) {"
    + _ASSEMBLED_E4M3
    + _F32_FROM_E4M3.replace("NAN_OF", "__int_as_float(0x7fffffff)").replace("}\n", "#endif\n}\n"),
    "cuda",
)
helper("f32_from_f8e4m3", "FN float NAME(uchar h) {" + _F32_FROM_E4M3.replace("NAN_OF", "NAN"), "opencl")
# Rounds to nearest, ties to even; beyond 448 saturates, infinities too. Below 2 ** -6 numbers are multiples
# of 2 ** -9, to which a sum with 2 ** 14 rounds.
_E4M3 = """
    const $u32 sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= 0x43e00000u) return ($u8)(sign | 0x7eu);
    if (a < 0x3c800000u) return ($u8)(sign | (BITS(AS_FLOAT(a) + 16384.0f) - 0x46800000u));
    return ($u8)(sign | ((a + 0x7ffffu + (a >> 20 & 1u) - 0x3c000000u) >> 20));
}
"""
helper(
    "f8e4m3_from_f32",
    """
FN unsigned char NAME(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(f));
    return (unsigned char)both;
#else
    const unsigned int u = __float_as_uint(f);"""
    + _E4M3.replace("BITS", "__float_as_uint")
    .replace("AS_FLOAT", "__uint_as_float")
    .replace("}\n", "#endif\n}\n"),
    "cuda",
)
helper(
    "f8e4m3x4_from_f32",
    """
FN unsigned int NAME(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return low | (unsigned int)high << 16;
#else
    return @f8e4m3_from_f32@(a) | (unsigned int)@f8e4m3_from_f32@(b) << 8 |
           (unsigned int)@f8e4m3_from_f32@(c) << 16 | (unsigned int)@f8e4m3_from_f32@(d) << 24;
#endif
}
""",
    "cuda",
)
helper(
    "f8e4m3_from_f32",
    "FN uchar NAME(float f) {\n    const uint u = as_uint(f);"
    + _E4M3.replace("BITS", "as_uint").replace("AS_FLOAT", "as_float"),
    "opencl",
)

for _lanes in (2, 4, 8, 16):
    _unaligned = f"typedef $T{_lanes} NAME __attribute__((aligned(sizeof($T))));"
    helper(f"unaligned{_lanes}", _unaligned, "opencl")

helper(
    "reciprocal_near",
    """
FN float NAME(float a) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
""",
    "cuda",
    emulated=True,
)
#: erf(x) = x P(x^2) / Q(x^2) up to x = 3.85, where it is 1 to within float32: the ratio with the smallest
#: largest relative error (4.2e-8), fitted by reweighted least squares on 6,000 points; lowest powers first
_ERF_LIMIT = 3.85
_ERF_P = (
    *(1.1283791065216064, 0.19388559460639954, 0.04978480190038681, 0.003462212858721614),
    *(0.00013761079753749073, -1.979016360564856e-06, 2.074534677376505e-08),
)
_ERF_Q = (1.0, 0.5051586031913757, 0.11251422017412729, 0.013851100578904152, 0.0009028885397128761)


def _horner(name: str, coefficients: tuple[float, ...]) -> str:
    first, *others = reversed(coefficients)
    lines = [f"float {name} = {first!r}f;", *(f"{name} = fmaf({name}, s, {c!r}f);" for c in others)]
    return " ".join(lines)


helper(
    "erf_ratio",
    f"""
FN float NAME(float x) {{
    const float a = @min_f32@(fabsf(x), {_ERF_LIMIT}f), s = a * a;
    {_horner("p", _ERF_P)}
    {_horner("q", _ERF_Q)}
    return copysignf(@min_f32@(a * p * @reciprocal_near@(q), 1.0f), x);
}}
""",
    "cuda",
)
#: log2(erfc(x)) / x for x of at least 0: the polynomial with the smallest largest error of its power of two
#: times itself (7.5e-8), fitted by reweighted least squares; lowest powers first
_ERFC = (
    *(-1.62790859, -0.918416393, -0.148481615, 0.0282536808),
    *(-0.000774629351, -0.00148944181, 0.000445507699, -4.53586046e-05),
)

helper(
    "erfc_power",
    f"""
FN float NAME(float x) {{
    const float s = fabsf(x);
    {_horner("p", _ERFC)}
    const float e = @power@(p * s);
    return x < 0.0f ? 2.0f - e : e;
}}
""",
    "cuda",
)
#: the binary logarithm of the normal distribution function at -s, for s of at least 0: the polynomial with
#: the smallest largest error of its power of two, times s and in parts of the larger of that and 2 ** -14
#: (8.4e-5), fitted by reweighted least squares up to s = 7, beyond which it falls on; lowest powers first
_TAIL = (
    *(-1.00012108, -1.1491746, -0.464122464),
    *(-0.0482364449, 0.00582710163, -0.000320495464),
)
#: beyond it the power of two is 0, times whatever is finite
_TAIL_LIMIT = 65504.0

helper(
    "narrow_gelu",
    f"""
FN float NAME(float x, float scale) {{
    const float a = @min_f32@(fabsf(x), {_TAIL_LIMIT}f), s = a * scale;
    {_horner("p", _TAIL)}
    return fmaf(-a, @power@(p), @max_f32@(x, 0.0f));
}}
""",
    "cuda",
)
