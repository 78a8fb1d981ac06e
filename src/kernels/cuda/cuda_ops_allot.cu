/* Which drafts are verified, and their rows (dspark.md 8). */
#include "kernels/cuda/device.cuh"

static constexpr int ALLOT_WARPS = 32, ALLOT_THREADS = ALLOT_WARPS * WARP;
static constexpr int ALLOT_BINS = ALLOT_THREADS; /* digits of ten bits */

static __device__ int32_t draft_of(const di_allot_args &args, const di_block &block, int32_t k) {
    return cuda_at<const int32_t>(
        args.drafts)[static_cast<int64_t>(k) * args.n_columns + block.column];
}

/* How many drafts a block may have. */
static __device__ int32_t limit_of(const di_allot_args &args, const di_block &block) {
    int32_t limit = block.most < args.block ? block.most : args.block;
    return args.n_drafts == 0 || limit < 0 ? 0 : limit;
}

/* di_allot_confidence of draft k. */
static __device__ double confidence_of(const di_allot_args &args, const di_block &block,
                                       int32_t k) {
    double logit = static_cast<double>(cuda_at<const float>(
        args.confidence)[static_cast<int64_t>(k) * args.n_columns + block.column]);
    float temperature = cuda_at<const float>(args.temperatures)[block.law * args.block + k];
    if (k > 0 && draft_of(args, block, k - 1) < 0) logit = NAN;
    double x = logit / static_cast<double>(temperature);
    return isnan(x) ? 0 : 1 / (1 + exp(-x));
}

/* Of LOGIT_THREADS threads: the sum of `mine` over this one and those before it; *all: of all. */
static __device__ uint32_t sum_before(uint32_t mine, uint32_t *all) {
    __shared__ uint32_t part[ALLOT_WARPS];
    uint32_t sum = mine;
    int lane = lane_id();
    for (int apart = 1; apart < WARP; apart *= 2) {
        uint32_t other = __shfl_up_sync(ALL_LANES, sum, apart);
        if (lane >= apart) sum += other;
    }
    __syncthreads(); /* an earlier call may still read */
    if (lane == WARP - 1) part[warp_id()] = sum;
    __syncthreads();
    uint32_t warps = part[lane];
    *all = warp_sum(warps);
    return sum + warp_sum(lane < warp_id() ? warps : 0u);
}

/* ---- Survivals ---- */

/* [n_blocks][block] to `survival`, as bits: they are from 0 to 1, and in the order of their values.
 * Confidences first, a thread each, then their products along a block. */
static __device__ void find_survivals(const di_allot_args &args, uint64_t *survival) {
    const di_block *blocks = cuda_at<const di_block>(args.blocks);
    int32_t thread = static_cast<int32_t>(threadIdx.x);
    for (int64_t i = thread; i < static_cast<int64_t>(args.n_blocks) * args.block;
         i += ALLOT_THREADS) {
        di_block block = blocks[i / args.block];
        int32_t k = static_cast<int32_t>(i % args.block);
        if (k < limit_of(args, block))
            survival[i] =
                static_cast<uint64_t>(__double_as_longlong(confidence_of(args, block, k)));
    }
    __syncthreads();
    for (int32_t b = thread; b < args.n_blocks; b += ALLOT_THREADS) {
        uint64_t *row = survival + static_cast<int64_t>(b) * args.block;
        double a = 1;
        for (int32_t k = 0; k < limit_of(args, blocks[b]); k++) {
            a *= __longlong_as_double(static_cast<long long>(row[k]));
            a = a > 0 ? fmin(a, 1.0) : 0;
            row[k] = static_cast<uint64_t>(__double_as_longlong(a));
        }
    }
    __syncthreads();
}

/* ---- The n_drafts largest ---- */

/* Those taken: survival >> shift above `found`; of those equal to it, the ones whose number k *
 * n_blocks + b is at most `last`. */
typedef struct threshold {
    uint64_t found;
    int shift;
    int64_t last;
} threshold;

static __device__ __forceinline__ int64_t tie_of(const di_allot_args &args, int32_t b, int32_t k) {
    return static_cast<int64_t>(k) * args.n_blocks + b;
}
static __device__ __forceinline__ bool taken(const threshold &limit, uint64_t survival,
                                             int64_t tie) {
    uint64_t top = survival >> limit.shift;
    return top > limit.found || (top == limit.found && tie <= limit.last);
}

/* From the first bin on: the one that holds number `missing`, which loses those before it. Returns
 * its size. */
static __device__ uint32_t find_bin(const uint32_t *bins, uint32_t *missing, uint32_t *bin) {
    __shared__ uint32_t of_all[3];
    uint32_t mine = bins[threadIdx.x], all, sum = sum_before(mine, &all);
    if (sum >= *missing && sum - mine < *missing)
        of_all[0] = threadIdx.x, of_all[1] = sum - mine, of_all[2] = mine;
    __syncthreads();
    *bin = of_all[0];
    *missing -= of_all[1];
    return of_all[2];
}

