/* Products of many columns: bound by the matrix units.
 *
 * A block of two warpgroups takes a tile of 128 weight rows (64 of each side where there are two)
 * and up to N columns. Stored weights and activations come through a ring of stages in shared
 * memory; weights are decoded in registers, once for all columns, and are the left operand of wgmma
 * m64nNk16 from there, activations the right one from shared memory. While one half of a stage is
 * multiplied the next is decoded. Blocks stay, and the ring runs on from tile to tile.
 *
 * Sums are those of mma_narrow.cuh bit by bit: the same 16 values of K in every instruction, the
 * same parts of K from 0, added in their order. That wgmma adds as mma.sync does is a property of
 * the hardware, measured by bench/bench_mma_bits.cu; where there is no wgmma, mma.sync is used here
 * too.
 *
 * Matrices of few tiles are spread further: a cluster of blocks takes a tile, each block one part of
 * K, and they join their sums through each other's shared memory.
 */
#ifndef DI_KERNELS_CUDA_MMA_WIDE_CUH
#define DI_KERNELS_CUDA_MMA_WIDE_CUH

#include "kernels/cuda/mma_group.cuh"
#include "kernels/cuda/mma_jobs.cuh"

/* 16 bytes of which `valid` exist (zeros for the others; none may be there), by a copy that runs on
 * where the address allows it. */
static __device__ __forceinline__ void copy_run(void *shared, const uint8_t *from, int32_t valid,
                                                bool aligned) {
    if (aligned) {
        copy_16(shared, from, valid < 0 ? 0u : valid > 16 ? 16u : static_cast<uint32_t>(valid));
        return;
    }
    uint8_t *to = static_cast<uint8_t *>(shared);
#pragma unroll 1 /* rare: registers count for more than time */
    for (int i = 0; i < 16; i++) to[i] = i < valid ? from[i] : 0;
}
/* The aligned word around a byte. */
static __device__ __forceinline__ void copy_word(void *shared, const uint8_t *byte) {
    copy_4(shared,
           reinterpret_cast<const void *>(reinterpret_cast<uintptr_t>(byte) & ~UINT64_C(3)));
}

static constexpr int WIDE_THREADS = 256, WIDE_HEIGHT = 128;
static constexpr int WIDE_SHARED = 220 * 1024; /* of the 227 KiB that a block may have */

