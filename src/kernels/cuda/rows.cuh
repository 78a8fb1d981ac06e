/* What operations do with one row, by a block of ROW_THREADS threads: norms, RoPE, quantisers. */
#ifndef DI_KERNELS_CUDA_ROWS_CUH
#define DI_KERNELS_CUDA_ROWS_CUH

#include <initializer_list>

#include "kernels/cuda/device.cuh"

static constexpr int ROW_WARPS = 8, ROW_THREADS = ROW_WARPS * WARP;

/* ---- Chunks of eight values, in loads and stores of 16 bytes where the address allows it ---- */

static constexpr int ROW_CHUNK = 8;

/* Chunk i of a row belongs to thread i % blockDim.x, in every function that goes over a row. */
static constexpr uint32_t ROW_MOST = 1024;
static inline uint32_t row_threads(int64_t width) { /* a chunk a thread, as far as a block goes */
    uint32_t threads = cuda_blocks(width, ROW_CHUNK * WARP) * WARP;
    return threads < ROW_MOST ? threads : ROW_MOST;
}
/* Rows of whole chunks, each aligned. */
static inline bool whole_rows(int64_t width, std::initializer_list<di_ptr> rows) {
    bool whole = width % ROW_CHUNK == 0;
    for (di_ptr p : rows) whole = whole && p.address % 16 == 0;
    return whole;
}
/* Released rows have kernels of their own, whose registers leave room for several blocks on a
 * processor: whole chunks, of which a thread of a row's block has one. */
static constexpr uint32_t ROW_RELEASED = 640;
static inline bool released_rows(int64_t width, std::initializer_list<di_ptr> rows) {
    return width <= static_cast<int64_t>(ROW_RELEASED) * ROW_CHUNK && whole_rows(width, rows);
}
#define EACH_CHUNK(at, n)                                                                          \
    for (int64_t at = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK; at < (n);                     \
         at += static_cast<int64_t>(blockDim.x) * ROW_CHUNK)

/* f(at) of every chunk of this thread; ONCE: it has one at most. */
template <bool ONCE, typename F> static __device__ __forceinline__ void each_chunk(int64_t n, F f) {
    int64_t at = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    if constexpr (ONCE) {
        if (at < n) f(at);
    } else {
        for (; at < n; at += static_cast<int64_t>(blockDim.x) * ROW_CHUNK) f(at);
    }
}