static constexpr int TIE_BITS = 30; /* n_blocks below 2^24, 64 drafts each */

/* Digit by digit of the survival, from its exponent on, then of the number; done as soon as a bin is
 * taken whole. There are more than n_drafts > 0. */
static __device__ threshold find_threshold(const di_allot_args &args, const uint64_t *survival) {
    __shared__ uint32_t bins[ALLOT_BINS];
    const di_block *blocks = cuda_at<const di_block>(args.blocks);
    threshold limit = {0, 62, INT64_MAX};
    uint32_t missing = static_cast<uint32_t>(args.n_drafts), bin;
    int tie_shift = TIE_BITS;
    while (limit.shift > 0 || tie_shift > 0) {
        bool ties = limit.shift == 0;
        int width = ties || limit.shift > 2 ? 10 : 2;
        bins[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < static_cast<int64_t>(args.n_blocks) * args.block;
             i += ALLOT_THREADS) {
            int32_t b = static_cast<int32_t>(i / args.block),
                    k = static_cast<int32_t>(i % args.block);
            if (k >= limit_of(args, blocks[b]) || survival[i] >> limit.shift != limit.found)
                continue;
            int64_t tie = tie_of(args, b, k);
            uint32_t mask = (1u << width) - 1;
            if (!ties)
                atomicAdd(&bins[mask - (survival[i] >> (limit.shift - width) & mask)], 1u);
            else if (tie_shift == TIE_BITS || tie >> tie_shift == limit.last)
                atomicAdd(&bins[tie >> (tie_shift - width) & mask], 1u);
        }
        __syncthreads();
        uint32_t inside = find_bin(bins, &missing, &bin);
        if (ties) {
            limit.last = (tie_shift == TIE_BITS ? 0 : limit.last << width) | bin;
            tie_shift -= width;
        } else {
            limit.shift -= width;
            limit.found = limit.found << width | (((1u << width) - 1) - bin);
            if (inside == missing) return limit;
        }
    }
    return limit;
}

/* ---- Rows ---- */

static __device__ void write_rows(const di_allot_args &args, int32_t b, int32_t begin,
                                  int32_t length) {
    di_block block = cuda_at<const di_block>(args.blocks)[b];
    for (int32_t k = 0; k <= length; k++) {
        int32_t row = begin + k;
        int32_t token = k == 0 ? cuda_at<const int32_t>(args.next_token)[block.slot]
                               : draft_of(args, block, k - 1);
        if (k > 0 && token < 0) token = 0;
        cuda_at<di_row>(args.rows)[row] = di_row{token, block.slot, k};
        cuda_at<int32_t>(args.which)[row] = row;
        cuda_at<int32_t>(args.slot)[row] = block.slot;
        cuda_at<int32_t>(args.param_of)[row] = b;
        cuda_at<int32_t>(args.extra_at)[row] = begin + 1;
        cuda_at<int32_t>(args.n_extra)[row] = k;
    }
    cuda_at<int32_t>(args.n_rows)[b] = 1 + length;
}

/* One block for all. */
static __global__ __launch_bounds__(ALLOT_THREADS) void allot_kernel(di_allot_args args,
                                                                     uint64_t *survival) {
    const di_block *blocks = cuda_at<const di_block>(args.blocks);
    int32_t n = args.n_blocks, thread = static_cast<int32_t>(threadIdx.x);
    uint32_t possible = 0, all;
    for (int32_t b = thread; b < n; b += ALLOT_THREADS)
        possible += static_cast<uint32_t>(limit_of(args, blocks[b]));
    sum_before(possible, &all);
    bool choose = static_cast<uint32_t>(args.n_drafts) < all;
    threshold limit = {0, 0, INT64_MAX}; /* everything */
    if (choose) {
        find_survivals(args, survival);
        limit = find_threshold(args, survival);
    }
    uint32_t before = 0;
    for (int32_t first = 0; first < n; first += ALLOT_THREADS) {
        int32_t b = first + thread, length = 0;
        if (b < n) {
            const uint64_t *row = survival + static_cast<int64_t>(b) * args.block;
            int32_t most = limit_of(args, blocks[b]);
            while (length < most && (!choose || taken(limit, row[length], tie_of(args, b, length))))
                length++;
        }
        uint32_t rows = b < n ? static_cast<uint32_t>(1 + length) : 0, sum = sum_before(rows, &all);
        if (b < n) write_rows(args, b, static_cast<int32_t>(before + sum - rows), length);
        before += all;
    }
}

void cuda_op_allot(di_stream *s, const di_allot_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->block <= DI_OPS_MAX_BLOCK && args->n_blocks < 1 << 24);
    uint64_t n = static_cast<uint64_t>(args->n_blocks) * static_cast<uint64_t>(args->block);
    uint64_t *survival = cuda_take<uint64_t>(s, n);
    uint32_t any = args->n_blocks > 0;
    cuda_launch(s, "allot", any, ALLOT_THREADS, 0, allot_kernel, *args, survival);
}