template <typename Job, int N, bool SPLIT> struct mma_wide {
    static constexpr di_dtype W = Job::FORMAT;
    /* Groups of a stage. Narrower tiles have less to do in one, so they take more where the parts of
     * K allow it. */
    static constexpr int GROUPS = W == DI_BF16 || (W == DI_F8_E4M3 && N < 128) ? 2 : 1;
    static constexpr int GROUP = mma_format<W>::GROUP, K = GROUP * GROUPS; /* values of a stage */
    static constexpr int HEIGHT = WIDE_HEIGHT / Job::SIDES;
    static constexpr int OCTETS = N / 8, SUMS = N / 2;
    static constexpr int COPIED = (OCTETS + 7) / 8; /* octets of columns that a warp copies */
    static_assert(MMA_K % K == 0, "parts of K are whole stages");

    /* A stage: stored weights [group][row][64 bytes]; scales [group][thread][row g, g + 8] as words;
     * activations [step][octet][half][column][16 bytes]. Behind the ring sums of PASS columns. */
    static constexpr int WEIGHTS = WIDE_HEIGHT * MMA_GROUP_BYTES * GROUPS;
    static constexpr int SCALES = mma_format<W>::SCALES ? WIDE_THREADS * 8 * GROUPS : 0;
    static constexpr int STAGE = WEIGHTS + SCALES + K * N * 2;
    static constexpr int PASS = 64, PITCH = WIDE_HEIGHT + 4;
    static constexpr int JOINT = PASS * PITCH * static_cast<int>(sizeof(float));
    static constexpr int DEPTH = (WIDE_SHARED - JOINT) / STAGE;
    static constexpr size_t BYTES = DEPTH * STAGE + JOINT;
    static_assert(DEPTH >= 4, "two stages are read while others come");

    /* Where the copies stand: a stage of a tile, and what this thread copies of it. */
    struct cursor {
        int32_t item, stage;
        const uint8_t *runs[2];   /* of rows i and i + 64, stage 0 */
        const uint8_t *scales[2]; /* of rows own_row() and 8 further, block 0 */
        const uint8_t *x[COPIED]; /* of columns, stage 0; NULL where there is none */
        int32_t columns;          /* that are multiplied */
    };

    /* Tiles that are not full are multiplied by narrower instructions. */
    static __device__ int32_t multiplied(int32_t columns) {
        return columns <= 32 ? 32 : columns <= 64 ? 64 : N;
    }

    const Job &job;
    uint8_t *ring;
    float *joint;
    int32_t n_items, step, first_stage, end_stage; /* step: from item to item */
    int32_t t, own_row; /* own_row and 8 further: of this thread's sums */

    __device__ mma_wide(const Job &j, uint8_t *shared) : job(j), ring(shared) {
        joint = reinterpret_cast<float *>(shared + DEPTH * STAGE);
        n_items = j.count(HEIGHT, N);
        first_stage = 0, end_stage = (j.rows.k + K - 1) / K, step = static_cast<int32_t>(gridDim.x);
        if (SPLIT) {
            int32_t part = static_cast<int32_t>(blockIdx.y), each = part_stages();
            first_stage = part * each;
            if (first_stage + each < end_stage) end_stage = first_stage + each;
        }
        t = lane_id() % 4, own_row = warp_id() * 16 + lane_id() / 4;
    }
    __device__ int32_t part_stages() const { return mma_part_length(job.rows.k) / K; }

    /* For row i of the tile's 128. */
    static __device__ const uint8_t *of_side(const uint8_t *const (&sides)[2], int32_t i) {
        return i < HEIGHT ? sides[0] : sides[1];
    }
    /* Row i of the tile's 128, as it lies in its matrix. */
    __device__ int32_t weight_row(const mma_tile &at, int32_t i) const {
        int32_t row = at.row + i % HEIGHT;
        return row < at.end ? row : at.end - 1;
    }
    __device__ const uint8_t *scales_of(const mma_tile &at, int32_t i) const {
        return mma_scale_at<W>(job.rows, of_side(at.scale, i), weight_row(at, i), 0);
    }
    /* The block of 32 that this lane's run of a group has its scale from. */
    __device__ int32_t block_of(int32_t group) const { /* of all of K */
        int32_t last = (job.rows.k + 31) / 32 - 1, block = (group * GROUP + t * (GROUP / 4)) / 32;
        return block < last ? block : last;
    }

    __device__ void begin_tile(cursor &c) const {
        if (c.item >= n_items) return;
        mma_tile at = job.tile(c.item, HEIGHT, N);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t row = static_cast<int32_t>(threadIdx.x) / 4 + 64 * i;
            c.runs[i] = of_side(at.data, row) + weight_row(at, row) * job.rows.data_stride +
                        threadIdx.x % 4 * MMA_RUN_BYTES;
            if (mma_format<W>::SCALES) c.scales[i] = scales_of(at, own_row + 8 * i);
        }
        c.columns = multiplied(at.columns);
#pragma unroll
        for (int i = 0; i < COPIED; i++) {
            int32_t column = 8 * (warp_id() + 8 * i) + lane_id() % 8;
            c.x[i] = NULL;
            if (column < at.columns)
                c.x[i] =
                    job.x + job.x_row(at, column) * mma_padded(job.rows.k) * 2 + lane_id() / 8 * 16;
        }
    }

    __device__ void issue_weights(const cursor &c, uint8_t *to) const {
        bool aligned = job.rows.aligned && reinterpret_cast<uintptr_t>(c.runs[0]) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(c.runs[1]) % 16 == 0;
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) { /* rows of the first group, of the second */
            int64_t from = (static_cast<int64_t>(c.stage) * GROUPS + i / 2) * MMA_GROUP_BYTES;
            int64_t valid = job.rows.data_stride - from - threadIdx.x % 4 * MMA_RUN_BYTES;
            copy_run(to + (threadIdx.x + i * WIDE_THREADS) * 16,
                     c.runs[i % 2] + (valid > 0 ? from : 0), static_cast<int32_t>(valid), aligned);
        }
        if (mma_format<W>::SCALES)
