/* Stored weights as operands of the matrix units: decoded to bf16 in registers.
 *
 * A product's K is cut into groups of 64 stored bytes of a weight row, so that lane t of four takes
 * a run of 16 bytes in one load. A group makes GROUP / 16 steps of m16n8k16; in step s a lane has
 * cell s of its run, four values in two registers, and so have the activations (mma_order.cuh). That
 * fixes which 16 values of K are added in one instruction, for every number of rows.
 *
 *   stored   values a run   values a group   cell s of a run
 *   FP4      32             128              8 (s / 2) + 2 (s % 2) + {0, 4}, {1, 5}
 *   FP8      16              64              4 s + {0, 1}, {2, 3}
 *   BF16      8              32              4 s + {0, 1}, {2, 3}
 *
 * Codes become bf16 in two moves. Their exponent and fraction are put where bf16 has the low end of
 * its exponent and the top of its fraction: the value is then right but for a power of two, codes
 * below the normal ones included. One bf16 multiplication by the scale and that power is exact: all
 * values have at most four bits. Where the power has no bf16 (scales above 2^7 of FP8, 2^1 of FP4,
 * and NaN) it takes two multiplications. What is smaller than bf16's 2^-133 (codes of FP8 under
 * scales below 2^-124) is rounded to a multiple of it.
 */
#ifndef DI_KERNELS_CUDA_MMA_WEIGHTS_CUH
#define DI_KERNELS_CUDA_MMA_WEIGHTS_CUH

#include "kernels/cuda/instructions.cuh"

template <di_dtype W> struct mma_format;
template <> struct mma_format<DI_FP4_PAIR> {
    static constexpr int GROUP = 128, SCALES = 1; /* scales that a run of one row has */
    static constexpr uint32_t SHIFT = 126;        /* codes in place are 2^SHIFT too small */
};
template <> struct mma_format<DI_F8_E4M3> {
    static constexpr int GROUP = 64, SCALES = 1;
    static constexpr uint32_t SHIFT = 120;
};
template <> struct mma_format<DI_BF16> {
    static constexpr int GROUP = 32, SCALES = 0;
    static constexpr uint32_t SHIFT = 0;
};

static constexpr int MMA_RUN_BYTES = 16, MMA_GROUP_BYTES = 64;
/* K is padded to this, and its parts are multiples of it: a whole number of groups of any format. */
static constexpr int MMA_K = 128;

/* How K is split, by K alone: parts of this length are summed from 0 each and then added in their
 * order. At most MMA_PARTS of them. */
static constexpr int MMA_PARTS = 8;
static inline __host__ __device__ int32_t mma_part_length(int32_t k) {
    int32_t length = ((k + MMA_PARTS - 1) / MMA_PARTS + MMA_K - 1) / MMA_K * MMA_K;
    return length < 2 * MMA_K ? 2 * MMA_K : length;
}
static inline __host__ __device__ int32_t mma_parts(int32_t k) {
    return (k + mma_part_length(k) - 1) / mma_part_length(k);
}
static inline __host__ __device__ int32_t mma_padded(int32_t k) {
    return (k + MMA_K - 1) / MMA_K * MMA_K;
}

static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* ---- Codes in place: two cells, from 32 bits of FP4, 64 of FP8, 128 of BF16 ---- */

/* Cells 2 u and 2 u + 1 of a run, two registers each. */
template <di_dtype W>
static __device__ __forceinline__ void mma_cells(const uint4 &run, int u, uint32_t (&out)[4]);

template <>
__device__ __forceinline__ void mma_cells<DI_BF16>(const uint4 &run, int, uint32_t (&out)[4]) {
    out[0] = run.x, out[1] = run.y, out[2] = run.z, out[3] = run.w;
}
template <>
__device__ __forceinline__ void mma_cells<DI_F8_E4M3>(const uint4 &run, int u, uint32_t (&out)[4]) {
    uint32_t words[2] = {u == 0 ? run.x : run.z, u == 0 ? run.y : run.w};
    for (int i = 0; i < 4; i++) { /* two codes at the tops of the halves */
        uint32_t x = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
        out[i] = (x & 0x80008000u) | (x >> 4 & 0x07F007F0u);
    }
}
/* A nibble times 2^6 + 2^12 has its magnitude and its sign where they belong, and copies of both
 * that the mask takes away. */
template <>
__device__ __forceinline__ void mma_cells<DI_FP4_PAIR>(const uint4 &run, int u,
                                                       uint32_t (&out)[4]) {
    uint32_t low = u == 0 ? run.x : u == 1 ? run.y : u == 2 ? run.z : run.w, high = low >> 8;
    out[0] = (low & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
    out[1] = (low & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
    out[2] = (high & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
    out[3] = (high & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
}

/* ---- Scales ---- */

/* What cells are multiplied by, in both halves; `far`: after a multiplication by 2^SHIFT. */
template <di_dtype W> static __device__ __forceinline__ bool mma_far(uint32_t scale) {
    return scale + mma_format<W>::SHIFT > 254;
}
template <di_dtype W>
static __device__ __forceinline__ uint32_t mma_multiplier(uint32_t scale, bool far) {
    if (!far) return (scale + mma_format<W>::SHIFT) * 0x00800080u;
    return scale == 255 ? 0x7FC07FC0u : scale == 0 ? 0x00400040u : scale * 0x00800080u;
}

/* The registers of rows g and g + 8 in two steps, as the left operand has them: a[4 s ...]. FAR: any
 * of the scales is; then all are treated so. */
template <di_dtype W, bool FAR>
static __device__ __forceinline__ void mma_decode(const uint4 &row, const uint4 &row8, int u,
                                                  uint32_t by, uint32_t by8, uint32_t *a) {
    uint32_t lower[4], upper[4];
    mma_cells<W>(row, u, lower);
    mma_cells<W>(row8, u, upper);
    if constexpr (mma_format<W>::SCALES > 0) {
        for (int i = 0; i < 4; i++) {
            if constexpr (FAR) {
                lower[i] = mul_bf16x2(lower[i], (mma_format<W>::SHIFT + 127) * 0x00800080u);
                upper[i] = mul_bf16x2(upper[i], (mma_format<W>::SHIFT + 127) * 0x00800080u);
            }
            lower[i] = mul_bf16x2(lower[i], by);
            upper[i] = mul_bf16x2(upper[i], by8);
        }
    }
    for (int s = 0; s < 2; s++) {
        a[4 * s] = lower[2 * s], a[4 * s + 1] = upper[2 * s];
        a[4 * s + 2] = lower[2 * s + 1], a[4 * s + 3] = upper[2 * s + 1];
    }
}

#endif
