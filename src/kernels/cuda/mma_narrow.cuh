/* Products of few columns: bound by the weights' way from memory.
 *
 * A block takes a tile of MT strips (of each side) and up to 8 columns; each of its warps takes one
 * part of K (mma_weights.cuh), so that a block has as many warps as K has parts. A warp streams its
 * part of one tile after the other through a ring in shared memory, one to four strips' span of K
 * at a time, so that nobody waits for anybody else, and the next tile's weights are on their way
 * while the sums of this one are joined. What a tile needs besides is looked up before its copies
 * begin, by one warp, and kept for all.
 *
 * What is left is instructions: of a weight and lane 2.2 of FP4 and 3 of FP8, of which 1.5 and 1.75
 * decode it.
 */
#ifndef DI_KERNELS_CUDA_MMA_NARROW_CUH
#define DI_KERNELS_CUDA_MMA_NARROW_CUH

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mma_jobs.cuh"

template <typename Job, int MT, bool SPREAD = false> struct mma_narrow {
    static constexpr di_dtype W = Job::FORMAT;
    static constexpr bool SCALES = mma_format<W>::SCALES;
    static constexpr int TILES = Job::SIDES * MT; /* strips */
    /* A step: a chunk of a strip, a span of K. */
    static constexpr int GROUP = mma_format<W>::GROUP, SPAN = mma_format<W>::CHUNK_K;
    static constexpr int GROUPS = SPAN / GROUP, UNITS = SPAN / 32;
    static constexpr uint32_t STEP = mma_format<W>::CHUNK;
    static constexpr uint32_t BETWEEN = MMA_BLOCK / MMA_STRIP * STEP; /* spans of a strip */
    static constexpr int SUMS = TILES * 4;                            /* of a lane */
    static constexpr int HEIGHT = MMA_STRIP * MT, WIDTH = 8;

    /* Steps of a warp's ring. A long stream, which the head is, is the slower the more is on its
     * way: with 6 steps of bf16 two strips high memory gives 0.8 of what it gives with 4. */
    static constexpr int STEPS = W == DI_FP4_PAIR             ? 8
                                 : W == DI_BF16 && TILES == 2 ? 4
                                                              : 6 / TILES * TILES;
    static_assert(MMA_BLOCK % (MMA_STRIP * MT) == 0, "a tile's strips are neighbours");
    static_assert(STEPS > 0 && STEPS % TILES == 0, "the ring ends with a span");

    /* Strips that are copied, waited for and multiplied together: neighbours, whose chunks of one
     * side lie in one piece: a copy costs instructions, most of them addresses. Where nothing is
     * decoded, memory is what is waited for, and copies are small. */
    static constexpr int PIECE = !SCALES || MT % 2 != 0 ? 1 : W == DI_FP4_PAIR ? TILES : 2;
    /* And those whose sums do not wait for each other. */
    static constexpr int PAIR = PIECE > 1 ? 2 : 1;
    static constexpr int COPIED = PIECE < MT ? PIECE : MT;              /* in a row */
    static constexpr int PIECES = TILES / PIECE, SLOTS = STEPS / PIECE; /* of a span; of the ring */
    static constexpr uint32_t PIECE_BYTES = PIECE * STEP;

    /* Activations: where a lane has its 16 bytes of a span's units, and the next span. */
    static constexpr bool AS_STORED = Job::AS_STORED;
    static_assert(!AS_STORED || W != DI_FP4_PAIR, "cells of pairs are not in a row");
    static constexpr int IN_RUN = GROUP / 32; /* units */
    static constexpr int X_SPAN = AS_STORED ? SPAN * 2 : UNITS * 512;
    static constexpr __device__ int unit_at(int u) {
        return AS_STORED ? u / IN_RUN * GROUP * 2 + u % IN_RUN * 16 : u * 512;
    }

    /* What all warps need of a tile. Two may be in use at once, and copies run ahead of them. */
    static constexpr int AHEAD = STEPS / TILES, KNOWN = 16;
    static_assert(AHEAD + 3 <= KNOWN, "those in use stay");
    static_assert(AHEAD >= 2, "load_ahead asks where the tile after the next has its columns");
    struct known {
        mma_tile tile;
        int32_t row[WIDTH]; /* x_row of each column; of the first where there is none */
        typename Job::of_column by[Job::COLUMNS ? WIDTH : 1]; /* column_at of each */
    };

    /* Shared memory: what is known, the rings of the warps, a barrier for each of their pieces, the
     * sums of all. */
    static constexpr uint32_t RING = STEPS * STEP;
    static constexpr uint32_t KNOWN_BYTES = (KNOWN * sizeof(known) + 127) / 128 * 128;
    static constexpr uint32_t WARP_BYTES = (RING + SLOTS * 8 + 15) / 16 * 16;
    static_assert(STEP % 16 == 0, "copies are aligned, and are whole pieces of 16 bytes");
    static_assert(RING % 8 == 0, "barriers stand behind the ring");
    static constexpr uint32_t JOINT_BYTES = SUMS * WARP * sizeof(float); /* a warp's sums */
    /* parts: of all sums that come to this block. */
    static constexpr size_t bytes(int warps, int parts) {
        return KNOWN_BYTES + static_cast<size_t>(warps) * WARP_BYTES +
               static_cast<size_t>(parts) * JOINT_BYTES + (SPREAD ? sizeof(uint64_t) : 0);
    }

    /* SPREAD: the warps of a tile are those of a cluster's blocks, which lie along y and have this
     * tile alone; all sums come to the first one. Where tiles are few, processors have equal shares
     * of them so. PAIRED: a cluster has a tile of each of two matrices of one shape, its first half
     * of the blocks that of the first. */
    static constexpr bool PAIRED = Job::PAIRED;
    static_assert(!PAIRED || (SPREAD && Job::SIDES == 1 && HEIGHT == WARP), "a warp a column");

    /* Where a warp's copies stand: a span of its part of a tile. */
    struct cursor {
        int32_t number, span;    /* of the block's tiles; of the part */
        const uint8_t *strip[2]; /* of each side: the first strip's */
    };

    const Job &job;
    known *tiles;
    uint32_t ring, barriers; /* this warp's, as shared addresses */
    float *joint;            /* [part][SUMS][lane] */
    int32_t n_tiles;         /* of this block */
    int32_t parts, warp;     /* of K; this one's number among all of a tile */
    int32_t begin, spans;    /* this warp's part of K */
    int32_t g, t;
    uint32_t runs, scales; /* where this lane reads a step */
    bool far;

    __device__ mma_narrow(const Job &j, uint8_t *shared) : job(j) {
        int32_t length = mma_part_length(j.rows.k), items = j.count(HEIGHT, WIDTH);
        int32_t block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
        int32_t warps = static_cast<int32_t>(blockDim.x) / WARP;
        parts = mma_parts(j.rows.k);
        warp = warp_id() + (SPREAD ? static_cast<int32_t>(blockIdx.y) * warps : 0);
        tiles = reinterpret_cast<known *>(shared);
        joint = reinterpret_cast<float *>(shared + KNOWN_BYTES + warps * WARP_BYTES);
        ring = kept(shared_address(shared) + KNOWN_BYTES +
                    static_cast<uint32_t>(warp_id()) * WARP_BYTES);
        barriers = ring + RING;
        n_tiles = SPREAD ? 1 : items > block ? (items - block + blocks - 1) / blocks : 0;
        begin = (PAIRED ? warp % parts : warp) * length;
        int32_t left =
            mma_padded(j.rows.k) - begin < length ? mma_padded(j.rows.k) - begin : length;
        spans = left / SPAN;
        g = lane_id() / 4, t = lane_id() % 4;
        runs = kept(static_cast<uint32_t>(lane_id()) * 16);
        scales =
            kept(mma_format<W>::RUNS + static_cast<uint32_t>(W == DI_FP4_PAIR ? lane_id() : t / 2));
        far = SCALES && *j.rows.far != 0;
    }

    /* SPREAD: warps of the cluster; the barrier that their sums count at. */
    static __device__ uint32_t of_cluster() { return blockDim.x / WARP * gridDim.y; }
    __device__ uint64_t *all_joint() const {
        return reinterpret_cast<uint64_t *>(joint + of_cluster() * SUMS * WARP);
    }

    /* A warp: finds out where tile `number` of this block lies. */
    __device__ void look_ahead(int32_t number) const {
        if (number >= n_tiles) return;
        known &k = tiles[number % KNOWN];
        int32_t item = static_cast<int32_t>(blockIdx.x + number * gridDim.x);
        if (PAIRED && warp >= parts) item += static_cast<int32_t>(gridDim.x);
        mma_tile at = job.tile(item, HEIGHT, WIDTH);
        if (lane_id() == 0) k.tile = at;
        int32_t c = lane_id();
        if (c < WIDTH) {
            int32_t there = c < at.columns ? c : 0;
            k.row[c] = static_cast<int32_t>(job.x_row(at, there));
            if constexpr (Job::COLUMNS) k.by[c] = job.column_at(at, there);
        }
    }

    /* ---- Copies ---- */

    __device__ void begin_tile(cursor &c) const {
        c.span = 0;
        if (c.number >= n_tiles) return;
        const mma_tile &at = tiles[c.number % KNOWN].tile;
#pragma unroll
        for (int side = 0; side < Job::SIDES; side++)
            c.strip[side] = at.strips[side] + begin / SPAN * BETWEEN;
    }
    __device__ void advance(cursor &c) const {
#pragma unroll
        for (int side = 0; side < Job::SIDES; side++) c.strip[side] += BETWEEN;
        if (++c.span < spans) return;
        c.number++;
        begin_tile(c);
    }

    /* Begins to copy piece p of the span to a slot of the ring, which nobody reads any more.
     * Weights leave the second cache first: a step reads many times what it holds, and activations
     * and code would come from memory in every kernel. */
    __device__ void copy_piece(const cursor &c, int p, uint32_t slot) const {
        if (c.number >= n_tiles) return;
        __syncwarp();
        if (lane_id() != 0) return;
        uint32_t barrier = barriers + slot * 8, at = ring + slot * PIECE_BYTES;
        barrier_expect(barrier, PIECE_BYTES);
#pragma unroll
        for (int m = p * PIECE; m < (p + 1) * PIECE; m += COPIED, at += COPIED * STEP)
            copy_bulk(at, c.strip[m / MT] + m % MT * STEP, COPIED * STEP, barrier, read_once());
    }

    /* ---- Products ---- */

    /* This lane's column of tile `number`, at the beginning of the part. */
    __device__ const uint8_t *column_of(int32_t number) const {
        int32_t row = tiles[number % KNOWN].row[g];
        if (AS_STORED) return job.x + 2 * (static_cast<int64_t>(row) + begin) + t * IN_RUN * 16;
        return job.x + mma_narrow_at(row, mma_padded(job.rows.k), t) + begin / 32 * 512;
    }
    static __device__ __forceinline__ uint4 load_unit(const uint8_t *x, int u) {
        /* Not __ldg: it was written while this kernel waited. */
        return *reinterpret_cast<const uint4 *>(x + unit_at(u));
    }

    /* Of group q of a step, of rows g and g + 8. */
    __device__ uint32_t scale_at(uint32_t step, int q, int upper) const {
        return load_shared_8(step + scales + (W == DI_FP4_PAIR ? upper * WARP : upper * 4 + 2 * q));
    }

    /* sums += the PAIR steps at `piece` of the ring times the columns' span. */
    template <bool FAR>
    __device__ void multiply(uint32_t piece, const uint4 (&b)[UNITS], float (*sums)[4]) const {
#pragma unroll
        for (int q = 0; q < GROUPS; q++) {
            uint4 low[PAIR], high[PAIR];
            uint32_t by[PAIR] = {}, by8[PAIR] = {};
#pragma unroll
            for (int m = 0; m < PAIR; m++) {
                uint32_t step = piece + m * STEP;
                if constexpr (SCALES) by[m] = scale_at(step, q, 0), by8[m] = scale_at(step, q, 1);
                low[m] = load_shared_128(step + runs + 2 * q * WARP * 16);
                high[m] = load_shared_128(step + runs + (2 * q + 1) * WARP * 16);
            }
#pragma unroll
            for (int m = 0; m < PAIR; m++)
                if constexpr (SCALES)
                    by[m] = mma_multiplier<W, FAR>(by[m]), by8[m] = mma_multiplier<W, FAR>(by8[m]);
#pragma unroll
            for (int u = 0; u < GROUP / 32; u++) {
                int unit = q * (GROUP / 32) + u;
#pragma unroll
                for (int m = 0; m < PAIR; m++) {
                    uint32_t a[8];
                    mma_decode<W, FAR>(low[m], high[m], u, by[m], by8[m], a);
                    mma_bf16(sums[m], a, b[unit].x, b[unit].y);
                    mma_bf16(sums[m], a + 4, b[unit].z, b[unit].w);
                }
            }
        }
    }

    /* ---- Sums ---- */

    /* The sum of all parts, in their order, of value f of a lane. They are loaded at once. */
    static __device__ __forceinline__ float joined(const float *sums, int32_t parts, int f,
                                                   int lane) {
        float part[MMA_PARTS];
#pragma unroll
        for (int p = 0; p < MMA_PARTS; p++)
            part[p] = p < parts ? sums[(p * SUMS + f) * WARP + lane] : 0.0f;
        float y = part[0];
#pragma unroll
        for (int p = 1; p < MMA_PARTS; p++) y = p < parts ? y + part[p] : y;
        return y;
    }

    /* Row `lane` of a column, of 32 rows. */
    __device__ float joined_row(const float *sums, int32_t column) const {
        int row = lane_id(), f = row / 16 * 4 + row % 16 / 8 * 2 + column % 2;
        return joined(sums, parts, f, row % 8 * 4 + column / 2);
    }

    /* A tile, by threads of which `thread` is this one's number. */
    __device__ void finish(const known &k, int32_t thread) const {
        int32_t threads = static_cast<int32_t>(blockDim.x), warps = threads / WARP;
        const mma_tile &at = k.tile;
        if constexpr (PAIRED) {
            for (int32_t column = thread / WARP; column < at.columns; column += warps)
                job.finish(at, column, joined_row(joint, column),
                           joined_row(joint + parts * SUMS * WARP, column));
        } else if constexpr (Job::SIDES == 1) {
            for (int32_t e = thread; e < at.columns * HEIGHT; e += threads) {
                int32_t row = e % HEIGHT, column = e / HEIGHT;
                int f = row / 16 * 4 + row % 16 / 8 * 2 + column % 2;
                float y = joined(joint, parts, f, row % 8 * 4 + column / 2);
                if constexpr (Job::COLUMNS)
                    job.store_at(at, row, k.by[column], y);
                else
                    job.store(at, row, column, y);
            }
        } else { /* a warp a column: lane l has channel l of 32 */
            static_assert(HEIGHT == 32, "the quantiser's block");
            int m = lane_id() / 16, upper = lane_id() / 8 % 2;
            for (int32_t column = thread / WARP; column < at.columns; column += warps) {
                int i = 2 * upper + column % 2, lane = lane_id() % 8 * 4 + column / 2;
                job.finish(at, 0, column, k.by[column], joined(joint, parts, 4 * m + i, lane),
                           joined(joint, parts, 4 * (MT + m) + i, lane));
            }
        }
    }

    /* What runs on from tile to tile. */
    struct stream {
        cursor next;          /* what was copied last: the ring's length ahead */
        uint32_t slot;        /* of the ring: the first of the span to be multiplied */
        uint32_t parity;      /* of its barriers' phase */
        uint4 b[UNITS];       /* columns of the span that is next */
        int32_t turn;         /* of a tile, the warp that begins to finish it */
        int32_t number, span; /* whose columns are loaded next: of the block's tiles; of the part */
        const uint8_t *x;     /* where they are */
    };

    /* Columns of one more span, of this tile or the next. */
    __device__ void load_ahead(stream &s) const {
        if (s.number >= n_tiles) return;
#pragma unroll
        for (int u = 0; u < UNITS; u++) s.b[u] = load_unit(s.x, u);
        s.x += X_SPAN;
        if (++s.span < spans) return;
        s.span = 0;
        if (++s.number < n_tiles) s.x = column_of(s.number);
    }

    /* One span of all strips. */
    __device__ void run_span(stream &s, float (&sums)[TILES][4]) const {
        uint4 b[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) b[u] = s.b[u];
        load_ahead(s); /* before the products: they take as long as it takes */
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            uint32_t slot = s.slot + p;
            barrier_wait(barriers + slot * 8, s.parity);
#pragma unroll
            for (int m = 0; m < PIECE; m += PAIR) {
                uint32_t steps = ring + slot * PIECE_BYTES + m * STEP;
                if (far)
                    multiply<true>(steps, b, sums + p * PIECE + m);
                else
                    multiply<false>(steps, b, sums + p * PIECE + m);
            }
            /* What was read makes room for what is a ring's length further. */
            if (p == 0) advance(s.next);
            copy_piece(s.next, p, slot);
        }
        s.slot += PIECES;
        if (s.slot == SLOTS) s.slot = 0, s.parity ^= 1;
    }

    /* All of tile `number`. */
    __device__ void run_tile(int32_t number, stream &s) const {
        const known &at = tiles[number % KNOWN];
        float sums[TILES][4] = {};
        int32_t warps = static_cast<int32_t>(blockDim.x) / WARP;
        int32_t mine = warp_id() - s.turn, thread = (mine < 0 ? mine + warps : mine) * WARP;
        if (mine == (s.turn + 1 < warps ? 1 : 1 - warps)) look_ahead(number + AHEAD + 1);
        for (int32_t span = 0; span < spans; span++) run_span(s, sums);
        float *of_mine = joint + warp * SUMS * WARP + lane_id();
        if (number > 0) __syncthreads(); /* the sums before are read */
        if constexpr (SPREAD) {
            uint32_t to = cluster_address(of_mine, 0);
            __syncwarp();
            cluster_meet(); /* the first block has begun */
#pragma unroll
            for (int f = 0; f < SUMS; f++)
                store_peer(to + f * WARP * 4, sums[f / 4][f % 4], cluster_address(all_joint(), 0));
            if (blockIdx.y > 0) return;
            barrier_wait(all_joint(), 0);
        } else {
#pragma unroll
            for (int f = 0; f < SUMS; f++) of_mine[f * WARP] = sums[f / 4][f % 4];
            __syncthreads(); /* also: one more tile is known */
        }
        /* Each time other warps have the most to do. */
        finish(at, thread + lane_id());
        s.turn = s.turn + 1 < warps ? s.turn + 1 : 0;
    }

    __device__ void make_barriers() const {
        if (lane_id() != 0) return;
        for (uint32_t i = 0; i < SLOTS; i++) barrier_init(barriers + i * 8, 1);
        barriers_made();
    }

    __device__ void run() const {
        if constexpr (SPREAD) cluster_expect(all_joint(), of_cluster() * JOINT_BYTES);
        make_barriers();
        for (int32_t i = warp_id(); i <= AHEAD; i += static_cast<int32_t>(blockDim.x) / WARP)
            look_ahead(i);
        __syncthreads();
        stream s = {};
        begin_tile(s.next);
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            if (i > 0 && i % PIECES == 0) advance(s.next);
            copy_piece(s.next, i % PIECES, i);
        }
        if (Job::STATIC) await_kernels_before();
        if (n_tiles == 0) return;
        s.x = column_of(0);
        load_ahead(s);
        for (int32_t number = 0; number < n_tiles; number++) run_tile(number, s);
    }
};

template <typename Job, int MT, bool SPREAD>
static __global__ void __launch_bounds__(MMA_PARTS *WARP, 2) mma_narrow_kernel(Job job) {
    extern __shared__ __align__(128) uint8_t mma_shared[];
    if (!Job::STATIC) await_kernels_before();
    let_kernels_begin();
    if constexpr (Job::PICKS) {
        __shared__ block_lists own;
        make_lists(job.from, job.lists, own);
    }
    mma_narrow<Job, MT, SPREAD>(job, mma_shared).run();
}

#endif
