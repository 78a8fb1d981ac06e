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

static constexpr int WIDE_THREADS = 256, WIDE_HEIGHT = 128;
static constexpr int WIDE_SHARED =
    220 * 1024; /* of the 227 KiB that a processor's blocks may have */

/* What a thread copies of one stored row's run, of which not everything is there or aligned: zeros
 * for what is not. Not inlined, and given nothing by reference, so that it costs the others no
 * registers. Small models have such rows. */
static __device__ __noinline__ void copy_odd_run(uint32_t shared, const uint8_t *row, int32_t from,
                                                 int32_t end) {
    for (int i = from; i < from + MMA_RUN_BYTES; i++)
        store_shared_8(shared + static_cast<uint32_t>(i - from), i < end ? row[i] : 0);
}

template <typename Job, int N, bool SPLIT> struct mma_wide {
    static constexpr di_dtype W = Job::FORMAT;
    /* Up to 64 columns two blocks share a processor and hide each other's latency, where two rings
     * fit: stages are short there, and sums of parts are added up in shared memory. */
    static constexpr int BLOCKS = N <= 64 && W != DI_FP4_PAIR ? 2 : 1;
    static constexpr bool KEEPS = N <= 64;
    static constexpr int GROUPS = W == DI_BF16 && BLOCKS == 1 ? 2 : 1;     /* of a stage */
    static constexpr int GROUP = mma_format<W>::GROUP, K = GROUP * GROUPS; /* values of a stage */
    static constexpr int HEIGHT = WIDE_HEIGHT / Job::SIDES;
    static constexpr int OCTETS = N / 8, SUMS = N / 2;
    static constexpr int COPIED = (OCTETS + 7) / 8; /* octets of columns that a warp copies */
    static_assert(MMA_K % K == 0, "parts of K are whole stages");

    /* A stage: stored weights [group][row][64 bytes]; words with the scales [thread][row g, g + 8];
     * activations [step][octet][half][column][16 bytes]. Behind the ring sums of PASS columns. */
    static constexpr int WEIGHTS = WIDE_HEIGHT * MMA_GROUP_BYTES * GROUPS;
    static constexpr int SCALES = mma_format<W>::SCALES ? WIDE_THREADS * 8 : 0;
    static_assert(W != DI_FP4_PAIR || GROUPS == 1, "a stage has one word of scales");
    static constexpr int STAGE = WEIGHTS + SCALES + K * N * 2;
    static constexpr int PASS = N < 64 ? N : 64, PITCH = WIDE_HEIGHT + 4;
    static constexpr int JOINT = PASS * PITCH * static_cast<int>(sizeof(float));
    static constexpr int DEPTH = (WIDE_SHARED / BLOCKS - JOINT) / STAGE;
    static constexpr size_t BYTES = DEPTH * STAGE + JOINT;
    static_assert(DEPTH >= 4, "two stages are read while others come");

    /* Where the copies stand: a stage of a tile, and what this thread copies of it. */
    struct cursor {
        int32_t item, stage;
        const uint8_t *runs[2];   /* of rows i and i + 64 */
        const uint8_t *words[2];  /* with the scales of rows own_row and 8 further */
        const uint8_t *x[COPIED]; /* of columns; of the first where there is none */
        int32_t columns;          /* that are multiplied */
        bool whole, same; /* all is there and aligned; rows g and g + 8 share FP8's scales */
    };

    /* Tiles that are not full are multiplied by narrower instructions. */
    static __device__ int32_t multiplied(int32_t columns) {
        return N <= 32 || columns <= 32 ? 32 : N <= 64 || columns <= 64 ? 64 : N;
    }

    const Job &job;
    uint32_t ring;         /* a shared address */
    const uint8_t *stages; /* the same */
    float *joint;
    int32_t n_items, step, first_stage, end_stage; /* step: from item to item */
    int32_t t, own_row; /* own_row and 8 further: of this thread's sums */

    __device__ mma_wide(const Job &j, uint8_t *shared)
        : job(j), ring(shared_address(shared)), stages(shared) {
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
    /* The block of 32 that lane t's run of a group has its scale from. */
    __device__ int32_t block_of(int32_t group) const { /* of all of K */
        int32_t last = (job.rows.k + 31) / 32 - 1, block = (group * GROUP + t * (GROUP / 4)) / 32;
        return block < last ? block : last;
    }

    __device__ void begin_tile(cursor &c) const {
        if (c.item >= n_items) return;
        mma_tile at = job.tile(c.item, HEIGHT, N);
        int64_t stage = c.stage;
        c.whole = job.rows.aligned && job.rows.k % MMA_K == 0 && at.row + HEIGHT <= at.end;
        c.same = at.row % 16 == 0;
#pragma unroll
        for (int i = 0; i < Job::SIDES; i++)
            c.whole = c.whole && reinterpret_cast<uintptr_t>(at.data[i]) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(at.scale[i]) % 4 == 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t row = static_cast<int32_t>(threadIdx.x) / 4 + 64 * i;
            c.runs[i] = of_side(at.data, row) + weight_row(at, row) * job.rows.data_stride +
                        threadIdx.x % 4 * MMA_RUN_BYTES + stage * GROUPS * MMA_GROUP_BYTES;
            row = own_row + 8 * i;
            if (mma_format<W>::SCALES)
                c.words[i] =
                    mma_scale_at<W>(job.rows, of_side(at.scale, row), weight_row(at, row), 0) +
                    stage * K / MMA_K * 4;
        }
        c.columns = multiplied(at.columns);
#pragma unroll
        for (int i = 0; i < COPIED; i++) {
            int32_t column = 8 * (warp_id() + 8 * i) + lane_id() % 8;
            c.x[i] = job.x +
                     job.x_row(at, column < at.columns ? column : 0) * mma_padded(job.rows.k) * 2 +
                     lane_id() / 8 * 16 + stage * K * 2;
        }
    }

    __device__ void issue_weights(const cursor &c, uint32_t to) const {
        uint32_t run = to + threadIdx.x * 16, word = to + WEIGHTS + threadIdx.x * 8;
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) /* rows of the first group, of the second */
            copy_16(run + i * WIDE_THREADS * 16, c.runs[i % 2] + i / 2 * MMA_GROUP_BYTES);
        if (!mma_format<W>::SCALES) return;
        copy_4(word, c.words[0]);
        if (W != DI_F8_E4M3 || !c.same) copy_4(word + 4, c.words[1]);
    }
    /* The same where not all is there: clamped, scales in the bytes of their words where they are
     * looked for. */
    __device__ void issue_odd_weights(const cursor &c, uint32_t to) const {
        mma_tile at = job.tile(c.item, HEIGHT, N);
#pragma unroll 1
        for (int i = 0; i < 2 * GROUPS; i++) {
            int32_t row = static_cast<int32_t>(threadIdx.x) / 4 + i % 2 * 64;
            copy_odd_run(to + (threadIdx.x + i * WIDE_THREADS) * 16,
                         of_side(at.data, row) + weight_row(at, row) * job.rows.data_stride,
                         (c.stage * GROUPS + i / 2) * MMA_GROUP_BYTES +
                             static_cast<int32_t>(threadIdx.x) % 4 * MMA_RUN_BYTES,
                         static_cast<int32_t>(job.rows.data_stride));
        }
#pragma unroll 1
        for (int i = 0; i < 2 * GROUPS && mma_format<W>::SCALES; i++) {
            int32_t row = own_row + i % 2 * 8, group = c.stage * GROUPS + i / 2;
            store_shared_8(to + WEIGHTS + threadIdx.x * 8 + i % 2 * 4 + scale_byte(group),
                           *mma_scale_at<W>(job.rows, of_side(at.scale, row), weight_row(at, row),
                                            block_of(group)));
        }
    }
    /* Of a word of scales, which is that of 128 values of K. */
    __device__ uint32_t scale_byte(int32_t group) const {
        return static_cast<uint32_t>(GROUP == 128 ? t : group % 2 * 2 + t / 2);
    }

    __device__ void issue_columns(const cursor &c, uint32_t to) const {
#pragma unroll
        for (int i = 0; i < COPIED; i++) {
            uint32_t octet = static_cast<uint32_t>(warp_id() + 8 * i), lane = threadIdx.x % WARP;
            if (octet >= OCTETS || static_cast<int32_t>(8 * octet) >= c.columns) break;
            uint32_t at =
                to + (lane / 16 * OCTETS + octet) * 256 + lane % 16 / 8 * 128 + lane % 8 * 16;
#pragma unroll
            for (int s = 0; s < K / 16; s += 2) /* a lane a column and one of four halves */
                copy_16(at + s * OCTETS * 256, c.x[i] + s * 32);
        }
    }
    __device__ void advance(cursor &c) const {
        c.stage++;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            c.runs[i] += GROUPS * MMA_GROUP_BYTES;
            if (c.stage * K % MMA_K == 0) c.words[i] += 4;
        }
