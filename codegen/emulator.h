// What generated CUDA C sees when a C++ compiler builds it for the CPU: the names of the language and of our prelude.
// Threads, barriers and memory live in the engine (emulator_engine.h), which loads the built kernel.
#pragma once
#define TW_EMULATOR 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// All shared variables of a kernel lie in one section, which the engine poisons before each block.
#define __shared__ static __attribute__((section("tw_shared")))

struct TwIndex { unsigned int x, y, z; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { unsigned int x, y; };
struct __align__(16) uint4 { unsigned int x, y, z, w; };
struct __align__(16) double2 { double x, y; };
struct __align__(16) longlong2 { long long x, y; };
struct __align__(16) ulonglong2 { unsigned long long x, y; };

// A tensor map is its recipe (runtime/plan/tensor_map.py) with the address; dimensions are innermost first, and
// strides in bytes include that of the first one. `channels` is 0 for tiled maps.
struct tw_tensor_map {
    unsigned char* base;
    int rank, itemsize, swizzle, nan, rounds;
    long long dims[5], strides[5];
    int box[5], steps[5], lower[3], upper[3], channels, pixels;
};

typedef void (*TwTogether)(void** lanes, int count);
typedef void (*TwProductOf)(float* sums, unsigned long long a, unsigned long long b);

extern "C" {
extern TwIndex threadIdx, blockIdx;
void tw_barrier(int line);
void tw_barrier_of(int line, int number, int threads);
void tw_counters(unsigned long long* barriers, int slots, int full, int empty, const char* channel);
void tw_slots_hold(unsigned long long* barriers, int slots, void* buffer, int bytes);
void tw_arrive(unsigned long long* barrier);
void tw_arrive_expecting(unsigned long long* barrier, int bytes);
void tw_arrive_group(unsigned long long* barrier, int threads);
void tw_arrive_copies(unsigned long long* barrier);
void tw_await(unsigned long long* barrier, int parity);
void tw_transaction(unsigned long long* barrier, int bytes, void (*act)(void*), void* own);
void tw_store(void (*act)(void*), void* own);
void tw_store_commit();
void tw_store_wait(int pending);
unsigned int tw_rank();
void* tw_in_block(const void* place, int rank);
void tw_barrier_of_cluster(int line);
void tw_takes_role(const char* name);
void tw_fence();
void tw_together(int line, TwTogether act, void* own);
void tw_copy(void* target, const void* source, int bytes, bool keep);
void tw_commit();
void tw_wait(int pending);
void tw_multiply(TwProductOf act, float* sums, unsigned long long a, unsigned long long b);
void tw_multiply_commit();
void tw_multiply_wait(int pending);
unsigned char* tw_dynamic_shared();
void tw_fail(const char* what, int line);
unsigned long long tw_nanoseconds();

#define TW_MATH(name) float name##f(float); double name(double);
TW_MATH(exp) TW_MATH(exp2) TW_MATH(log) TW_MATH(log2) TW_MATH(log10) TW_MATH(sqrt) TW_MATH(sin) TW_MATH(cos)
TW_MATH(tan) TW_MATH(sinh) TW_MATH(cosh) TW_MATH(tanh) TW_MATH(asin) TW_MATH(acos) TW_MATH(atan) TW_MATH(asinh)
TW_MATH(acosh) TW_MATH(atanh) TW_MATH(erf) TW_MATH(erfc) TW_MATH(floor) TW_MATH(ceil) TW_MATH(trunc) TW_MATH(rint) TW_MATH(fabs)
#undef TW_MATH
#define TW_MATH(name) float name##f(float, float); double name(double, double);
TW_MATH(pow) TW_MATH(atan2) TW_MATH(fmod) TW_MATH(copysign)
#undef TW_MATH
float fmaf(float, float, float);
double fma(double, double, double);
}

static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float __expf(float a) { return expf(a); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float tw_reciprocal_near(float a) { return 1.0f / a; }

template <class To, class From>
static inline To tw_bits(From from) {
    To to;
    static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps the size");
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
static inline unsigned int __float_as_uint(float f) { return tw_bits<unsigned int>(f); }
static inline float __uint_as_float(unsigned int u) { return tw_bits<float>(u); }
static inline float __int_as_float(int i) { return tw_bits<float>(i); }

// -- 16-bit floats: round to nearest, ties to even ------------------------------------------------------------
static inline float tw_f32_from_f16(unsigned short h) {
    const unsigned int sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) return __uint_as_float(sign | __float_as_uint(rest * 0x1p-24f));
    return __uint_as_float(sign | ((rest << 13) + 0x38000000u));
}
static inline unsigned short tw_f16_from_f32(float f) {
    const unsigned int u = __float_as_uint(f), sign = u >> 16 & 0x8000u;
    unsigned int rest = u & 0x7fffffffu;
    if (rest > 0x7f800000u) return sign | 0x7e00u;
    if (rest >= 0x477ff000u) return sign | 0x7c00u;
    // Adding 2**23 leaves a subnormal result's integer, rounded, in the low bits.
    if (rest < 0x38800000u) return sign | (__float_as_uint(__uint_as_float(rest) * 0x1p24f + 0x1p23f) - 0x4b000000u);
    rest += 0xfffu + (rest >> 13 & 1u);
    return sign | (rest - 0x38000000u) >> 13;
}

// -- what the threads of a warp do together ---------------------------------------------------------------------
enum TwShuffleKind { TW_INDEX, TW_UP, TW_DOWN, TW_XOR };
struct TwShuffle { unsigned long long bits; TwShuffleKind kind; int offset, width, from; unsigned long long result; };

static void tw_shuffle_together(void** lanes, int count) {
    for (int lane = 0; lane < count; ++lane) {
        TwShuffle* own = (TwShuffle*)lanes[lane];
        const int start = lane / own->width * own->width;
        int from = own->kind == TW_INDEX ? start + (own->offset & (own->width - 1))
                   : own->kind == TW_UP  ? lane - own->offset
                   : own->kind == TW_DOWN ? lane + own->offset
                                          : lane ^ own->offset;
        const bool inside = from >= start && from < start + own->width;
        if (!inside) from = lane;
        if (from >= count) tw_fail("a shuffle reads a lane of the warp that the block does not have", -1);
        own->result = ((TwShuffle*)lanes[from])->bits;
    }
}
template <class T>
static inline T tw_shuffle(T value, TwShuffleKind kind, int offset, int width, int line) {
    TwShuffle own = {0, kind, offset, width, 0, 0};
    __builtin_memcpy(&own.bits, &value, sizeof value);
    tw_together(line, tw_shuffle_together, &own);
    __builtin_memcpy(&value, &own.result, sizeof value);
    return value;
}
#define __syncthreads() tw_barrier(__LINE__)
static void tw_nothing_together(void**, int) {}
#define __syncwarp() tw_together(__LINE__, tw_nothing_together, nullptr)
static int tw_some;
static inline int tw_barrier_or(int value, int line) {
    tw_barrier(line);
    tw_some = 0;
    tw_barrier(line);
    if (value) tw_some = 1;
    tw_barrier(line);
    return tw_some;
}
#define __syncthreads_or(value) tw_barrier_or(value, __LINE__)
struct TwAny { int value, any; };
static void tw_any_together(void** lanes, int count) {
    int any = 0;
    for (int lane = 0; lane < count; ++lane) any |= ((TwAny*)lanes[lane])->value;
    for (int lane = 0; lane < count; ++lane) ((TwAny*)lanes[lane])->any = any;
}
static inline int tw_any(int value, int line) {
    TwAny own = {value, 0};
    tw_together(line, tw_any_together, &own);
    return own.any;
}
#define __any_sync(mask, value) tw_any(value, __LINE__)
#define __shfl_sync(mask, value, lane, width) tw_shuffle(value, TW_INDEX, lane, width, __LINE__)
#define __shfl_up_sync(mask, value, by, width) tw_shuffle(value, TW_UP, by, width, __LINE__)
#define __shfl_down_sync(mask, value, by, width) tw_shuffle(value, TW_DOWN, by, width, __LINE__)
#define __shfl_xor_sync(mask, value, by, width) tw_shuffle(value, TW_XOR, by, width, __LINE__)

struct TwMatrix { unsigned int* to; const unsigned short* row; };

template <int count, bool turned>
static void tw_ldmatrix_together(void** lanes, int present) {
    if (present != 32) tw_fail("ldmatrix needs all 32 lanes of a warp", -1);
    for (int matrix = 0; matrix < count; ++matrix) {
        for (int lane = 0; lane < 32; ++lane) {
            unsigned int pair[2];
            for (int i = 0; i < 2; ++i) {
                const int major = turned ? lane % 4 * 2 + i : lane / 4, minor = turned ? lane / 4 : lane % 4 * 2 + i;
                const unsigned short* row = ((TwMatrix*)lanes[matrix * 8 + major])->row;
                if ((unsigned long)row % 16) tw_fail("ldmatrix reads a row that does not start at 16 bytes", -1);
                pair[i] = row[minor];
            }
            ((TwMatrix*)lanes[lane])->to[matrix] = pair[0] | pair[1] << 16;
        }
    }
}
template <int count, bool turned>
static inline void tw_ldmatrix(unsigned int* to, const void* row) {
    TwMatrix own = {to, (const unsigned short*)row};
    tw_together(-1, tw_ldmatrix_together<count, turned>, &own);
}
static inline void tw_ldmatrix_x2(unsigned int* r, const void* row) { tw_ldmatrix<2, false>(r, row); }
static inline void tw_ldmatrix_x4(unsigned int* r, const void* row) { tw_ldmatrix<4, false>(r, row); }
static inline void tw_ldmatrix_x2_trans(unsigned int* r, const void* row) { tw_ldmatrix<2, true>(r, row); }
static inline void tw_ldmatrix_x4_trans(unsigned int* r, const void* row) { tw_ldmatrix<4, true>(r, row); }

static inline float tw_round_tf32(float);
template <int count, bool rounds>
static inline void tw_ldmatrix_f32(float* r, const void* row) {
    unsigned int w[count];
    tw_ldmatrix<count, false>(w, row);
    for (int i = 0; i < count; ++i) r[i] = rounds ? tw_round_tf32(__uint_as_float(w[i])) : __uint_as_float(w[i]);
}
static inline void tw_ldmatrix_x2_f32(float* r, const void* row) { tw_ldmatrix_f32<2, false>(r, row); }
static inline void tw_ldmatrix_x4_f32(float* r, const void* row) { tw_ldmatrix_f32<4, false>(r, row); }
static inline void tw_ldmatrix_x2_f32_tf32(float* r, const void* row) { tw_ldmatrix_f32<2, true>(r, row); }
static inline void tw_ldmatrix_x4_f32_tf32(float* r, const void* row) { tw_ldmatrix_f32<4, true>(r, row); }

struct TwProduct { float* c; const unsigned int *a, *b; };

static inline float tw_half(unsigned int bits) { return tw_f32_from_f16((unsigned short)bits); }
// 8-bit floats with four bits of exponent and three of mantissa: a float16 2 ** 8 times as small, moved up.
static inline float tw_e4m3(unsigned int bits) {
    if ((bits & 0x7f) == 0x7f) return __uint_as_float(0x7fffffffu);
    return tw_f32_from_f16((unsigned short)((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 256.0f;
}
static inline float tw_brain(unsigned int bits) { return __uint_as_float(bits << 16); }
// tf32 keeps 10 bits of the mantissa; ties go away from zero, as cvt.rna does.
static inline float tw_tf32(unsigned int bits) { return __uint_as_float((bits + 0x1000u) & ~0x1fffu); }

static inline float tw_round_tf32(float x) { return tw_tf32(__float_as_uint(x)); }
// The hardware takes the upper 19 bits of a factor as they are.
static inline float tw_cut_tf32(unsigned int bits) { return __uint_as_float(bits & ~0x1fffu); }

// Per register of a lane `per` elements along k; k has two halves of 4 * per elements.
template <int per, float (*value)(unsigned int)>
static void tw_mma_together(void** lanes, int present) {
    if (present != 32) tw_fail("mma needs all 32 lanes of a warp", -1);
    float sums[32][4];
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = ((TwProduct*)lanes[lane])->c[i];
            for (int k = 0; k < 8 * per; ++k) {
                const int half = k / (4 * per), place = k % (4 * per) / per, shift = k % per * (32 / per);
                const unsigned int a = ((TwProduct*)lanes[row % 8 * 4 + place])->a[half * 2 + row / 8];
                const unsigned int b = ((TwProduct*)lanes[column * 4 + place])->b[half];
                const unsigned int keep = 0xffffffffu >> (32 - 32 / per);
                sum += (double)value(a >> shift & keep) * value(b >> shift & keep);
            }
            sums[lane][i] = (float)sum;
        }
    }
    for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(((TwProduct*)lanes[lane])->c, sums[lane], sizeof sums[lane]);
}
static inline void tw_mma_f16(float* c, const unsigned int* a, const unsigned int* b) {
    TwProduct own = {c, a, b};
    tw_together(-1, tw_mma_together<2, tw_half>, &own);
}
static inline void tw_mma_bf16(float* c, const unsigned int* a, const unsigned int* b) {
    TwProduct own = {c, a, b};
    tw_together(-1, tw_mma_together<2, tw_brain>, &own);
}
static inline void tw_mma_f8e4m3(float* c, const unsigned int* a, const unsigned int* b) {
    TwProduct own = {c, a, b};
    tw_together(-1, tw_mma_together<4, tw_e4m3>, &own);
}
// Bytes: four along k in a register, k in two halves of 16; sums wrap at 32 bits, as without .satfinite.
template <class A, class B>
static void tw_mma_bytes_together(void** lanes, int present) {
    if (present != 32) tw_fail("mma needs all 32 lanes of a warp", -1);
    unsigned int sums[32][4];
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            unsigned int sum = __float_as_uint(((TwProduct*)lanes[lane])->c[i]);
            for (int k = 0; k < 32; ++k) {
                const int half = k / 16, place = k % 16 / 4, shift = k % 4 * 8;
                const unsigned int a = ((TwProduct*)lanes[row % 8 * 4 + place])->a[half * 2 + row / 8];
                const unsigned int b = ((TwProduct*)lanes[column * 4 + place])->b[half];
                sum += (unsigned int)((int)(A)(a >> shift) * (int)(B)(b >> shift));
            }
            sums[lane][i] = sum;
        }
    }
    for (int lane = 0; lane < 32; ++lane) __builtin_memcpy(((TwProduct*)lanes[lane])->c, sums[lane], sizeof sums[lane]);
}
template <class A, class B>
static inline void tw_mma_bytes(int* c, const unsigned int* a, const unsigned int* b) {
    TwProduct own = {(float*)c, a, b};
    tw_together(-1, tw_mma_bytes_together<A, B>, &own);
}
static inline void tw_mma_i8(int* c, const unsigned int* a, const unsigned int* b) { tw_mma_bytes<signed char, signed char>(c, a, b); }
static inline void tw_mma_u8(int* c, const unsigned int* a, const unsigned int* b) { tw_mma_bytes<unsigned char, unsigned char>(c, a, b); }
static inline void tw_mma_i8_u8(int* c, const unsigned int* a, const unsigned int* b) { tw_mma_bytes<signed char, unsigned char>(c, a, b); }
static inline void tw_mma_u8_i8(int* c, const unsigned int* a, const unsigned int* b) { tw_mma_bytes<unsigned char, signed char>(c, a, b); }
static inline void tw_mma_tf32(float* c, const float* a, const float* b) {
    TwProduct own = {c, (const unsigned int*)a, (const unsigned int*)b};
    tw_together(-1, tw_mma_together<1, tw_tf32>, &own);
}
static inline void tw_mma_tf32_rounded(float* c, const float* a, const float* b) {
    TwProduct own = {c, (const unsigned int*)a, (const unsigned int*)b};
    tw_together(-1, tw_mma_together<1, tw_cut_tf32>, &own);
}

// -- multiplications of warpgroups: tiles of swizzled rows in shared memory --------------------------------------
// A descriptor is the address / 16 with the code of the swizzle above it, as on the GPU.
template <int row>
static inline unsigned long long tw_tile(const void* tile) {
    const unsigned long long at = (unsigned long long)tile;
    if (at % (row * 8)) tw_fail("a tile of a warpgroup does not start at eight whole rows", -1);
    return at >> 4 | (row == 128 ? 1ull : row == 64 ? 2ull : 3ull) << 62;
}
static inline unsigned long long tw_tile_128(const void* tile) { return tw_tile<128>(tile); }
static inline unsigned long long tw_tile_64(const void* tile) { return tw_tile<64>(tile); }
static inline unsigned long long tw_tile_32(const void* tile) { return tw_tile<32>(tile); }

// Of turned tiles, panels of columns, it has the bytes of a panel / 16 from bit 44 on, above those of an address.
template <int row, int panel_bytes>
static inline unsigned long long tw_panels(const void* tile) {
    return tw_tile<row>(tile) | (panel_bytes >> 4) * 1ull << 44;
}
template <int panel_bytes>
static inline unsigned long long tw_panels_128(const void* tile) { return tw_panels<128, panel_bytes>(tile); }
template <int panel_bytes>
static inline unsigned long long tw_panels_64(const void* tile) { return tw_panels<64, panel_bytes>(tile); }
template <int panel_bytes>
static inline unsigned long long tw_panels_32(const void* tile) { return tw_panels<32, panel_bytes>(tile); }

template <int bytes, float (*value)(unsigned int), bool turned = false>
static inline float tw_tile_element(unsigned long long tile, int row, int k) {
    const int around = 16 >> (tile >> 62);  // 8, 4 or 2 pieces of 16 bytes in a row
    const int wide = around * 16 / bytes;
    const unsigned long long panel_bytes = (tile << 2 >> 46) << 4;
    unsigned long long at = (tile & ((1ull << 44) - 1)) << 4;
    at += turned ? row / wide * panel_bytes + k * around * 16 + row % wide * bytes : row * around * 16 + k * bytes;
    at ^= (at >> 7 & (around - 1)) << 4;
    unsigned int bits = 0;
    __builtin_memcpy(&bits, (const void*)at, bytes);
    return value(bits);
}
template <int n, int bytes, float (*value)(unsigned int), bool a_turned, bool b_turned, bool fresh>
static void tw_warpgroup(float* sums, unsigned long long a, unsigned long long b) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < n / 2; ++i) {
        const int row = first + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        double sum = fresh ? 0.0 : sums[i];
        for (int k = 0; k < 32 / bytes; ++k)
            sum += (double)tw_tile_element<bytes, value, a_turned>(a, row, k) *
                   tw_tile_element<bytes, value, b_turned>(b, column, k);
        sums[i] = (float)sum;
    }
}
// 8-bit floats: the 32 products of an instruction and the sum before are moved to the largest exponent of them,
// of each the 14 highest bits from there are added and the others are cut off (DeepSeek-V3, arXiv 2412.19437).
template <int n, bool fresh>
static void tw_warpgroup_float8(float* sums, unsigned long long a, unsigned long long b) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (int i = 0; i < n / 2; ++i) {
        const int row = first + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float terms[33];
        unsigned int most = 0;
        for (int k = 0; k < 33; ++k) {
            const float before = fresh ? 0.0f : sums[i];
            terms[k] = k == 32 ? before : tw_tile_element<1, tw_e4m3>(a, row, k) * tw_tile_element<1, tw_e4m3>(b, column, k);
            const unsigned int bits = __float_as_uint(terms[k]) & 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        double sum = 0.0;
        if (most >= 0x7f800000u) {
            for (int k = 0; k < 33; ++k) sum += terms[k];
        } else if (most >> 23 > 13) {  // 2 ** (exponent - 13): the place of the fourteenth bit
            const double unit = (double)__uint_as_float(((most >> 23) - 13) << 23);
            for (int k = 0; k < 33; ++k) sum += (double)(long long)(terms[k] / unit) * unit;
        }
        sums[i] = (float)sum;
    }
}
// Bytes, each factor signed or not: sums wrap at 32 bits.
template <class Byte>
static inline int tw_tile_byte(unsigned long long tile, int row, int k) {
    const int around = 16 >> (tile >> 62);
    unsigned long long at = (tile << 2 >> 2 << 4) + row * around * 16 + k;
    at ^= (at >> 7 & (around - 1)) << 4;
    return *(const Byte*)at;
}
template <int n, class A, class B, bool fresh>
static void tw_warpgroup_bytes(float* sums, unsigned long long a, unsigned long long b) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    int* whole = (int*)sums;
    for (int i = 0; i < n / 2; ++i) {
        const int row = first + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        unsigned int sum = fresh ? 0u : (unsigned int)whole[i];
        for (int k = 0; k < 32; ++k) sum += (unsigned int)(tw_tile_byte<A>(a, row, k) * tw_tile_byte<B>(b, column, k));
        whole[i] = (int)sum;
    }
}
// The first factor from registers, which a quad of lanes holds of each two rows: what it is now is what counts.
struct TwHeld { const float* a; float rows[2][8]; };
static void tw_held_together(void** lanes, int present) {
    if (present != 32) tw_fail("wgmma needs all 32 lanes of a warp", -1);
    for (int lane = 0; lane < 32; ++lane)
        for (int k = 0; k < 8; ++k)
            for (int i = 0; i < 2; ++i)
                ((TwHeld*)lanes[lane])->rows[i][k] = ((TwHeld*)lanes[lane / 4 * 4 + k % 4])->a[k / 4 * 2 + i];
}
template <int n>
static void tw_warpgroup_held(float* sums, unsigned long long a, unsigned long long b) {
    TwHeld* held = (TwHeld*)a;
    for (int i = 0; i < n / 2; ++i) {
        const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        double sum = sums[i];
        for (int k = 0; k < 8; ++k)
            sum += (double)tw_cut_tf32(__float_as_uint(held->rows[i % 4 / 2][k])) *
                   tw_tile_element<4, tw_cut_tf32>(b, column, k);
        sums[i] = (float)sum;
    }
    delete held;
}
// The same of 16 bits, in pairs along k; sums that are fresh start from 0.
struct TwHeldPairs { const unsigned int* a; float rows[2][16]; };
template <float (*value)(unsigned int)>
static void tw_held_pairs_together(void** lanes, int present) {
    if (present != 32) tw_fail("wgmma needs all 32 lanes of a warp", -1);
    for (int lane = 0; lane < 32; ++lane)
        for (int k = 0; k < 16; ++k)
            for (int i = 0; i < 2; ++i) {
                const unsigned int pair = ((TwHeldPairs*)lanes[lane / 4 * 4 + k % 8 / 2])->a[k / 8 * 2 + i];
                ((TwHeldPairs*)lanes[lane])->rows[i][k] = value(pair >> k % 2 * 16 & 0xffffu);
            }
}
template <int n, float (*value)(unsigned int), bool turned, bool fresh>
static void tw_warpgroup_held_pairs(float* sums, unsigned long long a, unsigned long long b) {
    TwHeldPairs* held = (TwHeldPairs*)a;
    for (int i = 0; i < n / 2; ++i) {
        const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        double sum = fresh ? 0.0 : sums[i];
        for (int k = 0; k < 16; ++k)
            sum += (double)held->rows[i % 4 / 2][k] * tw_tile_element<2, value, turned>(b, column, k);
        sums[i] = (float)sum;
    }
    delete held;
}
// Templates, so that only what a kernel calls is compiled.
#define TW_WGMMA_OF(kind, n, bytes, value, a_turned, b_turned, fresh)                                        \
    template <class Float>                                                                                   \
    static inline void tw_wgmma_##kind##_##n(Float* c, unsigned long long a, unsigned long long b) {          \
        tw_multiply(tw_warpgroup<n, bytes, value, a_turned, b_turned, fresh>, c, a, b);                      \
    }
