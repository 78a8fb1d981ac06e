/* Stored weights as the matrix units read them: packed when they are bound (cuda_pack.cu), decoded to
 * bf16 in registers.
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
 * Packed. A strip is 16 rows of a matrix (of each group of its rows, where it has groups), a block 8
 * strips; rows and K are padded with zeros to whole blocks and to a multiple of MMA_K. A block lies in
 * one piece: for every CHUNK_K values of K its strips' chunks one behind the other, each
 *
 *   [group][rows g, rows g + 8][lane 4 g + t][run of 16 bytes], then the chunk's scales:
 *   FP4   [rows g, rows g + 8][lane] E8M0, of the lane's run
 *   FP8   [rows 0 to 7, rows 8 to 15][block of 32 values] E8M0, and 8 bytes of nothing
 *
 * so that copies are of whole chunks, of one strip or several, and nothing is odd.
 *
 * In the words of a run bits stand where they cost least to become bf16. A code's exponent and
 * fraction go where bf16 has the low end of its exponent and the top of its fraction: the value is
 * then right but for a power of two, codes below the normal ones included. One bf16 multiplication
 * by the scale and that power is exact: all values have at most four bits. Where the power has no
 * bf16 (scales above 2^7 of FP8, 2^1 of FP4, and NaN) it takes two multiplications. What is smaller
 * than bf16's 2^-133 (codes of FP8 under scales below 2^-124) is rounded to a multiple of it.
 */
#ifndef DI_KERNELS_CUDA_MMA_WEIGHTS_CUH
#define DI_KERNELS_CUDA_MMA_WEIGHTS_CUH

#include "kernels/cuda/instructions.cuh"

static constexpr int MMA_RUN_BYTES = 16;
/* K is padded to this, and its parts are multiples of it: a whole number of groups of any format. */
static constexpr int MMA_K = 128;
static constexpr int MMA_STRIP = 16, MMA_BLOCK = 128; /* rows */

template <di_dtype W> struct mma_format;
template <> struct mma_format<DI_FP4_PAIR> {
    static constexpr int GROUP = 128, CHUNK_K = 128;
    static constexpr bool SCALES = true;
    static constexpr uint32_t SHIFT = 126; /* codes in place are 2^SHIFT too small */
    static constexpr uint32_t RUNS = 1024, CHUNK = RUNS + 64; /* bytes */
};
template <> struct mma_format<DI_F8_E4M3> {
    static constexpr int GROUP = 64, CHUNK_K = 128;
    static constexpr bool SCALES = true;
    static constexpr uint32_t SHIFT = 120;
    static constexpr uint32_t RUNS = 2048, CHUNK = RUNS + 16;
};
template <> struct mma_format<DI_BF16> {
    static constexpr int GROUP = 32, CHUNK_K = 64;
    static constexpr bool SCALES = false;
    static constexpr uint32_t SHIFT = 0;
    static constexpr uint32_t RUNS = 2048, CHUNK = RUNS;
};

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

/* Of a packed matrix, or of each group of its rows. */
static inline __host__ __device__ int32_t mma_blocks(int32_t rows) {
    return (rows + MMA_BLOCK - 1) / MMA_BLOCK;
}
template <di_dtype W> static inline __host__ __device__ uint64_t mma_block_bytes(int32_t k) {
    return static_cast<uint64_t>(mma_padded(k) / mma_format<W>::CHUNK_K) * MMA_BLOCK / MMA_STRIP *
           mma_format<W>::CHUNK;
}
static inline uint64_t mma_block_bytes(di_dtype dtype, int32_t k) {
    return dtype == DI_FP4_PAIR  ? mma_block_bytes<DI_FP4_PAIR>(k)
           : dtype == DI_F8_E4M3 ? mma_block_bytes<DI_F8_E4M3>(k)
                                 : mma_block_bytes<DI_BF16>(k);
}

static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* ---- Words of runs ---- */

/* FP4: a word has eight codes, c0 to c7. Registers of bf16 have c0 and c4, c1 and c5, c2 and c6, c3
 * and c7. The first finds sign and magnitude at 15 and 8 to 6 of its halves, the next two 3 and 6
 * bits lower; the last where there is room: a product with three powers of two, its halves laid over
 * each other, moves 14, 13 to 7, 6, 10 to 8 and 11 to 15, from one half to the other but for the
 * sign. */