#pragma unroll
            for (int i = 0; i < 2 * GROUPS; i++)
                copy_word(to + WEIGHTS + (i / 2 * WIDE_THREADS + threadIdx.x) * 8 + i % 2 * 4,
                          c.scales[i % 2] + block_of(c.stage * GROUPS + i / 2));
    }
    __device__ void issue_columns(const cursor &c, uint8_t *to) const {
#pragma unroll
        for (int i = 0; i < COPIED; i++) {
            int32_t octet = warp_id() + 8 * i;
            if (octet >= OCTETS || 8 * octet >= c.columns) break;
            const uint8_t *from = job.x;
            if (c.x[i] != NULL) from = c.x[i] + static_cast<int64_t>(c.stage) * K * 2;
            uint8_t *at = to + (lane_id() / 16 * OCTETS + octet) * 256 + lane_id() % 16 / 8 * 128 +
                          lane_id() % 8 * 16;
#pragma unroll
            for (int s = 0; s < K / 16; s += 2) /* a lane a column and one of four halves */
                copy_run(at + s * OCTETS * 256, from + s * 32, c.x[i] != NULL ? 16 : 0, true);
        }
    }
    __device__ void issue(cursor &c, int slot) const {
        if (c.item < n_items) {
            uint8_t *to = ring + slot * STAGE;
            issue_weights(c, to);
            issue_columns(c, to + WEIGHTS + SCALES);
            if (++c.stage == end_stage) {
                c.stage = first_stage, c.item += step;
                begin_tile(c);
            }
        }
        copies_commit();
    }

    /* Group i of a stage, in units of two steps, for M columns. */
    template <int M>
    __device__ void multiply_group(int32_t stage, const uint8_t *from, int i,
                                   const uint32_t (&low)[2], uint32_t (&a)[2][8],
                                   float (&sums)[M / 2]) const {
        const uint8_t *run = from + (i * WIDE_HEIGHT + own_row) * MMA_GROUP_BYTES + t * 16;
        const uint8_t *words = from + WEIGHTS + (i * WIDE_THREADS + threadIdx.x) * 8;
        const uint8_t *x = from + WEIGHTS + SCALES + i * (GROUP / 16) * OCTETS * 256;
        uint4 lower = {}, upper = {};
        if constexpr (W != DI_BF16) {
            lower = *reinterpret_cast<const uint4 *>(run);
            upper = *reinterpret_cast<const uint4 *>(run + 8 * MMA_GROUP_BYTES);
        }
        uint32_t by = 0, by8 = 0;
        bool far = false;
        if constexpr (mma_format<W>::SCALES > 0) {
            uint32_t block = static_cast<uint32_t>(block_of(stage * GROUPS + i));
            uint32_t scale = words[(low[0] + block) & 3],
                     scale8 = words[4 + ((low[1] + block) & 3)];
            far = __any_sync(ALL_LANES, mma_far<W>(scale) || mma_far<W>(scale8));
            by = mma_multiplier<W>(scale, far), by8 = mma_multiplier<W>(scale8, far);
        }
#pragma unroll
        for (int u = 0; u < GROUP / 32; u++) {
            uint32_t(&mine)[8] = a[(i * (GROUP / 32) + u) % 2];
            products_wait<1>(); /* the unit before the last one is done with its registers */
            if constexpr (W == DI_BF16) { /* stored values are operands as they are: not before */
                lower = *reinterpret_cast<const uint4 *>(run);
                upper = *reinterpret_cast<const uint4 *>(run + 8 * MMA_GROUP_BYTES);
            }
            if (far)
                mma_decode<W, true>(lower, upper, u, by, by8, mine);
            else
                mma_decode<W, false>(lower, upper, u, by, by8, mine);
            products_begin();
#pragma unroll
            for (int s = 0; s < 2; s++)
                group_mma<M>(sums, mine + 4 * s, x + (2 * u + s) * OCTETS * 256);
            products_commit();
        }
    }

    /* sums += products of stages begin .. end - 1. */
    template <int M>
    __device__ void multiply_part(int32_t begin, int32_t end, const uint32_t (&low)[2],
                                  cursor &next, int &slot, float (&sums)[M / 2]) const {
        uint32_t a[2][8] = {};
        for (int32_t stage = begin; stage < end; stage++) {
            copies_wait<DEPTH - 3>();
            if constexpr (MMA_WGMMA) shared_for_products();
            __syncthreads(); /* the stage is there; all are done with the one before the last */
            issue(next, slot >= 2 ? slot - 2 : slot + DEPTH - 2);
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                multiply_group<M>(stage, ring + slot * STAGE, i, low, a, sums);
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
        products_wait<0>();
        hold(sums);
    }

    /* The parts of K from 0 each, added in their order; the block's one part where it has one. */
    template <int M>
    __device__ void multiply_tile(const uint32_t (&low)[2], cursor &next, int &slot,
                                  float (&total)[SUMS]) const {
        float sums[M / 2] = {};
        if constexpr (SPLIT) {
            multiply_part<M>(first_stage, end_stage, low, next, slot, sums);
#pragma unroll
            for (int i = 0; i < M / 2; i++) total[i] = sums[i];
        } else {
            int32_t each = part_stages();
            for (int32_t begin = 0; begin < end_stage; begin += each) {
                int32_t end = begin + each < end_stage ? begin + each : end_stage;
#pragma unroll
                for (int i = 0; i < M / 2; i++) sums[i] = 0;
                multiply_part<M>(begin, end, low, next, slot, sums);
#pragma unroll
                for (int i = 0; i < M / 2; i++) /* not 0 + sums: a 0 keeps its sign */
                    total[i] = begin == 0 ? sums[i] : total[i] + sums[i];
            }
        }
    }

    /* joint[column][row] of PASS columns from `column` on. */
    __device__ void put_sums(const float (&total)[SUMS], int pass) const {
#pragma unroll
        for (int f = 0; f < SUMS; f++) {
            int column = f / 4 * 8 + f % 2, i = f % 4 / 2 * 8;
            if (column / PASS != pass) continue;
            joint[(column % PASS + 2 * t) * PITCH + own_row + i] = total[f];
        }
    }

    __device__ void store_sums(const mma_tile &at, int pass) const {
        if constexpr (Job::SIDES == 1) {
            for (int e = static_cast<int>(threadIdx.x); e < PASS * (WIDE_HEIGHT / 2);
                 e += WIDE_THREADS) {
                int column = e / (WIDE_HEIGHT / 2), row = e % (WIDE_HEIGHT / 2) * 2;
                const float *y = joint + column * PITCH + row;
                job.store2(at, row, pass * PASS + column, y[0], y[1]);
            }
        } else { /* a warp a column and 32 channels */
            for (int e = warp_id(); e < PASS * (HEIGHT / 32); e += WIDE_THREADS / WARP) {
                int column = e / (HEIGHT / 32), row = e % (HEIGHT / 32) * 32;
                const float *y = joint + column * PITCH + row + lane_id();
                job.finish(at, row, pass * PASS + column, y[0], y[HEIGHT]);
            }
        }
    }

    /* The cluster's blocks have a part each; every one joins and stores its share of the sums. */
    __device__ void store_joined(const mma_tile &at, int pass) const {
        int parts = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
        int share = (PASS * (WIDE_HEIGHT / 2) + parts - 1) / parts, end = (rank + 1) * share;
        if (end > PASS * (WIDE_HEIGHT / 2)) end = PASS * (WIDE_HEIGHT / 2);
        for (int e = rank * share + static_cast<int>(threadIdx.x); e < end; e += WIDE_THREADS) {
            int column = e / (WIDE_HEIGHT / 2), row = e % (WIDE_HEIGHT / 2) * 2;
            const float *y = joint + column * PITCH + row;
            float2 sum = cluster_read(y, 0);
            for (int p = 1; p < parts; p++) {
                float2 more = cluster_read(y, p);
                sum.x += more.x, sum.y += more.y;
            }
            job.store2(at, row, pass * PASS + column, sum.x, sum.y);
        }
    }

    __device__ void store_tile(const mma_tile &at, const float (&total)[SUMS]) const {
        for (int pass = 0; pass * PASS < at.columns; pass++) {
            put_sums(total, pass);
            if constexpr (SPLIT) {
                cluster_sync_aligned();
                store_joined(at, pass);
                cluster_sync_aligned();
            } else {
                __syncthreads();
                store_sums(at, pass);
                __syncthreads();
            }
        }
    }

    __device__ void run() {
        cursor next = {static_cast<int32_t>(blockIdx.x), first_stage, {}, {}};
        begin_tile(next);
#pragma unroll
        for (int i = 0; i < DEPTH - 2; i++) issue(next, i);
        int slot = 0;
        for (int32_t item = static_cast<int32_t>(blockIdx.x); item < n_items; item += step) {
            float total[SUMS] = {};
            uint32_t low[2] = {}; /* ends of the addresses of the rows' scales */
            int32_t columns = look_at(item, low);
            if (columns == 32)
                multiply_tile<32>(low, next, slot, total);
            else if (columns == 64)
                multiply_tile<64>(low, next, slot, total);
            else
                multiply_tile<N>(low, next, slot, total);
            asm volatile("" : "+r"(item)); /* look again: registers are short in between */
            store_tile(job.tile(item, HEIGHT, N), total);
        }
    }

    /* The columns to multiply of a tile. */
    __device__ int32_t look_at(int32_t item, uint32_t (&low)[2]) const {
        mma_tile at = job.tile(item, HEIGHT, N);
        if (mma_format<W>::SCALES)
#pragma unroll
            for (int i = 0; i < 2; i++)
                low[i] = static_cast<uint32_t>(
                    reinterpret_cast<uintptr_t>(scales_of(at, own_row + 8 * i)));
        return multiplied(at.columns);
    }
};

template <typename Job, int N, bool SPLIT>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) mma_wide_kernel(Job job) {
    extern __shared__ __align__(128) uint8_t mma_shared[];
    await_kernels_before();
    let_kernels_begin();
    mma_wide<Job, N, SPLIT> wide(job, mma_shared);
    wide.run();
}

#endif
