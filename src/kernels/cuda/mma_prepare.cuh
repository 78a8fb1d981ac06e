/* Activations for wide products, in pieces as wide as memory likes them: mma_order.cuh says where values
 * go, which is four bytes here and four there for a thread that has neighbours.
 *
 * A warp has a group of K of eight rows; lane 4 r + t has run t of row r. A quantiser's block is one run
 * or several, those of neighbours. A chunk of eight values is a word in each of four units of [8 rows]
 * [t][4 bytes]: the lanes of a row exchange them, so that each writes 16 bytes of a unit, and a warp four
 * units of 128.
 */
#ifndef DI_KERNELS_CUDA_MMA_PREPARE_CUH
#define DI_KERNELS_CUDA_MMA_PREPARE_CUH

#include "kernels/cuda/mma_order.cuh"

static constexpr int WIDE_PREPARE_WARPS = 4; /* of a block: a group each */

/* The grid: groups of K, and rows / 8 of all groups of rows. */
template <di_dtype W> static inline dim3 mma_wide_grid(int32_t padded, int64_t octets) {
    return cuda_row_grid(cuda_blocks(padded / mma_format<W>::GROUP, WIDE_PREPARE_WARPS), octets);
}

/* word[i] of lane t becomes word[t] of the i-th of four lanes. */
static __device__ __forceinline__ void transpose_words(uint32_t (&word)[4], int t) {
    bool odd = t % 2 != 0, high = t / 2 != 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) { /* with the neighbour: its even words for my odd ones */
        uint32_t other = __shfl_xor_sync(ALL_LANES, odd ? word[i] : word[i + 1], 1);
        (odd ? word[i] : word[i + 1]) = other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, high ? word[i] : word[i + 2], 2);
        (high ? word[i] : word[i + 2]) = other;
    }
}

/* A run from value k on, of one block of the quantiser. */
template <int RUN>
static __device__ __forceinline__ void load_codes(const mma_input &in, int64_t row, int32_t k,
                                                  float (&v)[RUN]) {
    const uint8_t *codes = in.codes.codes + row * in.k + k;
    float scale = di_e8m0_decode(in.codes.scales[row * (in.k / 32) + k / 32]);
    uint32_t words[RUN / 4];
    static_assert(RUN <= 32 && 32 % RUN == 0 && RUN % 16 == 0, "a scale, and whole loads");
#pragma unroll
    for (int i = 0; i < RUN / 16; i++) {
        uint4 w = reinterpret_cast<const uint4 *>(codes)[i];
        words[4 * i] = w.x, words[4 * i + 1] = w.y, words[4 * i + 2] = w.z, words[4 * i + 3] = w.w;
    }
    decode_e4m3<RUN / 4>(words, scale, v);
}

/* Group `part` of K of eight rows, whose octet is number `octet` of in.out. row, group: of in.x, this
 * lane's; row < 0: there is none. Whole warps call. */
template <di_dtype W>
static __device__ __forceinline__ void
mma_prepare_group(const mma_input &in, int64_t row, int32_t group, int32_t part, int64_t octet) {
    constexpr int GROUP = mma_format<W>::GROUP, CHUNK = mma_format<W>::CHUNK_K, RUN = GROUP / 4;
    int t = lane_id() % 4;
    float v[RUN] = {};
    if (mma_reads_kept(W) && in.codes.codes != NULL) {
        if constexpr (mma_reads_kept(W))
            if (row >= 0) load_codes(in, row, part * GROUP + t * RUN, v);
    } else {
#pragma unroll
        for (int c = 0; c < RUN; c += 8)
            if (row >= 0) mma_load_chunk(in, row, group, part * GROUP + t * RUN + c, v + c);
        if (in.quantize) quantise_run(v);
    }
    int32_t step = part * GROUP % CHUNK / 16;
    uint8_t *at = in.out + (part * GROUP / CHUNK * in.order.octets + octet) * (CHUNK * 16) +
                  step * 256 + t * 128 + lane_id() / 4 * 16;
#pragma unroll
    for (int c = 0; c < RUN; c += 8) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = W == DI_FP4_PAIR ? pack_bf16(v[c + i], v[c + i + 4])
                                       : pack_bf16(v[c + 2 * i], v[c + 2 * i + 1]);
        transpose_words(word, t);
        *reinterpret_cast<uint4 *>(at + c * 64) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

#endif