#define TW_WGMMA_BOTH(kind, n, bytes, value, a_turned, b_turned)                                             \
    TW_WGMMA_OF(kind, n, bytes, value, a_turned, b_turned, false)                                            \
    TW_WGMMA_OF(kind##_fresh, n, bytes, value, a_turned, b_turned, true)
#define TW_WGMMA_TURNED(dtype, n, value)                                                                     \
    TW_WGMMA_BOTH(dtype, n, 2, value, false, false) TW_WGMMA_BOTH(dtype##_a, n, 2, value, true, false)        \
    TW_WGMMA_BOTH(dtype##_b, n, 2, value, false, true) TW_WGMMA_BOTH(dtype##_ab, n, 2, value, true, true)
#define TW_WGMMA_HELD_OF(kind, n, value, turned, fresh)                                                      \
    template <class Float>                                                                                   \
    static inline void tw_wgmma_##kind##_##n(Float* c, const unsigned int* a, unsigned long long b) {         \
        TwHeldPairs* own = new TwHeldPairs{a, {}};                                                           \
        tw_together(-1, tw_held_pairs_together<value>, own);                                                 \
        tw_multiply(tw_warpgroup_held_pairs<n, value, turned, fresh>, c, (unsigned long long)own, b);        \
    }
#define TW_WGMMA_HELD(dtype, n, value)                                                                       \
    TW_WGMMA_HELD_OF(dtype##_held, n, value, false, false) TW_WGMMA_HELD_OF(dtype##_held_fresh, n, value, false, true) \
    TW_WGMMA_HELD_OF(dtype##_held_b, n, value, true, false) TW_WGMMA_HELD_OF(dtype##_held_b_fresh, n, value, true, true)
#define TW_WGMMA_BYTES_OF(kind, n, A, B, fresh)                                                              \
    template <class Int>                                                                                     \
    static inline void tw_wgmma_##kind##_##n(Int* c, unsigned long long a, unsigned long long b) {            \
        tw_multiply(tw_warpgroup_bytes<n, A, B, fresh>, (float*)c, a, b);                                    \
    }
#define TW_WGMMA_BYTES(kind, n, A, B)                                                                        \
    TW_WGMMA_BYTES_OF(kind, n, A, B, false) TW_WGMMA_BYTES_OF(kind##_fresh, n, A, B, true)
#define TW_WGMMA_FLOAT8(kind, n, fresh)                                                                      \
    template <class Float>                                                                                   \
    static inline void tw_wgmma_##kind##_##n(Float* c, unsigned long long a, unsigned long long b) {          \
        tw_multiply(tw_warpgroup_float8<n, fresh>, c, a, b);                                                 \
    }
#define TW_WGMMA(n)                                                                                          \
    TW_WGMMA_BYTES(i8, n, signed char, signed char) TW_WGMMA_BYTES(u8, n, unsigned char, unsigned char)       \
    TW_WGMMA_BYTES(i8_u8, n, signed char, unsigned char) TW_WGMMA_BYTES(u8_i8, n, unsigned char, signed char) \
    TW_WGMMA_FLOAT8(f8e4m3, n, false) TW_WGMMA_FLOAT8(f8e4m3_fresh, n, true)                                  \
    TW_WGMMA_TURNED(f16, n, tw_half) TW_WGMMA_TURNED(bf16, n, tw_brain)                                       \
    TW_WGMMA_BOTH(f32, n, 4, tw_cut_tf32, false, false)                                                       \
    template <class Float>                                                                                   \
    static inline void tw_wgmma_f32_held_##n(Float* c, const float* a, unsigned long long b) {                \
        TwHeld* own = new TwHeld{a, {}};                                                                     \
        tw_together(-1, tw_held_together, own);                                                              \
        tw_multiply(tw_warpgroup_held<n>, c, (unsigned long long)own, b);                                    \
    }                                                                                                        \
    TW_WGMMA_HELD(f16, n, tw_half) TW_WGMMA_HELD(bf16, n, tw_brain)
TW_WGMMA(8) TW_WGMMA(16) TW_WGMMA(24) TW_WGMMA(32) TW_WGMMA(40) TW_WGMMA(48) TW_WGMMA(56) TW_WGMMA(64)
TW_WGMMA(72) TW_WGMMA(80) TW_WGMMA(88) TW_WGMMA(96) TW_WGMMA(104) TW_WGMMA(112) TW_WGMMA(120) TW_WGMMA(128)
TW_WGMMA(136) TW_WGMMA(144) TW_WGMMA(152) TW_WGMMA(160) TW_WGMMA(168) TW_WGMMA(176) TW_WGMMA(184) TW_WGMMA(192)
TW_WGMMA(200) TW_WGMMA(208) TW_WGMMA(216) TW_WGMMA(224) TW_WGMMA(232) TW_WGMMA(240) TW_WGMMA(248) TW_WGMMA(256)
#undef TW_WGMMA
#undef TW_WGMMA_TURNED
#undef TW_WGMMA_BOTH
#undef TW_WGMMA_BYTES
#undef TW_WGMMA_BYTES_OF
#undef TW_WGMMA_OF
#undef TW_WGMMA_FLOAT8
#undef TW_WGMMA_HELD
#undef TW_WGMMA_HELD_OF
static inline void tw_wgmma_begin() {}
static inline void tw_wgmma_commit() { tw_multiply_commit(); }
template <int pending>
static inline void tw_wgmma_wait() { tw_multiply_wait(pending); }
static inline void tw_publish_shared() { tw_fence(); }
template <int count, class T>
static inline void tw_finished(T*) {}
static inline void tw_settled(float) {}

// -- roles and channels ---------------------------------------------------------------------------------------------
template <int slots, int full, int empty>
static inline void tw_channel(unsigned long long* barriers, const char* name) { tw_counters(barriers, slots, full, empty, name); }
template <int slots>
static inline void tw_channel_holds(unsigned long long* barriers, void* buffer, int bytes) { tw_slots_hold(barriers, slots, buffer, bytes); }
static inline void tw_role(const char* name) { tw_takes_role(name); }
static inline int tw_warpgroup() { return threadIdx.x / 128; }
template <int count>
static inline void tw_registers_up() {}
template <int count>
static inline void tw_registers_down() {}
// The barriers of roles are told apart by their numbers; a line would be that of this header.
template <int number, int threads>
static inline void tw_named_barrier() { tw_barrier_of(-number, number, threads); }
static inline void tw_mbarrier_wait(unsigned long long* barrier, int parity) { tw_await(barrier, parity); }
static inline void tw_mbarrier_arrive(unsigned long long* barrier) { tw_arrive(barrier); }
static inline void tw_mbarrier_expect(unsigned long long* barrier, int nbytes) { tw_arrive_expecting(barrier, nbytes); }
static inline void tw_mbarrier_arrive_copies(unsigned long long* barrier) { tw_arrive_copies(barrier); }
static inline void tw_mbarrier_arrive_warp(unsigned long long* barrier) { tw_arrive_group(barrier, 32); }
static inline void tw_mbarrier_arrive_warpgroup(unsigned long long* barrier) { tw_arrive_group(barrier, 128); }
static inline void tw_mbarrier_arrive_at(unsigned long long* barrier, int rank) { tw_arrive((unsigned long long*)tw_in_block(barrier, rank)); }
template <int blocks>
static inline void tw_mbarrier_arrive_thread_of(unsigned long long* barrier) {
    for (int rank = 0; rank < blocks; ++rank) tw_mbarrier_arrive_at(barrier, rank);
}
template <int blocks>
static inline void tw_mbarrier_arrive_warp_of(unsigned long long* barrier) {
    for (int rank = 0; rank < blocks; ++rank) tw_arrive_group((unsigned long long*)tw_in_block(barrier, rank), 32);
}
template <int blocks>
static inline void tw_mbarrier_arrive_warpgroup_of(unsigned long long* barrier) {
    for (int rank = 0; rank < blocks; ++rank) tw_arrive_group((unsigned long long*)tw_in_block(barrier, rank), 128);
}

// -- the copy engine: what a map brings, element by element, when it lands -----------------------------------------
static inline void tw_prefetch_map(const tw_tensor_map&) {}
static inline unsigned int tw_cluster_rank() { return tw_rank(); }
static inline void tw_cluster_barrier() { tw_barrier_of_cluster(-100); }
static inline void tw_give_to_block(float value, float* place, int rank) { *(float*)tw_in_block(place, rank) = value; }
static inline void tw_share_with_block(const void* place, int rank) { __builtin_memcpy(tw_in_block(place, rank), place, 16); }
template <int lanes, int blocks, class T>
static inline void tw_sum_over_blocks(T* sums, const T* place) {
    for (int i = 0; i < lanes; ++i) {
        sums[i] = ((const T*)tw_in_block(place, 0))[i];
        for (int rank = 1; rank < blocks; ++rank) sums[i] += ((const T*)tw_in_block(place, rank))[i];
    }
}
template <int blocks, class T> static inline void tw_sum_of_cluster_1(T* sums, const T* place) { tw_sum_over_blocks<1, blocks>(sums, place); }
template <int blocks, class T> static inline void tw_sum_of_cluster_2(T* sums, const T* place) { tw_sum_over_blocks<2, blocks>(sums, place); }
template <int blocks, class T> static inline void tw_sum_of_cluster_4(T* sums, const T* place) { tw_sum_over_blocks<4, blocks>(sums, place); }

// A transfer under way: coordinates are innermost first. `bytes` is that of a run, which has no map.
struct TwTransfer {
    tw_tensor_map map;
    unsigned char* shared;
    const unsigned char* source;
    int at[5], offsets[3], bytes;
    bool adds;
};
// Address bits 7 to 9 (7 and 8, 7) permute the 16-byte pieces of rows of 128 (64, 32) bytes.
static inline unsigned char* tw_swizzled(const tw_tensor_map& m, unsigned char* place) {
    const unsigned long long at = (unsigned long long)place;
    return m.swizzle ? (unsigned char*)(at ^ (at >> 7 & (m.swizzle / 16 - 1)) << 4) : place;
}
static inline void tw_check_tile(const tw_tensor_map& m, const void* shared) {
    if ((unsigned long)shared % (m.swizzle ? m.swizzle * 8 : 128)) tw_fail("a tile of the copy engine does not start where its swizzle does", -1);
}
// Calls `act(place in shared memory, element or null outside)` for each element of a tile.
template <class Act>
static inline void tw_each_of_tile(const TwTransfer& t, Act act) {
    const tw_tensor_map& m = t.map;
    int count[5], step[5] = {0, 0, 0, 0, 0};
    long total = 1;
    for (int i = 0; i < m.rank; ++i) total *= count[i] = (m.box[i] + m.steps[i] - 1) / m.steps[i];
    for (long n = 0; n < total; ++n) {
        unsigned char* element = m.base;
        for (int i = 0; i < m.rank; ++i) {
            const long long x = (long long)t.at[i] + (long long)step[i] * m.steps[i];
            if (x < 0 || x >= m.dims[i]) element = nullptr;
            if (element) element += x * m.strides[i];
        }
        act(tw_swizzled(m, t.shared + n * m.itemsize), element);
        for (int i = 0; i < m.rank && ++step[i] == count[i]; ++i) step[i] = 0;
    }
}
// Maps that round bring float32 to TF32: to the nearest, ties to even; infinity and nan as they are.
static inline void tw_bring(const tw_tensor_map& m, unsigned char* place, const unsigned char* element) {
    if (element) __builtin_memcpy(place, element, m.itemsize);
    else __builtin_memset(place, m.nan ? 0xff : 0, m.itemsize);
    if (!m.rounds) return;
    unsigned int bits;
    __builtin_memcpy(&bits, place, 4);
    if ((bits >> 23 & 0xff) == 0xff) return;
    bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
    __builtin_memcpy(place, &bits, 4);
}
static inline void tw_land_tile(void* own) {
    TwTransfer* t = (TwTransfer*)own;
    tw_each_of_tile(*t, [&](unsigned char* place, unsigned char* element) { tw_bring(t->map, place, element); });
    delete t;
}
// Windows go on along the innermost spatial dimension from corner to corner, then the next one, then images.
static inline void tw_land_window(void* own) {
    TwTransfer* t = (TwTransfer*)own;
    const tw_tensor_map& m = t->map;
    const int space = m.rank - 2;
    int at[5];
    __builtin_memcpy(at, t->at, sizeof at);
    for (int i = 0; i < space; ++i)
        if (at[1 + i] < m.lower[i] || at[1 + i] > m.dims[1 + i] - 1 + m.upper[i])
            tw_fail("the first window of a copy lies outside of the corners of its map", -1);
    for (int pixel = 0; pixel < m.pixels; ++pixel) {
        for (int c = 0; c < m.channels; ++c) {
            const long long channel = (long long)at[0] + c;
            const unsigned char* element = m.base + channel * m.strides[0];
            if (channel < 0 || channel >= m.dims[0]) element = nullptr;
            for (int i = 0; i <= space; ++i) {
                const long long x = (long long)at[1 + i] + (i < space ? t->offsets[i] : 0);
                if (x < 0 || x >= m.dims[1 + i]) element = nullptr;
                if (element) element += x * m.strides[1 + i];
            }
            tw_bring(m, tw_swizzled(m, t->shared + ((long)pixel * m.channels + c) * m.itemsize), element);
        }
        for (int i = 0; i <= space; ++i) {
            at[1 + i] += i < space ? m.steps[1 + i] : 1;
            if (i == space || at[1 + i] <= m.dims[1 + i] - 1 + m.upper[i]) break;
            at[1 + i] = m.lower[i];
        }
    }
    delete t;
}
static inline void tw_land_run(void* own) {
    TwTransfer* t = (TwTransfer*)own;
    __builtin_memcpy(t->shared, t->source, t->bytes);
    delete t;
}
static inline long tw_tile_bytes(const tw_tensor_map& m) {
    long total = m.itemsize;
    if (m.channels) return total * m.channels * m.pixels;
    for (int i = 0; i < m.rank; ++i) total *= (m.box[i] + m.steps[i] - 1) / m.steps[i];
    return total;
}
// `ranks` is a mask of blocks of the cluster, 0 for the own one: the same place of each is filled.
static inline void tw_fill(TwTransfer t, void (*act)(void*), unsigned long long* barrier, int bytes, int ranks) {
    for (int rank = 0; rank < 16; ++rank) {
        if (ranks ? !(ranks >> rank & 1) : rank) continue;
        TwTransfer* own = new TwTransfer(t);
        own->shared = ranks ? (unsigned char*)tw_in_block(t.shared, rank) : t.shared;
        tw_transaction(ranks ? (unsigned long long*)tw_in_block(barrier, rank) : barrier, bytes, act, own);
    }
}
static inline void tw_tile_fill(void* shared, const tw_tensor_map& m, unsigned long long* barrier, int ranks,
                                const int* at, const int* offsets) {
    tw_check_tile(m, shared);
    TwTransfer t = {m, (unsigned char*)shared, nullptr, {}, {}, 0, false};
    __builtin_memcpy(t.at, at, m.rank * sizeof(int));
    if (offsets) __builtin_memcpy(t.offsets, offsets, (m.rank - 2) * sizeof(int));
    tw_fill(t, offsets ? tw_land_window : tw_land_tile, barrier, (int)tw_tile_bytes(m), ranks);
}
template <int rank, bool window, bool to, class... C>
static inline void tw_copy_by(void* s, const tw_tensor_map& m, unsigned long long* b, C... given) {
    const long long all[] = {(long long)given...};
    int at[8];
    const int count = rank + (window ? rank - 2 : 0);
    for (int i = 0; i < count; ++i) at[i] = (int)all[i];
    tw_tile_fill(s, m, b, to ? (int)all[count] : 0, at, window ? at + rank : nullptr);
}
#define TW_COPIES(kind, rank, window)                                                                        \
    template <class... C> static inline void tw_##kind##_##rank##d(void* s, const tw_tensor_map& m, unsigned long long* b, C... c) { tw_copy_by<rank, window, false>(s, m, b, c...); }          \
    template <class... C> static inline void tw_##kind##_##rank##d_to(void* s, const tw_tensor_map& m, unsigned long long* b, C... c) { tw_copy_by<rank, window, true>(s, m, b, c...); }        \
    template <class... C> static inline void tw_##kind##_##rank##d_hint(void* s, const tw_tensor_map& m, unsigned long long* b, C... c) { tw_copy_by<rank, window, false>(s, m, b, c...); }     \
    template <class... C> static inline void tw_##kind##_##rank##d_to_hint(void* s, const tw_tensor_map& m, unsigned long long* b, C... c) { tw_copy_by<rank, window, true>(s, m, b, c...); }
TW_COPIES(copy_tile, 1, false) TW_COPIES(copy_tile, 2, false) TW_COPIES(copy_tile, 3, false) TW_COPIES(copy_tile, 4, false)
TW_COPIES(copy_tile, 5, false) TW_COPIES(copy_window, 3, true) TW_COPIES(copy_window, 4, true) TW_COPIES(copy_window, 5, true)
#undef TW_COPIES
static inline void tw_copy_run_to(void* shared, const void* source, unsigned long long* barrier, int bytes, int ranks, unsigned long long = 0) {
    if (((unsigned long)shared | (unsigned long)source | bytes) % 16) tw_fail("a run of the copy engine is not whole pieces of 16 bytes", -1);
    TwTransfer t = {{}, (unsigned char*)shared, (const unsigned char*)source, {}, {}, bytes, false};
    tw_fill(t, tw_land_run, barrier, bytes, ranks);
}
static inline void tw_copy_run_to_hint(void* s, const void* g, unsigned long long* b, int bytes, int ranks, unsigned long long) { tw_copy_run_to(s, g, b, bytes, ranks); }
static inline void tw_copy_run(void* s, const void* g, unsigned long long* b, int bytes) { tw_copy_run_to(s, g, b, bytes, 0); }
static inline void tw_copy_run_hint(void* s, const void* g, unsigned long long* b, int bytes, unsigned long long) { tw_copy_run_to(s, g, b, bytes, 0); }

template <class T>
static inline void tw_store_element(unsigned char* element, const unsigned char* place, bool adds) {
    T value, before;
    __builtin_memcpy(&value, place, sizeof(T));
    __builtin_memcpy(&before, element, sizeof(T));
    value = adds ? (T)(value + before) : value;
    __builtin_memcpy(element, &value, sizeof(T));
}
static inline void tw_land_store(void* own) {
    TwTransfer* t = (TwTransfer*)own;
    tw_each_of_tile(*t, [&](unsigned char* place, unsigned char* element) {
        if (!element) return;
        if (!t->adds) __builtin_memcpy(element, place, t->map.itemsize);
        else if (t->map.itemsize == 4) tw_store_element<float>(element, place, true);
        else if (t->map.itemsize == 8) tw_store_element<double>(element, place, true);
        else tw_fail("the emulator adds tiles of 32- and 64-bit floats only", -1);
    });
    delete t;
}
template <bool adds, class... C>
static inline void tw_store_by(const tw_tensor_map& m, const void* shared, C... given) {
    tw_check_tile(m, shared);
    const int at[] = {given...};
    TwTransfer* t = new TwTransfer{m, (unsigned char*)shared, nullptr, {}, {}, 0, adds};
    __builtin_memcpy(t->at, at, m.rank * sizeof(int));
    tw_store(tw_land_store, t);
}
#define TW_STORES(rank)                                                                                      \
    template <class... C> static inline void tw_store_tile_##rank##d(const tw_tensor_map& m, const void* s, C... c) { tw_store_by<false>(m, s, c...); } \
    template <class... C> static inline void tw_add_tile_##rank##d(const tw_tensor_map& m, const void* s, C... c) { tw_store_by<true>(m, s, c...); }
TW_STORES(1) TW_STORES(2) TW_STORES(3) TW_STORES(4) TW_STORES(5)
#undef TW_STORES
static inline void tw_bulk_commit() { tw_store_commit(); }
template <int pending>
static inline void tw_bulk_wait() { tw_store_wait(pending); }
template <int pending>
static inline void tw_bulk_wait_reads() { tw_store_wait(pending); }

// -- asynchronous copies, atomics ---------------------------------------------------------------------------------
static inline void tw_copy_async_4(void* to, const void* from, bool keep) { tw_copy(to, from, 4, keep); }
static inline void tw_copy_async_8(void* to, const void* from, bool keep) { tw_copy(to, from, 8, keep); }
static inline void tw_copy_async_16(void* to, const void* from, bool keep) { tw_copy(to, from, 16, keep); }
static inline void tw_async_commit() { tw_commit(); }
template <int pending>
static inline void tw_async_wait() { tw_wait(pending); }
static inline void tw_wait_for_launches() {}
static inline void tw_release_dependents() {}
static inline void tw_stay(int) {}
static inline void tw_prefetch(const void*) {}
template <class T>
static inline T* tw_after_wait(T* given) { return given; }
template <class T>
static inline T atomicAdd(T* place, T value) {
    const T before = *place;
    *place = before + value;
    return before;
}
#define TW_DYNAMIC_SHARED(name) unsigned char* name = tw_dynamic_shared()

// One CPU runs all blocks.
static inline unsigned int tw_processor() { return 0; }

// -- what the engine asks of a built kernel -----------------------------------------------------------------------
template <int... I> struct TwInts {};
template <int N, int... I> struct TwCount : TwCount<N - 1, N - 1, I...> {};
template <int... I> struct TwCount<0, I...> { typedef TwInts<I...> type; };
// Buffers come as their addresses, tensor maps as addresses of them.
template <class T> struct TwArgument { static T of(void* given) { return (T)given; } };
template <> struct TwArgument<tw_tensor_map> {
    static tw_tensor_map of(void* given) { return *(const tw_tensor_map*)given; }
};
template <class... T, int... I>
static inline void tw_apply(void (*kernel)(T...), void** args, TwInts<I...>) { kernel(TwArgument<T>::of(args[I])...); }
template <class... T>
static inline void tw_call(void (*kernel)(T...), void** args) {
    tw_apply(kernel, args, typename TwCount<sizeof...(T)>::type());
}
template <class... T>
static inline int tw_arity(void (*)(T...)) { return sizeof...(T); }
extern "C" char __start_tw_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_tw_shared[] __attribute__((weak, visibility("hidden")));

#define TW_EMULATOR_ENTRY(kernel)                                                                           \
    extern "C" void tw_entry(void** args) { tw_call(kernel, args); }                                        \
    extern "C" int tw_args() { return tw_arity(kernel); }                                                   \
    extern "C" void tw_static_shared(char** start, char** stop) {                                           \
        *start = __start_tw_shared;                                                                         \
        *stop = __stop_tw_shared;                                                                           \
    }
