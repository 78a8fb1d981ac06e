/* The product of the mixing coefficients for four streams: 24 outputs and the sum of squares of
 * every row, in float32, on the matrix units.
 *
 * Exact splitting. A float32 is the sum of three bf16 (8 + 8 + 8 bits), and the matrix units
 * multiply bf16 exactly: of the weight's parts times the activation (one part under `release`,
 * three under `float`) only products below 2^-24 of the largest are left out. What they lose is in
 * the sums, which they cut off instead of rounding them, to less than 2^-23 of the largest term or
 * sum each time. A sum here is at most 4 steps of 16 products a part, the smallest parts first, and
 * everything after that is added in float32: 4 * 17 * 2^-24 of the largest term in the worst case,
 * 4e-6 of what 64 products add up to.
 *
 * Order. K in warps' shares of 64, four of them a quad, four quads a group, each added in order: a
 * property of the tensor. With few rows a quad is a block, so that 80 blocks read the 2 MB of
 * weights at once; with many a group is a block that keeps its weights, split, in the registers of
 * its 16 warps while the rows pass.
 */
#ifndef DI_KERNELS_CUDA_MIX_PRODUCT_CUH
#define DI_KERNELS_CUDA_MIX_PRODUCT_CUH

#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/rows.cuh"

static constexpr int MIX_HC = 4, MIX_N = (2 + MIX_HC) * MIX_HC, MIX_TILES = MIX_N / 8;
static constexpr int MIX_SUMS = MIX_N + 1; /* and the squares */
static constexpr int MIX_STEPS = 4, MIX_WARP_K = 16 * MIX_STEPS;
static constexpr int MIX_QUAD_K = 4 * MIX_WARP_K, MIX_GROUP_K = 4 * MIX_QUAD_K;
static constexpr int MIX_PARTS = 3;

static inline __host__ __device__ int32_t mix_quads(int64_t k) {
    return static_cast<int32_t>((k + MIX_QUAD_K - 1) / MIX_QUAD_K);
}
static inline __host__ __device__ int32_t mix_groups(int64_t k) {
    return static_cast<int32_t>((k + MIX_GROUP_K - 1) / MIX_GROUP_K);
}

static __device__ __forceinline__ void mix_mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3};
    mma_bf16(d, a, b0, b1);
}

/* A warp's share of K as the matrix units take it: lane t of a row has values 8 t .. 8 t + 7 of the
 * first 32 and of the second 32; two steps each, in words of two. */
static __device__ __forceinline__ int64_t mix_lane_k(int64_t k, int half) {
    return k + 32 * half + 8 * (lane_id() % 4);
}

/* The three bf16 of eight float32. */
static __device__ __forceinline__ void split_chunk(const float *v, uint32_t (*parts)[4]) {
    float rest[ROW_CHUNK];
    for (int i = 0; i < ROW_CHUNK; i++) rest[i] = v[i];
#pragma unroll
    for (int part = 0; part < MIX_PARTS; part++) {
        for (int w = 0; w < 4; w++) {
            uint32_t word = bf16_word(rest[2 * w], rest[2 * w + 1]);
            parts[part][w] = word;
            rest[2 * w] -= bf16_low(word);
            rest[2 * w + 1] -= bf16_high(word);
        }
    }
}

/* The weights of a warp's share, [half][tile of 8 outputs][part][word]. */
typedef struct mix_weights {
    uint32_t word[2][MIX_TILES][MIX_PARTS][4];
} mix_weights;

static __device__ __forceinline__ void mix_load_weights(const di_matrix &fn, int64_t k,
                                                        mix_weights *out) {
    const uint8_t *data = cuda_at<const uint8_t>(fn.data);
    float v[2][MIX_TILES][ROW_CHUNK];
    bool whole = k + MIX_WARP_K <= fn.k && aligned16(data) && fn.k % 4 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int tile = 0; tile < MIX_TILES; tile++) {
            int64_t row = (8 * tile + lane_id() / 4) * static_cast<int64_t>(fn.k);
            int64_t at = mix_lane_k(k, half);
            if (whole) {
                load_aligned(reinterpret_cast<const float *>(data) + row + at, v[half][tile]);
                continue;
            }
            for (int i = 0; i < ROW_CHUNK; i++)
                v[half][tile][i] = at + i < fn.k ? load_f32(data + 4 * (row + at + i)) : 0.0f;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int tile = 0; tile < MIX_TILES; tile++)
            split_chunk(v[half][tile], out->word[half][tile]);
}

/* Activations of rows g and g + 8 of a tile in a warp's share, as they are in memory. */
template <typename A> struct mix_input;