#pragma unroll
        for (int i = 0; i < COPIED; i++) c.x[i] += K * 2;
        if (c.stage < end_stage) return;
        c.stage = first_stage, c.item += step;
        begin_tile(c);
    }
    __device__ void issue(cursor &c, int slot) const {
        if (c.item < n_items) {
            uint32_t to = ring + static_cast<uint32_t>(slot * STAGE);
            if (c.whole)
                issue_weights(c, to);
            else
                issue_odd_weights(c, to);
            issue_columns(c, to + WEIGHTS + SCALES);
            advance(c);
        }
        copies_commit();
    }

    /* Group i of a stage, in units of two steps, for M columns. */
    template <int M>
    __device__ void multiply_group(int32_t stage, int slot, int i, bool same, uint32_t (&a)[2][8],
                                   float (&sums)[M / 2]) const {
        uint32_t from = ring + static_cast<uint32_t>(slot * STAGE);
        uint32_t run =
            from + static_cast<uint32_t>((i * WIDE_HEIGHT + own_row) * MMA_GROUP_BYTES + t * 16);
        const uint8_t *x =
            stages + slot * STAGE + WEIGHTS + SCALES + i * (GROUP / 16) * OCTETS * 256;
        uint4 lower = {}, upper = {};
        if constexpr (W != DI_BF16)
            lower = load_shared_128(run), upper = load_shared_128(run + 8 * MMA_GROUP_BYTES);
        uint32_t by = 0, by8 = 0;
        bool far = false;
        if constexpr (mma_format<W>::SCALES > 0) {
            uint32_t word = from + WEIGHTS + threadIdx.x * 8 + scale_byte(stage * GROUPS + i);
            uint32_t scale = load_shared_8(word);
            uint32_t scale8 = W == DI_F8_E4M3 && same ? scale : load_shared_8(word + 4);
            far = __any_sync(ALL_LANES, mma_far<W>(scale) || mma_far<W>(scale8));
            by = mma_multiplier<W>(scale, far), by8 = mma_multiplier<W>(scale8, far);
        }
#pragma unroll
        for (int u = 0; u < GROUP / 32; u++) {
            uint32_t(&mine)[8] = a[(i * (GROUP / 32) + u) % 2];
            products_wait<1>(); /* the unit before the last one is done with its registers */
            if constexpr (W == DI_BF16) { /* stored values are operands as they are: not before */
                lower = load_shared_128(run), upper = load_shared_128(run + 8 * MMA_GROUP_BYTES);
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
    __device__ void multiply_part(int32_t begin, int32_t end, bool same, cursor &next, int &slot,
                                  float (&sums)[M / 2]) const {
        uint32_t a[2][8] = {};
        for (int32_t stage = begin; stage < end; stage++) {
            copies_wait<DEPTH - 3>();
            if constexpr (MMA_WGMMA) shared_for_products();
            __syncthreads(); /* the stage is there; all are done with the one before the last */
            issue(next, slot >= 2 ? slot - 2 : slot + DEPTH - 2);
#pragma unroll
            for (int i = 0; i < GROUPS; i++) multiply_group<M>(stage, slot, i, same, a, sums);
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
        products_wait<0>();
        hold(sums);
    }

    /* The sums of the first part of a tile, or of a later one, where KEEPS. */
    template <int M> __device__ void keep_sums(const float (&sums)[M / 2], bool first) const {
#pragma unroll
        for (int f = 0; f < M / 2; f++) {
            int column = f / 4 * 8 + f % 2, i = f % 4 / 2 * 8;
            float *kept = joint + (column + 2 * t) * PITCH + own_row + i;
            *kept = first ? sums[f] : *kept + sums[f]; /* not 0 + sums: a 0 keeps its sign */
        }
    }

    /* The parts of K from 0 each, added in their order; the block's one part where it has one. */
    template <int M>
    __device__ void multiply_tile(bool same, cursor &next, int &slot, float (&total)[SUMS]) const {
        int32_t each = SPLIT ? end_stage - first_stage : part_stages();
        for (int32_t begin = first_stage; begin < end_stage; begin += each) {
            int32_t end = begin + each < end_stage ? begin + each : end_stage;
            float sums[M / 2] = {};
            multiply_part<M>(begin, end, same, next, slot, sums);
            if constexpr (KEEPS) {
                keep_sums<M>(sums, begin == first_stage);
            } else {
#pragma unroll
                for (int i = 0; i < M / 2; i++)
                    total[i] = begin == first_stage ? sums[i] : total[i] + sums[i];
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

    /* The parts of two neighbouring sums, in their order, from the cluster's blocks. */
    static __device__ float2 cluster_sum(const float *y) {
        float2 sum = cluster_read(y, 0);
        for (int p = 1; p < static_cast<int>(gridDim.y); p++) {
            float2 more = cluster_read(y, p);
            sum.x += more.x, sum.y += more.y;
        }
        return sum;
    }
    /* The cluster's blocks have a part each; every one joins and stores its share of the sums. */
    __device__ void store_joined(const mma_tile &at, int pass) const {
        int parts = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
        constexpr int ALL = Job::SIDES == 1 ? PASS * (WIDE_HEIGHT / 2) : PASS * (HEIGHT / 32);
        constexpr int EACH = Job::SIDES == 1 ? WIDE_THREADS : WIDE_THREADS / WARP;
        int share = (ALL + parts - 1) / parts,
            end = (rank + 1) * share < ALL ? (rank + 1) * share : ALL;
        int mine = Job::SIDES == 1 ? static_cast<int>(threadIdx.x) : warp_id();
        for (int e = rank * share + mine; e < end; e += EACH) {
            if constexpr (Job::SIDES == 1) {
                int column = e / (WIDE_HEIGHT / 2), row = e % (WIDE_HEIGHT / 2) * 2;
                float2 sum = cluster_sum(joint + column * PITCH + row);
                job.store2(at, row, pass * PASS + column, sum.x, sum.y);
            } else { /* a warp a column and 32 channels: pairs are read, a lane takes its own */
                int column = e / (HEIGHT / 32), row = e % (HEIGHT / 32) * 32, odd = lane_id() % 2;
                if (pass * PASS + column >= at.columns) continue;
                const float *y = joint + column * PITCH + row + lane_id() - odd;
                float2 gate = cluster_sum(y), up = cluster_sum(y + HEIGHT);
                job.finish(at, row, pass * PASS + column, odd ? gate.y : gate.x, odd ? up.y : up.x);
            }
        }
    }

    __device__ void store_tile(const mma_tile &at, const float (&total)[SUMS]) const {
        for (int pass = 0; pass * PASS < at.columns; pass++) {
            if constexpr (!KEEPS) put_sums(total, pass);
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
        cursor next = {};
        next.item = static_cast<int32_t>(blockIdx.x), next.stage = first_stage;
        begin_tile(next);
#pragma unroll
        for (int i = 0; i < DEPTH - 2; i++) issue(next, i);
        int slot = 0;
        for (int32_t item = static_cast<int32_t>(blockIdx.x); item < n_items; item += step) {
            float total[SUMS] = {};
            mma_tile at = job.tile(item, HEIGHT, N);
            int32_t columns = multiplied(at.columns);
            bool same = at.row % 16 == 0;
            if (N <= 32 || columns == 32)
                multiply_tile<32>(same, next, slot, total);
            else if (N <= 64 || columns == 64)
                multiply_tile<N <= 64 ? N : 64>(same, next, slot, total);
            else
                multiply_tile<N>(same, next, slot, total);
            asm volatile("" : "+r"(item)); /* look again: registers are short in between */
            store_tile(job.tile(item, HEIGHT, N), total);
        }
    }
};

template <typename Job, int N, bool SPLIT>
static __global__ void __launch_bounds__(WIDE_THREADS, mma_wide<Job, N, SPLIT>::BLOCKS)
    mma_wide_kernel(Job job) {
    extern __shared__ __align__(128) uint8_t mma_shared[];
    await_kernels_before();
    let_kernels_begin();
    mma_wide<Job, N, SPLIT> wide(job, mma_shared);
    wide.run();
}

#endif
