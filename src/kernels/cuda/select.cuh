/* The best entries of a row by a block of SELECT_THREADS threads: the k largest, ties to the lower
 * index, written in increasing index.
 *
 * Nothing is sorted: the key of the last one is found byte by byte with counts, then the row is gone
 * through once in order.
 */
#ifndef DI_KERNELS_CUDA_SELECT_CUH
#define DI_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/device.cuh"

static constexpr int SELECT_WARPS = 16, SELECT_THREADS = SELECT_WARPS * WARP;

/* Larger for larger scores, equal for equal ones (also -0 and 0); 0 for -inf and NaN, which are
 * never taken. */
static __device__ __forceinline__ uint32_t score_key(float x) {
    if (isnan(x) || x == -INFINITY) return 0;
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* How many of the flags of the threads before this one are set; *all: of all threads. */
static __device__ __forceinline__ int32_t flags_before(bool flag, int32_t *all) {
    __shared__ int32_t counts[SELECT_WARPS];
    uint32_t lanes = __ballot_sync(ALL_LANES, flag);
    __syncthreads();
    if (lane_id() == 0) counts[warp_id()] = __popc(lanes);
    __syncthreads();
    int32_t before = __popc(lanes & ((1u << lane_id()) - 1)), total = 0;
    for (int i = 0; i < SELECT_WARPS; i++) {
        if (i < warp_id()) before += counts[i];
        total += counts[i];
    }
    *all = total;
    return before;
}

/* The key of the k-th best of keys[0 .. n), and how many of that key are taken; all threads get
 * both. Fewer than k: key 0. */
static __device__ uint32_t last_key(const uint32_t *keys, int32_t n, int32_t k, int32_t *taken) {
    __shared__ int32_t counts[256], missing;
    __shared__ uint32_t found;
    if (threadIdx.x == 0) found = 0, missing = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = static_cast<int>(threadIdx.x); i < 256; i += SELECT_THREADS) counts[i] = 0;
        __syncthreads();
        uint32_t start = found;
        for (int32_t j = static_cast<int32_t>(threadIdx.x); j < n; j += SELECT_THREADS) {
            uint32_t key = keys[j];
            bool same = shift == 24 || key >> (shift + 8) == start >> (shift + 8);
            if (key != 0 && same) atomicAdd(&counts[key >> shift & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int32_t digit = 255;
            for (; digit >= 0 && counts[digit] < missing; digit--) missing -= counts[digit];
            if (digit < 0) missing = 0; /* at the first byte or never */
            if (digit > 0) found |= static_cast<uint32_t>(digit) << shift;
        }
        __syncthreads();
        if (missing == 0) break;
    }
    *taken = missing;
    return missing == 0 ? 0 : found;
}

/* keys [n], each written by the thread that has index j here: j % SELECT_THREADS. out [k], filled
 * up with -1. */
static __device__ void write_best(const uint32_t *keys, int32_t n, int32_t k, int32_t *out) {
    int32_t of_last, seen = 0, written = 0;
    if (k == 0) return; /* there is no key of the k-th: last_key would say that there are fewer */
    uint32_t last = last_key(keys, n, k, &of_last);
    for (int32_t begin = 0; begin < n; begin += SELECT_THREADS) {
        int32_t j = begin + static_cast<int32_t>(threadIdx.x), equal, kept;
        uint32_t key = j < n ? keys[j] : 0;
        bool is_last = key != 0 && key == last;
        int32_t place = seen + flags_before(is_last, &equal);
        bool keep = key > last || (is_last && place < of_last);
        int32_t at = written + flags_before(keep, &kept);
        if (keep) out[at] = j;
        seen += equal;
        written += kept;
    }
    for (int32_t i = written + static_cast<int32_t>(threadIdx.x); i < k; i += SELECT_THREADS)
        out[i] = -1;
    __syncthreads(); /* before the keys, or what last_key shares, are used again */
}

#endif