static constexpr uint32_t FP4_PLACES = 0x81C081C0u, FP4_LAST = 0x6C006C00u,
                          FP4_MOVE = 1u << 9 | 1u << 14 | 1u << 4;
static __host__ __device__ inline uint32_t mma_pack_fp4(const uint32_t (&code)[8]) {
    uint32_t word = 0;
    for (int i = 0; i < 3; i++)
        for (int half = 0; half < 2; half++) {
            uint32_t c = code[i + 4 * half];
            word |= ((c & 8) << 12 | (c & 7) << 6) << 16 * half >> 3 * i;
        }
    for (int half = 0; half < 2; half++) {
        uint32_t c = code[3 + 4 * half], other = 16u * (1 - half);
        word |= ((c & 3) << 13 | (c & 4) << 8) << other;
        word |= (c & 8) << 8 << 16 * half;
    }
    return word;
}
/* FP8: c0 and c1 where bf16 has them, at 15 and 10 to 4; of c2 and c3 sign and low bits 4 lower
 * than they belong (11 and 3 to 0), the rest 4 higher (14 to 12), so that two shifts bring all. */
static constexpr uint32_t FP8_PLACES = 0x87F087F0u, FP8_LOW = 0x80F080F0u, FP8_HIGH = 0x07000700u;
static __host__ __device__ inline uint32_t mma_pack_fp8(const uint32_t (&code)[4]) {
    uint32_t word = 0;
    for (int half = 0; half < 2; half++) {
        uint32_t c = code[half], d = code[2 + half];
        word |= ((c & 0x80) << 8 | (c & 0x7F) << 4) << 16 * half;
        word |= ((d & 0x80) << 4 | (d & 0x70) << 8 | (d & 0x0F)) << 16 * half;
    }
    return word;
}

/* Cells 2 u and 2 u + 1 of a run, two registers each: from 32 bits of FP4, 64 of FP8, 128 of BF16. */
template <di_dtype W>
static __device__ __forceinline__ void mma_cells(const uint4 &run, int u, uint32_t (&out)[4]);

template <>
__device__ __forceinline__ void mma_cells<DI_BF16>(const uint4 &run, int, uint32_t (&out)[4]) {
    out[0] = run.x, out[1] = run.y, out[2] = run.z, out[3] = run.w;
}
template <>
__device__ __forceinline__ void mma_cells<DI_F8_E4M3>(const uint4 &run, int u, uint32_t (&out)[4]) {
    uint32_t words[2] = {u == 0 ? run.x : run.z, u == 0 ? run.y : run.w};
    for (int i = 0; i < 2; i++) {
        uint32_t w = words[i];
        out[2 * i] = w & FP8_PLACES;
        out[2 * i + 1] = (w << 4 & FP8_LOW) | (w >> 4 & FP8_HIGH);
    }
}
template <>
__device__ __forceinline__ void mma_cells<DI_FP4_PAIR>(const uint4 &run, int u,
                                                       uint32_t (&out)[4]) {
    uint32_t w = u == 0 ? run.x : u == 1 ? run.y : u == 2 ? run.z : run.w;
    out[0] = w & FP4_PLACES;
    out[1] = w * 8u & FP4_PLACES;
    out[2] = w * 64u & FP4_PLACES;
    uint64_t moved = static_cast<uint64_t>(w & FP4_LAST) * FP4_MOVE;
    out[3] = (static_cast<uint32_t>(moved) | static_cast<uint32_t>(moved >> 32)) & FP4_PLACES;
}

/* ---- Scales ---- */

/* Whether a scale's power has no bf16. */
static __host__ __device__ inline bool mma_far(di_dtype dtype, uint32_t scale) {
    return scale + (dtype == DI_FP4_PAIR ? mma_format<DI_FP4_PAIR>::SHIFT
                                         : mma_format<DI_F8_E4M3>::SHIFT) >
           254;
}
/* What cells are multiplied by, in both halves; FAR: after a multiplication by 2^SHIFT. */
template <di_dtype W, bool FAR>
static __device__ __forceinline__ uint32_t mma_multiplier(uint32_t scale) {
    if (!FAR) return scale * 0x00800080u + mma_format<W>::SHIFT * 0x00800080u;
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
    if constexpr (mma_format<W>::SCALES) {
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