static __device__ __forceinline__ bool aligned16(const void *p) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}
static __device__ __forceinline__ float bf16_low(uint32_t word) {
    return __uint_as_float(word << 16);
}
static __device__ __forceinline__ float bf16_high(uint32_t word) {
    return __uint_as_float(word & 0xFFFF0000u);
}
static __device__ __forceinline__ uint32_t bf16_word(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

static __device__ __forceinline__ void bf16_words(const uint4 &v, float *out) {
    out[0] = bf16_low(v.x), out[1] = bf16_high(v.x), out[2] = bf16_low(v.y);
    out[3] = bf16_high(v.y), out[4] = bf16_low(v.z), out[5] = bf16_high(v.z);
    out[6] = bf16_low(v.w), out[7] = bf16_high(v.w);
}
static __device__ __forceinline__ void load_aligned(const __nv_bfloat16 *x, float *out) {
    bf16_words(*reinterpret_cast<const uint4 *>(x), out);
}
static __device__ __forceinline__ void load_aligned(const float *x, float *out) {
    float4 a = reinterpret_cast<const float4 *>(x)[0], b = reinterpret_cast<const float4 *>(x)[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
static __device__ __forceinline__ void store_aligned(__nv_bfloat16 *x, const float *v) {
    *reinterpret_cast<uint4 *>(x) = make_uint4(bf16_word(v[0], v[1]), bf16_word(v[2], v[3]),
                                               bf16_word(v[4], v[5]), bf16_word(v[6], v[7]));
}
static __device__ __forceinline__ void store_aligned(float *x, const float *v) {
    reinterpret_cast<float4 *>(x)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4 *>(x)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* Whether rows of n values from x on, one behind the other, are made of whole aligned chunks. Found
 * once and not at every load: loads with branches between them wait for each other. */
template <typename A> static __device__ __forceinline__ bool whole_chunks(const A *x, int64_t n) {
    return n % ROW_CHUNK == 0 && aligned16(x);
}

/* Values at .. at + 7 of a row of n; 0 behind its end. */
template <bool WHOLE, typename A>
static __device__ __forceinline__ void load_chunk(const A *x, int64_t at, int64_t n, float *out) {
    if constexpr (WHOLE) {
        load_aligned(x + at, out);
    } else {
        for (int i = 0; i < ROW_CHUNK; i++) out[i] = at + i < n ? to_float(x[at + i]) : 0.0f;
    }
}
/* The same as it lies in memory, in half the registers, where many chunks are on their way. */
template <bool WHOLE, typename A> struct chunk_bits {
    float v[ROW_CHUNK];
    __device__ __forceinline__ void load(const A *x, int64_t at, int64_t n) {
        load_chunk<WHOLE>(x, at, n, v);
    }
    __device__ __forceinline__ float value(int i) const { return v[i]; }
};
template <> struct chunk_bits<true, __nv_bfloat16> {
    uint32_t word[ROW_CHUNK / 2];
    __device__ __forceinline__ void load(const __nv_bfloat16 *x, int64_t at, int64_t) {
        uint4 v = *reinterpret_cast<const uint4 *>(x + at);
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    }
    __device__ __forceinline__ float value(int i) const {
        return i % 2 == 0 ? bf16_low(word[i / 2]) : bf16_high(word[i / 2]);
    }
};
/* The same way back, rounded by a. */
template <bool WHOLE, typename A>
static __device__ __forceinline__ void store_chunk(A *x, int64_t at, int64_t n, const float *v) {
    if constexpr (WHOLE) {
        store_aligned(x + at, v);
    } else {
        for (int i = 0; i < ROW_CHUNK; i++)
            if (at + i < n) x[at + i] = from_float<A>(v[i]);
    }
}
/* Of a stored vector, which may be unaligned. */
static __device__ __forceinline__ void vector_chunk(const di_vector &v, int64_t at, float *out) {
    const uint8_t *data = cuda_at<const uint8_t>(v.data);
    if (at + ROW_CHUNK <= v.n && aligned16(data)) {
        if (v.dtype == DI_BF16)
            load_aligned(reinterpret_cast<const __nv_bfloat16 *>(data) + at, out);
        else
            load_aligned(reinterpret_cast<const float *>(data) + at, out);
        return;
    }
    for (int i = 0; i < ROW_CHUNK; i++) out[i] = at + i < v.n ? vector_value(v, at + i) : 0.0f;
}

/* ---- Norms ---- */

static __device__ __forceinline__ float chunk_squares(const float *v, float sum) {
    for (int i = 0; i < ROW_CHUNK; i++) sum = fmaf(v[i], v[i], sum);
    return sum;
}

/* w * (v * inverse), in place. */
static __device__ __forceinline__ void chunk_norm(float *v, const float *weight, float inverse) {
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = weight[i] * (v[i] * inverse);
}

/* The sum over all threads of a block of whole warps, in every thread. */
static __device__ __forceinline__ float row_sum(float x) {
    __shared__ float part[WARP];
    float mine = warp_sum(x);
    int warps = static_cast<int>(blockDim.x) / WARP;
    __syncthreads(); /* an earlier call may still read */
    if (lane_id() == 0) part[warp_id()] = mine;
    __syncthreads();
    return warp_sum(lane_id() < warps ? part[lane_id()] : 0.0f);
}

/* 1 / sqrt(mean(x^2) + eps) from the sum of the squares of n values. */
static __device__ __forceinline__ float root_inverse(float squares, int64_t n, double eps) {
    double mean = static_cast<double>(squares) / static_cast<double>(n);
    return static_cast<float>(1 / sqrt(mean + eps));
}

/* A thread's first chunk stays in registers; others, if the block is too small for the row, are read
 * twice. The weight is asked for before earlier kernels are done. */
template <bool WHOLE, bool ONCE, typename A>
static __device__ __forceinline__ void norm_chunks(const A *x, const di_vector &w, int64_t n,
                                                   double eps, A *out) {
    int64_t first = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    float sum = 0, mine[ROW_CHUNK], weight[ROW_CHUNK];
    if (first < n) vector_chunk(w, first, weight);
    await_kernels_before();
    each_chunk<ONCE>(n, [&](int64_t at) {
        float v[ROW_CHUNK];
        load_chunk<WHOLE>(x, at, n, v);
        sum = chunk_squares(v, sum);
        for (int i = 0; i < ROW_CHUNK && at == first; i++) mine[i] = v[i];
    });
    float inverse = root_inverse(row_sum(sum), n, eps);
    each_chunk<ONCE>(n, [&](int64_t at) {
        if (at != first) {
            load_chunk<WHOLE>(x, at, n, mine);
            vector_chunk(w, at, weight);
        }
        chunk_norm(mine, weight, inverse);
        store_chunk<WHOLE>(out, at, n, mine);
    });
}

/* out = a(w * (x * inverse)) by a block of whole warps, whose number follows from the row's length;
 * may be in place. Every thread reads and writes the same chunks. */
template <typename A>
static __device__ __forceinline__ void row_norm(const A *x, const di_vector &w, int64_t n,
                                                double eps, A *out) {
    if (whole_chunks(x, n) && whole_chunks(out, n))
        norm_chunks<true, false>(x, w, n, eps, out);
    else
        norm_chunks<false, false>(x, w, n, eps, out);
}

/* RoPE of `heads` vectors of `width` values at one position, in place. */
template <typename A>
static __device__ __forceinline__ void
row_rope(A *x, int32_t heads, int32_t width, const di_rope &rope, int32_t position, bool inverse) {
    int32_t half = rope.dims / 2;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < half; i += ROW_THREADS) {
        float2 angle = rope_angle(rope, position, i, inverse);
        for (int32_t h = 0; h < heads; h++) {
            A *pair = x + static_cast<int64_t>(h + 1) * width - rope.dims + 2 * i;
            float2 y = rotated(make_float2(to_float(pair[0]), to_float(pair[1])), angle);
            pair[0] = from_float<A>(y.x);
            pair[1] = from_float<A>(y.y);
        }
    }
}

/* Codes and scales of a row; width a multiple of the quantiser's block (ops.h). */
template <typename A>
static __device__ __forceinline__ void row_quantize(di_quantizer kind, const A *x, int32_t width,
                                                    uint8_t *codes, uint8_t *scales) {
    int lane = lane_id();
    for (int32_t begin = warp_id() * WARP; begin < width; begin += ROW_THREADS) {
        int32_t at = begin + lane; /* beyond the end only for Q4C, half a warp */
        float value = at < width ? to_float(x[at]) : 0.0f;
        uint8_t scale, code;
        if (kind == DI_Q8) {
            code = warp_q8(value, &scale);
            codes[at] = code;
        } else {
            code = kind == DI_Q4I ? warp_q4i(value, &scale) : warp_q4c(value, &scale);
            if (at < width && lane % 2 == 0) codes[at / 2] = code;
        }
        int per_scale = kind == DI_Q4C ? 16 : 32;
        if (at < width && lane % per_scale == 0) scales[at / per_scale] = scale;
    }
}

#endif