template <> struct mix_input<__nv_bfloat16> {
    static constexpr int PARTS = 1;
    uint32_t word[2][2][4]; /* [row][half] */
    __device__ __forceinline__ void load(int r, int half, const __nv_bfloat16 *x, bool whole,
                                         int64_t left) {
        uint32_t *to = word[r][half];
        if (whole) {
            uint4 v = *reinterpret_cast<const uint4 *>(x);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            return;
        }
        for (int w = 0; w < 4; w++)
            to[w] = bf16_word(2 * w < left ? to_float(x[2 * w]) : 0.0f,
                              2 * w + 1 < left ? to_float(x[2 * w + 1]) : 0.0f);
    }
    __device__ __forceinline__ void split(int r, int half, uint32_t (*parts)[4],
                                          float *values) const {
        for (int w = 0; w < 4; w++) {
            parts[0][w] = word[r][half][w];
            values[2 * w] = bf16_low(word[r][half][w]);
            values[2 * w + 1] = bf16_high(word[r][half][w]);
        }
    }
};

template <> struct mix_input<float> {
    static constexpr int PARTS = MIX_PARTS;
    float value[2][2][ROW_CHUNK];
    __device__ __forceinline__ void load(int r, int half, const float *x, bool whole,
                                         int64_t left) {
        if (whole) return load_aligned(x, value[r][half]);
        for (int i = 0; i < ROW_CHUNK; i++) value[r][half][i] = i < left ? x[i] : 0.0f;
    }
    __device__ __forceinline__ void split(int r, int half, uint32_t (*parts)[4],
                                          float *values) const {
        for (int i = 0; i < ROW_CHUNK; i++) values[i] = value[r][half][i];
        split_chunk(values, parts);
    }
};

/* ROWS, 8 or 16: rows first .. first + ROWS - 1 of [n_rows][width]; zeros behind their end. */
template <int ROWS, typename A>
static __device__ __forceinline__ void mix_load_rows(const A *x, int64_t n_rows, int64_t width,
                                                     int64_t first, int64_t k, mix_input<A> *out) {
    bool aligned = k + MIX_WARP_K <= width && whole_chunks(x, width);
#pragma unroll
    for (int r = 0; r < ROWS / 8; r++) {
        int64_t row = first + 8 * r + lane_id() / 4;
        for (int half = 0; half < 2; half++) {
            int64_t at = mix_lane_k(k, half), left = row < n_rows ? width - at : 0;
            bool whole = aligned && row < n_rows;
            out->load(r, half, x + row * width + at, whole, left);
        }
    }
}

/* Sums of a tile of rows, [ROWS][MIX_N] and then the squares, so that two neighbours are stored at
 * once and rows do not meet in a bank: whose value i is, and which. */
template <int ROWS> static __device__ __forceinline__ int mix_row_at(int i) {
    return i < ROWS * MIX_N ? i / MIX_N : i - ROWS * MIX_N;
}
template <int ROWS> static __device__ __forceinline__ int mix_sum_at(int i) {
    return i < ROWS * MIX_N ? i % MIX_N : MIX_N;
}

/* A warp's share of the sums of a tile of rows, to out [ROWS * MIX_SUMS]. */
template <int ROWS, typename A>
static __device__ __forceinline__ void mix_tile(const mix_input<A> &x, const mix_weights &w,
                                                float *out) {
    constexpr int PARTS = mix_input<A>::PARTS;
    int g = lane_id() / 4, t = lane_id() % 4;
    float sums[MIX_TILES][4] = {}, squares[2] = {};
    uint32_t a[2][2][PARTS][4] = {}; /* [row][half] */
#pragma unroll
    for (int r = 0; r < ROWS / 8; r++) {
        for (int half = 0; half < 2; half++) {
            float values[ROW_CHUNK];
            x.split(r, half, a[r][half], values);
            squares[r] = chunk_squares(values, squares[r]);
        }
    }
#pragma unroll
    for (int level = MIX_PARTS - 1; level >= 0; level--) {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--) {
            if (p > level) continue;
#pragma unroll
            for (int step = 0; step < MIX_STEPS; step++) {
#pragma unroll
                for (int tile = 0; tile < MIX_TILES; tile++) {
                    const uint32_t *low = &a[0][step / 2][p][step % 2 * 2];
                    const uint32_t *high = &a[1][step / 2][p][step % 2 * 2];
                    const uint32_t *b = &w.word[step / 2][tile][level - p][step % 2 * 2];
                    mix_mma(sums[tile], low[0], high[0], low[1], high[1], b[0], b[1]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS / 8; r++) {
        float *row = out + (g + 8 * r) * MIX_N;
        for (int tile = 0; tile < MIX_TILES; tile++)
            *reinterpret_cast<float2 *>(row + 8 * tile + 2 * t) =
                make_float2(sums[tile][2 * r], sums[tile][2 * r + 1]);
        float sum = warp_reduce(squares[r], add_op(), 4);
        if (t == 0) out[ROWS * MIX_N + g + 8 * r] = sum;
    }
}

/* The sum of four consecutive parts, `apart` values from each other. */
static __device__ __forceinline__ float mix_sum4(const float *part, int64_t apart) {
    return ((part[0] + part[apart]) + part[2 * apart]) + part[3 * apart];
}

#endif
