/* Activations as the matrix units read them: quantised where the matrix asks for it, in bf16, padded
 * with zeros to a multiple of MMA_K, and in the order of the weights' runs and cells
 * (mma_weights.cuh). A kernel ahead of the product writes them once for all of its tiles.
 *
 *   narrow   [row / 8][unit of 32 values][row % 8][t][16 bytes: cells 2 u and 2 u + 1 of lane t's
 *            run]: a warp's load for one tile of 8 columns is 512 bytes in a row.
 *   wide     [chunk of K][row / 8][step][halves of 8 values][row % 8][t]: 128 bytes are a core matrix
 *            of wgmma, and many rows of a chunk, the weights' CHUNK_K, lie in one piece.
 *
 * Rows of one group (di_linear_args) follow those of the group before, whose number is rounded up to
 * 8.
 */
#ifndef DI_KERNELS_CUDA_MMA_ORDER_CUH
#define DI_KERNELS_CUDA_MMA_ORDER_CUH

#include "kernels/cuda/mma_weights.cuh"

typedef struct mma_order {
    int32_t group, chunk; /* values, mma_format<W>::GROUP and CHUNK_K of the weights: 2 to this */
    bool pairs;           /* FP4: cells take values 4 apart */
    bool wide;
    int64_t octets; /* wide: of rows, in all groups */
} mma_order;

static constexpr __host__ __device__ mma_order mma_order_of(di_dtype dtype, bool wide,
                                                            int64_t rows) {
    if (dtype == DI_FP4_PAIR) return mma_order{7, 7, true, wide, rows / 8};
    if (dtype == DI_F8_E4M3) return mma_order{6, 7, false, wide, rows / 8};
    return mma_order{5, 6, false, wide, rows / 8};
}

static inline __host__ __device__ int64_t mma_rows8(int64_t n) { return (n + 7) / 8 * 8; }

/* Bytes from the beginning to what lane t reads of a row first; narrow only. */
static __device__ __forceinline__ uint32_t mma_narrow_at(int64_t row, int32_t padded, int t) {
    return static_cast<uint32_t>(row / 8 * padded * 16 + (row % 8 * 4 + t) * 16);
}

/* Where values k and up of a row stand, in bytes: k in run t, cell s of its group. */
typedef struct mma_place {
    int64_t base;
    int32_t second; /* the cell's second register behind its first */
} mma_place;
static __device__ __forceinline__ mma_place mma_cell_at(const mma_order &o, int64_t row, int32_t k,
                                                        int32_t padded) {
    int32_t g = k >> o.group, t = k >> (o.group - 2) & 3, s = (k & ((1 << (o.group - 2)) - 1)) >> 2;
    if (o.wide) {
        int32_t step = ((k & ((1 << o.chunk) - 1)) >> o.group << (o.group - 4)) + s;
        int64_t octet = static_cast<int64_t>(k >> o.chunk) * o.octets + row / 8;
        return mma_place{(octet << (o.chunk + 4)) + step * 256 + row % 8 * 16 + t * 4, 128};
    }
    int64_t unit = (g << (o.group - 5)) + s / 2;
    return mma_place{row / 8 * padded * 16 + unit * 512 + (row % 8 * 4 + t) * 16 + s % 2 * 8, 4};
}

/* Where one value of a row stands, in values. */
static __device__ __forceinline__ int64_t mma_value_at(const mma_order &o, int64_t row, int32_t k,
                                                       int32_t padded) {
    int32_t v = k % 8, cell = v / 4, word = v / 2 % 2, half = v % 2;
    if (o.pairs) cell = v / 2 % 2, word = v % 2, half = v / 4;
    mma_place at = mma_cell_at(o, row, k / 8 * 8 + 4 * cell, padded);
    return (at.base + word * at.second) / 2 + half;
}

/* Two bf16 in a register, the first low. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
           static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

/* Rows as q8 has them: [n_rows][k], and [n_rows][k / 32]. k a multiple of MMA_K. */
typedef struct mma_codes {
    uint8_t *codes, *scales;
} mma_codes;
/* Matrices whose rows may be read from what sublayer_in keeps. */
static constexpr __host__ __device__ bool mma_reads_kept(di_dtype dtype) {
    return dtype == DI_F8_E4M3 || dtype == DI_FP4_PAIR;
}
static inline uint64_t mma_codes_bytes(int64_t n_rows, int32_t k) {
    return static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(k + k / 32);
}
/* A lane's eight values of row t from value k on; whole warps call. live: there are such. */
static __device__ __forceinline__ void mma_store_codes(const mma_codes &to, int64_t t, int64_t k,
                                                       int64_t width, bool live, const float *v) {
    uint8_t scale;
    uint2 codes = chunk_q8(v, &scale);
    if (!live) return;
    *reinterpret_cast<uint2 *>(to.codes + t * width + k) = codes;
    if (k % 32 == 0) to.scales[t * (width / 32) + k / 32] = scale;
}

/* What goes in. */
typedef struct mma_input {
    di_ptr x; /* bf16, row t at value t * stride, group g of it at g * k */
    int64_t stride;
    int32_t n_rows, groups, k;
    bool quantize;
    mma_order order;
    uint8_t *out;    /* groups * mma_rows8(n_rows) rows of mma_padded(k) values */
    mma_codes codes; /* of x; codes NULL: they are not there. For wide rows of such matrices */
} mma_input;

