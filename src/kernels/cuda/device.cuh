/* Device code that all families use: the types A and F, sums in a fixed order, stored values.
 *
 * A kernel that is a template of A rounds by a() where it stores an A (from_float) or where it calls
 * round_a; both are the identity for float. f() needs nothing: everything is computed in float, or
 * in double and stored as float.
 *
 * Encoders and decoders of the small formats are those of formats.h and quantize.h, compiled for
 * the device; what stands here are forms for a warp, or faster ones with the same results.
 */
#ifndef DI_KERNELS_CUDA_DEVICE_CUH
#define DI_KERNELS_CUDA_DEVICE_CUH

#include <cuda_fp8.h>

#include "kernels/cuda/cuda.h"

extern "C" {
#include "base/philox.h"
#include "kernels/formats.h"
#include "kernels/quantize.h"
}

static constexpr int WARP = 32;
static constexpr uint32_t ALL_LANES = 0xFFFFFFFFu;

static __device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % WARP); }
static __device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / WARP); }
/* Of cuda_row_grid. */
static __device__ __forceinline__ int32_t grid_row() {
    return static_cast<int32_t>(blockIdx.z * gridDim.y + blockIdx.y);
}

/* ---- Kernels that are launched to begin early (cuda_launch_early) ---- */

/* Returns when the kernel before is done and what it wrote can be read. Before this call a kernel
 * reads nothing that another kernel writes (stored weights are what it may ask for, or what was
 * there when a kernel before it waited that only then let it begin), and writes nothing. All threads
 * call, those too that have nothing to do: the kernel before has called as well before it was done,
 * so that all kernels before are done and not only one. */
static __device__ __forceinline__ void await_kernels_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* Lets the next kernel begin, if it was launched so, when all blocks have come here. */
static __device__ __forceinline__ void let_kernels_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* For a kernel that has nothing to do before: only its launch is early. */
static __device__ __forceinline__ void begin_early() {
    let_kernels_begin();
    await_kernels_before();
}

/* ---- A ---- */

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename A> static __device__ __forceinline__ A from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
/* a(x) */
template <typename A> static __device__ __forceinline__ float round_a(float x) {
    return to_float(from_float<A>(x));
}

/* ---- Sums and maxima in a fixed order; every thread gets the result ---- */

struct add_op {
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct max_op { /* a NaN is passed over */
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

/* Lanes in groups of `width`, a power of two: each group for itself. */
template <typename Op, typename T>
static __device__ __forceinline__ T warp_reduce(T x, Op op, int width = WARP) {
    for (int apart = width / 2; apart > 0; apart /= 2)
        x = op(x, __shfl_xor_sync(ALL_LANES, x, apart));
    return x;
}
template <typename T> static __device__ __forceinline__ T warp_sum(T x) {
    return warp_reduce(x, add_op());
}

/* Over a block of exactly WARPS warps; all threads call. Warps are joined in their order. */
template <int WARPS, typename Op, typename T>
static __device__ __forceinline__ T block_reduce(T x, Op op) {
    __shared__ T part[WARPS];
    T mine = warp_reduce(x, op);
    __syncthreads(); /* an earlier call may still read */
    if (lane_id() == 0) part[warp_id()] = mine;
    __syncthreads();
    T all = part[0];
    for (int i = 1; i < WARPS; i++) all = op(all, part[i]);
    return all;
}
template <int WARPS, typename T> static __device__ __forceinline__ T block_sum(T x) {
    return block_reduce<WARPS>(x, add_op());
}
template <int WARPS, typename T> static __device__ __forceinline__ T block_max(T x) {
    return block_reduce<WARPS>(x, max_op());
}

/* ---- Stored values, which may be unaligned ---- */

/* Four bytes; aligned words around them are read, which lie in the same 64-byte line or the next
 * one that also holds wanted bytes. */
static __device__ __forceinline__ uint32_t load_u32(const uint8_t *p) {
    uint32_t off = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) & 3);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(p - off);
    return off == 0 ? words[0] : __funnelshift_r(words[0], words[1], off * 8);
}

/* N words from p on; in one load of 16 bytes each where p allows it. */
template <int N>
static __device__ __forceinline__ void load_words(const uint8_t *p, uint32_t *out) {
    if (N % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
        for (int i = 0; i < N / 4; i++) {
            uint4 v = reinterpret_cast<const uint4 *>(p)[i];
            out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
        }
    } else if (N % 2 == 0 && reinterpret_cast<uintptr_t>(p) % 8 == 0) {
        for (int i = 0; i < N / 2; i++) {
            uint2 v = reinterpret_cast<const uint2 *>(p)[i];
            out[2 * i] = v.x, out[2 * i + 1] = v.y;
        }
    } else {
        for (int i = 0; i < N; i++) out[i] = load_u32(p + 4 * i);
    }
}

static __device__ __forceinline__ float load_f32(const uint8_t *p) {
    return __uint_as_float(load_u32(p));
}
static __device__ __forceinline__ float load_bf16(const uint8_t *p) {
    return __uint_as_float(static_cast<uint32_t>(p[0] | p[1] << 8) << 16);
}

/* Value i of a stored vector. */
static __device__ __forceinline__ float vector_value(const di_vector &v, int64_t i) {
    const uint8_t *data = cuda_at<const uint8_t>(v.data);
    return v.dtype == DI_BF16 ? load_bf16(data + 2 * i) : load_f32(data + 4 * i);
}

/* ---- E4M3 by the conversions that the device has ---- */

static __device__ __forceinline__ float2 e4m3_pair(uint32_t codes) { /* the low two bytes */
    __half2_raw raw =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xFFFFu), __NV_E4M3);
    return __half22float2(__half2(raw));
}

