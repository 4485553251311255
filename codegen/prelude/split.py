"""Helpers of float32 products by split factors: pieces of bfloat16, sums, the test for finite ones."""

from __future__ import annotations

from tilewright.codegen.prelude.registry import helper
from tilewright.ir.float_pieces import MARK, PIECES, SCALE, SPLIT_BELOW

for _language, _bits, _float in (
    ("cuda", "__float_as_uint", "__uint_as_float"),
    ("opencl", "as_uint", "as_float"),
):
    _absolute = "fabsf" if _language == "cuda" else "fabs"
    helper(
        "piece_of_f32",
        f"""
FN $u16 NAME(float x, const int number) {{
    if (!({_absolute}(x) < {SPLIT_BELOW:.1f}f)) {{
        const unsigned int bits = {_bits}(x);
        return ($u16)(number == 0 ? {MARK:#x}u : number == 1 ? bits >> 16 : bits & 0xffffu);
    }}
    float rest = x * {SCALE}f;
    $u16 piece = @bf16_from_f32@(rest);
    for (int i = 0; i < number; ++i) {{
        rest -= @f32_from_bf16@(piece);
        piece = @bf16_from_f32@(rest);
    }}
    return piece;
}}
""",
        _language,
    )
    helper(
        "f32_from_pieces",
        f"""
FN float NAME($u16 a, $u16 b, $u16 c) {{
    if ((a & 0x7fffu) > 0x7f80u) return {_float}((unsigned int)b << 16 | (unsigned int)c);
    return (@f32_from_bf16@(a) + (@f32_from_bf16@(b) + @f32_from_bf16@(c))) * {1 / SCALE!r}f;
}}
""",
        _language,
    )

# The rest after each piece is exact. What is not finite, or too large, leaves no number in any sum it enters.
helper(
    "split_pair",
    f"""
template <int apart>
FN void NAME(float low, float high, unsigned int* pieces) {{
    low *= {SCALE}f;
    high *= {SCALE}f;
    #pragma unroll
    for (int i = 0; i < {PIECES}; ++i) {{
        const unsigned int both = @pair_bf16@(low, high);
        pieces[i * apart] = both;
        low -= __uint_as_float(both << 16);
        high -= __uint_as_float(both & 0xffff0000u);
    }}
}}
""",
    "cuda",
)
helper(
    "split_vector",
    """
FN void NAME(const void* low, const void* high, void* large, void* middle, void* small) {
    const float4 a = *(const float4*)low, b = *(const float4*)high;
    unsigned int pieces[12];
    @split_pair@<4>(a.x, b.x, pieces);
    @split_pair@<4>(a.y, b.y, pieces + 1);
    @split_pair@<4>(a.z, b.z, pieces + 2);
    @split_pair@<4>(a.w, b.w, pieces + 3);
    *(uint4*)large = uint4{pieces[0], pieces[1], pieces[2], pieces[3]};
    *(uint4*)middle = uint4{pieces[4], pieces[5], pieces[6], pieces[7]};
    *(uint4*)small = uint4{pieces[8], pieces[9], pieces[10], pieces[11]};
}
""",
    "cuda",
)
helper(
    "add_both",
    """
template <int count>
FN void NAME(float* sums, const float* small, const float* large) {
    #pragma unroll
    for (int i = 0; i < count; ++i) sums[i] += small[i] + large[i];
}
""",
    "cuda",
)
# A finite number times 0 is 0, any other one is nan.
helper(
    "not_finite",
    """
template <int count>
FN bool NAME(const float* sums) {
    float none = 0.0f;
    #pragma unroll
    for (int i = 0; i < count; ++i) none = fmaf(sums[i], 0.0f, none);
    return none != 0.0f;
}
""",
    "cuda",
)