static inline uint64_t mma_input_bytes(int64_t n_rows, int64_t groups, int32_t k) {
    return static_cast<uint64_t>(mma_rows8(n_rows) * groups * mma_padded(k)) * 2;
}
static inline __host__ __device__ int64_t mma_input_chunks(const mma_input &in) {
    return static_cast<int64_t>(in.n_rows) * in.groups * (mma_padded(in.k) / 8);
}

/* Eight values before they are ordered; zeros behind K. */
static __device__ __forceinline__ void mma_load_chunk(const mma_input &in, int64_t row,
                                                      int32_t group, int32_t k, float *v) {
    const __nv_bfloat16 *x = cuda_at<const __nv_bfloat16>(in.x) + row * in.stride +
                             static_cast<int64_t>(group) * in.k + k;
    if (k + 8 <= in.k && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
        uint4 words = *reinterpret_cast<const uint4 *>(x);
        v[0] = __uint_as_float(words.x << 16), v[1] = __uint_as_float(words.x & 0xFFFF0000u);
        v[2] = __uint_as_float(words.y << 16), v[3] = __uint_as_float(words.y & 0xFFFF0000u);
        v[4] = __uint_as_float(words.z << 16), v[5] = __uint_as_float(words.z & 0xFFFF0000u);
        v[6] = __uint_as_float(words.w << 16), v[7] = __uint_as_float(words.w & 0xFFFF0000u);
        return;
    }
    for (int i = 0; i < 8; i++) v[i] = k + i < in.k ? to_float(x[i]) : 0.0f;
}

/* x as q8 has it, a block of 32 being the runs of so many lanes. */
template <int RUN> static __device__ __forceinline__ void quantise_run(float (&v)[RUN]) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < RUN; i++) largest = fmaxf(largest, fabsf(v[i]));
    largest = fmaxf(group_largest(largest, 32 / RUN), 1e-4f);
    uint8_t scale = di_e8m0_ceil(largest * (1.0f / 448.0f));
    float by = __uint_as_float((254u - scale) << 23), back = di_e8m0_decode(scale);
#pragma unroll
    for (int i = 0; i < RUN; i += 2) {
        float2 pair = e4m3_pair(e4m3_codes(v[i] * by, v[i + 1] * by));
        v[i] = pair.x * back, v[i + 1] = pair.y * back;
    }
}

/* Values k .. k + 7 of a row, k a multiple of 8: two cells of one run. Whole warps call, with
 * consecutive chunks, where they are quantised; `live`: there is such a chunk. */
static __device__ __forceinline__ void mma_store_chunk(const mma_order &order, uint8_t *out,
                                                       int64_t row, int32_t k, int32_t padded,
                                                       bool quantize, bool live, float (&v)[8]) {
    if (quantize) quantise_run(v);
    if (!live) return;
    uint32_t word[4];
    for (int i = 0; i < 4; i++)
        word[i] = order.pairs ? pack_bf16(v[i], v[i + 4]) : pack_bf16(v[2 * i], v[2 * i + 1]);
    mma_place at = mma_cell_at(order, row, k, padded);
    if (!order.wide) {
        *reinterpret_cast<uint4 *>(out + at.base) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<uint32_t *>(out + at.base + i * at.second) = word[i];
}

/* The same into a wide row that is quantised, for weights of one type, known here: places cost divisions
 * otherwise. Whole warps call. */
template <di_dtype W>
static __device__ __forceinline__ void mma_store_wide(int64_t octets, uint8_t *out, int64_t row,
                                                      int32_t k, bool live, float (&v)[8]) {
    constexpr int GROUP = mma_format<W>::GROUP, CHUNK = mma_format<W>::CHUNK_K, RUN = GROUP / 4;
    quantise_run(v);
    if (!live) return;
    int32_t step = k % CHUNK / GROUP * (GROUP / 16) + k % RUN / 4, t = k % GROUP / RUN;
    uint8_t *at = out + (k / CHUNK * octets + row / 8) * (CHUNK * 16) + step * 256 + row % 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
        reinterpret_cast<uint32_t *>(at + i * 128)[t] =
            W == DI_FP4_PAIR ? pack_bf16(v[i], v[i + 4]) : pack_bf16(v[2 * i], v[2 * i + 1]);
}

/* Chunk i of all; whole warps call, with consecutive chunks, of which some may be behind the end. */
static __device__ __forceinline__ void mma_prepare_chunk(const mma_input &in, int32_t i) {
    int32_t padded = mma_padded(in.k), chunks = padded / 8, line = i / chunks;
    int32_t k = i % chunks * 8, group = line / in.n_rows;
    int64_t row = line % in.n_rows;
    bool live = i < static_cast<int32_t>(mma_input_chunks(in));
    float v[8] = {};
    if (live) mma_load_chunk(in, row, group, k, v);
    mma_store_chunk(in.order, in.out, group * mma_rows8(in.n_rows) + row, k, padded, in.quantize,
                    live, v);
}

#endif