/* 4 N E4M3 codes times a scale. */
template <int N>
static __device__ __forceinline__ void decode_e4m3(const uint32_t *words, float scale, float *out) {
    for (int i = 0; i < N; i++) {
        float2 low = e4m3_pair(words[i]), high = e4m3_pair(words[i] >> 16);
        out[4 * i] = low.x * scale, out[4 * i + 1] = low.y * scale;
        out[4 * i + 2] = high.x * scale, out[4 * i + 3] = high.y * scale;
    }
}

/* di_e4m3_encode of two values (but for a NaN's sign), the first in the low byte. */
static __device__ __forceinline__ uint32_t e4m3_codes(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/* ---- Quantisers, a value a lane: 32 values of Q8 and Q4I, two blocks of 16 of Q4C ---- */

static __device__ __forceinline__ float group_largest(float x, int width) {
    return warp_reduce(fabsf(x), max_op(), width);
}

/* Code of this lane's value; *scale: of its block, in every lane. */
static __device__ __forceinline__ uint8_t warp_q8(float x, uint8_t *scale) {
    float largest = fmaxf(group_largest(x, 32), 1e-4f);
    *scale = di_e8m0_ceil(largest * (1.0f / 448.0f));
    return di_e4m3_encode(x / di_e8m0_decode(*scale));
}

/* Codes of eight values a lane, in order; a block is four lanes. A multiplication by the inverse of a
 * power of two rounds as the division does; scales are far from where there is no inverse. */
static __device__ __forceinline__ uint2 chunk_q8(const float *v, uint8_t *scale) {
    float largest = 0;
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    largest = fmaxf(group_largest(largest, 4), 1e-4f);
    *scale = di_e8m0_ceil(largest * (1.0f / 448.0f));
    float by = __uint_as_float((254u - *scale) << 23);
    return make_uint2(e4m3_codes(v[0] * by, v[1] * by) | e4m3_codes(v[2] * by, v[3] * by) << 16,
                      e4m3_codes(v[4] * by, v[5] * by) | e4m3_codes(v[6] * by, v[7] * by) << 16);
}

/* The byte of lanes 2 i and 2 i + 1, in both. */
static __device__ __forceinline__ uint8_t warp_pair(uint8_t code) {
    uint32_t other = __shfl_xor_sync(ALL_LANES, static_cast<uint32_t>(code), 1);
    return static_cast<uint8_t>(lane_id() % 2 ? other | code << 4 : code | other << 4);
}
static __device__ __forceinline__ uint8_t warp_q4i(float x, uint8_t *scale) {
    float largest = fmaxf(group_largest(x, 32), 6.0f * 0x1p-126f);
    *scale = di_e8m0_ceil(largest * (1.0f / 6.0f));
    return warp_pair(di_e2m1_encode(x / di_e8m0_decode(*scale)));
}
static __device__ __forceinline__ uint8_t warp_q4c(float x, uint8_t *scale) {
    float largest = fmaxf(group_largest(x, 16), 6.0f * 0x1p-9f);
    *scale = di_e4m3_encode(largest / 6.0f);
    return warp_pair(di_e2m1_encode(x / di_e4m3_decode(*scale)));
}

/* e2m1 of the low four bits, as di_e2m1_decode: the bits are the top of a float32's exponent and
 * fraction, 2^126 too small. */
static __device__ __forceinline__ float e2m1_value(uint32_t code) {
    return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

/* ---- Functions ---- */

static __device__ __forceinline__ double sigmoid(double x) {
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}
static __device__ __forceinline__ float sigmoid(float x) {
    float e = expf(-fabsf(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/* The same from the device's own powers and inverses, off by less than 2^-17 of itself, and 0 below
 * 2^-126: for what is rounded to bf16. */
static constexpr float LOG2_E = 1.4426950408889634f;
static __device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float fast_sigmoid(float x) {
    float e = fast_exp2(-fabsf(x) * LOG2_E);
    return __fdividef(x >= 0 ? 1.0f : e, 1 + e);
}

/* cos and sin of pair i at a position, rounded to float32 (di_rope). */
static __device__ __forceinline__ float2 rope_angle(const di_rope &rope, int32_t position, int i,
                                                    bool inverse) {
    float angle =
        static_cast<float>(position) * load_f32(cuda_at<const uint8_t>(rope.freq) + 4 * i);
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    return make_float2(static_cast<float>(cosine), static_cast<float>(inverse ? -sine : sine));
}

/* The rotation of one pair. */
static __device__ __forceinline__ float2 rotated(float2 x, float2 angle) {
    return make_float2(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x);
}

/* ---- Entries of a source ---- */

typedef struct page_entry {
    uint8_t *codes, *scales, *key_codes, *key_scales;
} page_entry;
static __device__ __forceinline__ page_entry entry_at(const di_pages &p, int32_t slot, int32_t j) {
    int32_t per_page = 64 / p.ratio, place = j % per_page;
    int32_t number =
        cuda_at<const int32_t>(p.table)[static_cast<int64_t>(slot) * p.table_stride + j / per_page];
    uint8_t *page = cuda_at<uint8_t>(p.pool) + static_cast<uint64_t>(number) * p.page_bytes;
    return page_entry{page + p.codes + static_cast<int64_t>(place) * (p.d / 2),
                      page + p.scales + static_cast<int64_t>(place) * (p.d / 16),
                      page + p.key_codes + static_cast<int64_t>(place) * (p.di / 2),
                      page + p.key_scales + static_cast<int64_t>(place) * (p.di / 32)};
}

#endif
