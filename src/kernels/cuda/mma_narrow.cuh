/* Products of few columns: bound by the weights' way from memory.
 *
 * A block takes a tile of 16 MT weight rows (of each side) and up to 8 NT columns; each of its warps
 * takes one part of K (mma_weights.cuh), so that a block has as many warps as K has parts. A warp
 * streams its part of one tile after the other through a ring in shared memory: every lane copies
 * and reads back its own 16 bytes of a row, so that nobody waits for anybody else, and the next
 * tile's weights are on their way while the sums of this one are joined. Weights pass by the first
 * cache; activations stay in it.
 */
#ifndef DI_KERNELS_CUDA_MMA_NARROW_CUH
#define DI_KERNELS_CUDA_MMA_NARROW_CUH

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

template <typename Job, int MT, int NT> struct mma_narrow {
    static constexpr di_dtype W = Job::FORMAT;
    static constexpr int TILES = Job::SIDES * MT, ROWS = 2 * TILES; /* ROWS: of a lane in a tile */
    static constexpr int GROUP = mma_format<W>::GROUP, UNITS = GROUP / 32;
    static constexpr int DEPTH = TILES > 1 ? 4 : 5; /* groups in the ring */
    static constexpr int SUMS = TILES * NT * 4;     /* of a lane */
    static constexpr int HEIGHT = 16 * MT, WIDTH = 8 * NT;

    /* Shared memory: the ring of every warp, then the sums of all. */
    static constexpr size_t RUNS = DEPTH * ROWS * WARP * 16;
    static constexpr size_t SCALES = mma_format<W>::SCALES ? DEPTH * ROWS * WARP * 4 : 0;
    static constexpr size_t bytes(int parts) {
        return static_cast<size_t>(parts) * (RUNS + SCALES + SUMS * WARP * sizeof(float));
    }

    /* Where a warp's copies stand: a group of its part of a tile. */
    struct cursor {
        int32_t item, group;
        mma_tile tile;
    };

    const Job &job;
    uint8_t *runs, *scales; /* of this warp and lane */
    int32_t n_items, begin, groups, g, t;

    __device__ mma_narrow(const Job &j, uint8_t *shared) : job(j) {
        int32_t length = mma_part_length(j.rows.k), warps = static_cast<int32_t>(blockDim.x) / WARP;
        runs = shared + warp_id() * RUNS + lane_id() * 16;
        scales = shared + warps * RUNS + warp_id() * SCALES + lane_id() * 4;
        n_items = j.count(HEIGHT, WIDTH);
        begin = warp_id() * length;
        int32_t left = j.rows.k - begin < length ? j.rows.k - begin : length;
        groups = (left + GROUP - 1) / GROUP;
        g = lane_id() / 4, t = lane_id() % 4;
    }

    __device__ int32_t weight_row(const mma_tile &at, int r) const { /* r of ROWS */
        int32_t row = at.row + r / 2 % MT * 16 + r % 2 * 8 + g;
        return row < at.end ? row : at.end - 1;
    }
    /* The block of 32 that this lane's run of a group has its scale from. */
    __device__ int32_t block_of(int32_t group) const {
        int32_t last = (job.rows.k + 31) / 32 - 1;
        int32_t block = (begin + group * GROUP + t * (GROUP / 4)) / 32;
        return block < last ? block : last;
    }

    __device__ void copy_group(const mma_tile &at, int32_t group, int slot) const {
        int64_t from =
            static_cast<int64_t>(begin / GROUP + group) * MMA_GROUP_BYTES + t * MMA_RUN_BYTES;
        int32_t valid = static_cast<int32_t>(job.rows.data_stride - from), block = block_of(group);
        if (valid <= 0) from = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *base = at.data[r / 2 / MT];
            int32_t row = weight_row(at, r);
            bool aligned = job.rows.aligned && reinterpret_cast<uintptr_t>(base) % 16 == 0;
            copy_run(runs + (slot * ROWS + r) * WARP * 16, base + row * job.rows.data_stride + from,
                     valid, aligned);
            if (mma_format<W>::SCALES)
                copy_word(scales + (slot * ROWS + r) * WARP * 4,
                          mma_scale_at<W>(job.rows, at.scale[r / 2 / MT], row, block));
        }
    }

    /* Begins to copy the next group into a slot of the ring; behind the last one it does nothing. */
    __device__ void issue(cursor &c, int slot) const {
        if (c.item < n_items) {
            copy_group(c.tile, c.group, slot);
            if (++c.group == groups) {
                c.group = 0, c.item += static_cast<int32_t>(gridDim.x);
                if (c.item < n_items) c.tile = job.tile(c.item, HEIGHT, WIDTH);
            }
        }
        copies_commit();
    }

    template <bool FAR>
    __device__ void multiply(const uint4 (&raw)[ROWS], const uint32_t (&scale)[ROWS],
                             const uint8_t *const (&x)[NT], int32_t tiles, int32_t unit,
                             float (&sums)[TILES][NT][4]) const {
        uint32_t by[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) by[r] = mma_multiplier<W>(scale[r], FAR);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            uint4 b[NT];
#pragma unroll
            for (int j = 0; j < NT; j++) {
                b[j] = make_uint4(0, 0, 0, 0);
                if (x[j] != NULL)
                    b[j] = __ldg(reinterpret_cast<const uint4 *>(x[j] + (unit + u) * 512));
            }
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                uint32_t a[8];
                mma_decode<W, FAR>(raw[2 * m], raw[2 * m + 1], u, by[2 * m], by[2 * m + 1], a);
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    if (j >= tiles) break;
                    mma_bf16(sums[m][j], a, b[j].x, b[j].y);
                    mma_bf16(sums[m][j], a + 4, b[j].z, b[j].w);
                }
            }
        }
    }

    /* Adds the products of the group in a slot. */
    __device__ void consume(const mma_tile &at, int32_t group, int slot, int32_t tiles,
                            const uint8_t *const (&x)[NT], float (&sums)[TILES][NT][4]) const {
        uint4 raw[ROWS];
        uint32_t scale[ROWS] = {};
        bool far = false;
        int32_t block = block_of(group);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            raw[r] = *reinterpret_cast<const uint4 *>(runs + (slot * ROWS + r) * WARP * 16);
            if (mma_format<W>::SCALES) { /* the byte of the word that was copied */
                const uint8_t *byte =
                    mma_scale_at<W>(job.rows, at.scale[r / 2 / MT], weight_row(at, r), block);
                scale[r] = scales[(slot * ROWS + r) * WARP * 4 +
                                  (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(byte)) & 3)];
                far = far || mma_far<W>(scale[r]);
            }
        }
        int32_t unit = (begin + group * GROUP) / 32;
        if (mma_format<W>::SCALES && __any_sync(ALL_LANES, far))
            multiply<true>(raw, scale, x, tiles, unit, sums);
        else
            multiply<false>(raw, scale, x, tiles, unit, sums);
    }

    /* What this lane reads of its columns, from unit 0 of K on; NULL where there is no column. */
    __device__ void find_columns(const mma_tile &at, const uint8_t *(&x)[NT]) const {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int32_t column = 8 * j + g;
            x[j] = NULL;
            if (column < at.columns)
                x[j] = job.x + mma_narrow_at(job.x_row(at, column), mma_padded(job.rows.k), t);
        }
    }

    /* The sum of all parts, in their order, of value f of a lane. */
    static __device__ float joined(const float *sums, int32_t parts, int f, int lane) {
        float y = sums[f * WARP + lane];
        for (int32_t p = 1; p < parts; p++) y += sums[(p * SUMS + f) * WARP + lane];
        return y;
    }

    __device__ void finish(const mma_tile &at, const float *sums) const {
        int32_t parts = static_cast<int32_t>(blockDim.x) / WARP;
        if constexpr (Job::SIDES == 1) {
            for (int e = static_cast<int>(threadIdx.x); e < SUMS * WARP;
                 e += static_cast<int>(blockDim.x)) {
                int f = e / WARP, lane = e % WARP, m = f / (4 * NT), j = f / 4 % NT, i = f % 4;
                int32_t row = 16 * m + lane / 4 + i / 2 * 8, column = 8 * j + lane % 4 * 2 + i % 2;
                if (column < at.columns) job.store(at, row, column, joined(sums, parts, f, lane));
            }
        } else { /* a warp a column: lane l has channel l of 32 */
            static_assert(HEIGHT == 32, "the quantiser's block");
            int m = lane_id() / 16, upper = lane_id() / 8 % 2;
            for (int32_t column = warp_id(); column < at.columns; column += parts) {
                int j = column / 8, i = 2 * upper + column % 2;
                int lane = lane_id() % 8 * 4 + column % 8 / 2;
                int gate = (m * NT + j) * 4 + i, up = ((MT + m) * NT + j) * 4 + i;
                job.finish(at, 0, column, joined(sums, parts, gate, lane),
                           joined(sums, parts, up, lane));
            }
        }
    }

    __device__ void run(float *shared_sums) {
        cursor next = {static_cast<int32_t>(blockIdx.x), 0, {}};
        if (next.item < n_items) next.tile = job.tile(next.item, HEIGHT, WIDTH);
        for (int i = 0; i < DEPTH - 1; i++) issue(next, i);
        if (Job::STATIC) await_kernels_before();
        int slot = 0;
        for (int32_t item = static_cast<int32_t>(blockIdx.x); item < n_items;
             item += static_cast<int32_t>(gridDim.x)) {
            mma_tile at = job.tile(item, HEIGHT, WIDTH);
            const uint8_t *x[NT];
            float sums[TILES][NT][4] = {};
            find_columns(at, x);
            int32_t tiles = (at.columns + 7) / 8;
            for (int32_t group = 0; group < groups; group++) {
                copies_wait<DEPTH - 2>();
                issue(next, slot == 0 ? DEPTH - 1 : slot - 1); /* the one that was read last */
                consume(at, group, slot, tiles, x, sums);
                slot = slot + 1 == DEPTH ? 0 : slot + 1;
            }
            __syncthreads(); /* the sums before may still be read */
#pragma unroll
            for (int f = 0; f < SUMS; f++)
                shared_sums[(warp_id() * SUMS + f) * WARP + lane_id()] =
                    sums[f / (4 * NT)][f / 4 % NT][f % 4];
            __syncthreads();
            finish(at, shared_sums);
        }
    }
};

template <typename Job, int MT, int NT>
static __global__ void __launch_bounds__(MMA_PARTS *WARP) mma_narrow_kernel(Job job) {
    using narrow = mma_narrow<Job, MT, NT>;
    extern __shared__ __align__(128) uint8_t mma_shared[];
    int warps = static_cast<int>(blockDim.x) / WARP;
    if (!Job::STATIC) await_kernels_before();
    let_kernels_begin();
    narrow n(job, mma_shared);
    n.run(reinterpret_cast<float *>(mma_shared + warps * (narrow::RUNS + narrow::SCALES)));
}

#endif
