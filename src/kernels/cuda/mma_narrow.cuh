/* Products of few columns: bound by the weights' way from memory.
 *
 * A block takes a tile of 16 MT weight rows (of each side) and up to 8 NT columns; each of its warps
 * takes one part of K (mma_weights.cuh), so that a block has as many warps as K has parts. A warp
 * streams its part of one tile after the other through a ring in shared memory, 16 rows of a group
 * at a time: every lane copies and reads back its own 16 bytes of a row, so that nobody waits for
 * anybody else, and the next tile's weights are on their way while the sums of this one are joined.
 * (Loads into registers will not do: the compiler waits for all of them at once.) What a tile needs
 * besides is looked up two tiles ahead, by one warp, and kept for all.
 *
 * What is left is instructions: some 2.7 a weight and lane of FP4, of which two decode it.
 */
#ifndef DI_KERNELS_CUDA_MMA_NARROW_CUH
#define DI_KERNELS_CUDA_MMA_NARROW_CUH

#include "kernels/cuda/mma_jobs.cuh"

/* p + rows * stride, in one instruction. */
static __device__ __forceinline__ const uint8_t *rows_on(const uint8_t *p, int32_t rows,
                                                         int32_t stride) {
    const uint8_t *y;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(y) : "r"(rows), "r"(stride), "l"(p));
    return y;
}

/* Where lane t's run of a group has its scale, in the word of 128 values. */
template <di_dtype W> static __device__ __forceinline__ uint32_t mma_scale_byte(int group, int t) {
    return static_cast<uint32_t>(W == DI_FP4_PAIR ? t : group % 2 * 2 + t / 2);
}

/* What a lane copies of rows row and row + 8, at most `last`, of a matrix of which not everything is
 * there or aligned: zeros for what is not, scales in all bytes of their words. Not inlined, and given
 * nothing by reference, so that it costs the others no registers. Small models have such rows. */
template <di_dtype W>
static __device__ __noinline__ void copy_odd_rows(const uint8_t *data, const uint8_t *scales,
                                                  int32_t row, int32_t last, int32_t k,
                                                  int32_t group, uint32_t run, uint32_t word) {
    constexpr int GROUP = mma_format<W>::GROUP;
    mma_rows rows = mma_rows_of(W, k);
    int32_t t = lane_id() % 4, from = group * MMA_GROUP_BYTES + t * MMA_RUN_BYTES;
    int32_t block = (group * GROUP + t * (GROUP / 4)) / 32, last_block = (k + 31) / 32 - 1;
    for (int i = 0; i < 2; i++, row += 8) {
        int32_t at = row < last ? row : last;
        const uint8_t *bytes = data + at * rows.data_stride;
        for (int b = from; b < from + MMA_RUN_BYTES; b++)
            store_shared_8(run + i * WARP * 16 + b - from, b < rows.data_stride ? bytes[b] : 0);
        if (mma_format<W>::SCALES)
            store_shared_8(word + i * WARP * 4 + mma_scale_byte<W>(group, t),
                           *mma_scale_at<W>(rows, scales, at,
                                            block < last_block ? block : last_block));
    }
}

template <typename Job, int MT, int NT> struct mma_narrow {
    static constexpr di_dtype W = Job::FORMAT;
    static constexpr bool SCALES = mma_format<W>::SCALES != 0;
    static constexpr int TILES = Job::SIDES * MT; /* of 16 rows */
    static constexpr int GROUP = mma_format<W>::GROUP, GROUPS = W == DI_FP4_PAIR ? 1 : 2;
    static constexpr int SPAN = GROUP * GROUPS, UNITS = SPAN / 32; /* of K in a step */
    static_assert(MMA_K % SPAN == 0, "parts of K are whole steps");
    static constexpr int SUMS = TILES * NT * 4; /* of a lane */
    static constexpr int HEIGHT = 16 * MT, WIDTH = 8 * NT;

    /* What all warps need of a tile. Two tiles may be in use at once, and two are known ahead. */
    static constexpr int KNOWN = 4;
    struct known {
        mma_tile tile;
        int32_t row[WIDTH]; /* the prepared row of each column; of the first where there is none */
    };
    /* A step of the ring: of one group or two, rows g and g + 8 of every lane; behind all steps the
     * words around their scales. */
    static constexpr int STEPS = GROUPS == 1 ? 8 : 6, AHEAD = STEPS - 1;
    static constexpr uint32_t ROW = WARP * 16, STEP = 2 * GROUPS * ROW, RING = STEPS * STEP;
    static constexpr uint32_t WORDS = 2 * WARP * 4; /* bytes of a step's */
    static_assert(STEPS % TILES == 0, "the ring ends with a span");

    /* Shared memory: what is known, a line that is never read, the rings of the warps, the sums of
     * all. */
    static constexpr size_t NOWHERE = (KNOWN * sizeof(known) + 127) / 128 * 128;
    static constexpr size_t KNOWN_BYTES = NOWHERE + 128;
    static constexpr uint32_t WARP_BYTES = RING + (SCALES ? STEPS * WORDS : 0);
    static constexpr size_t bytes(int parts) {
        return KNOWN_BYTES +
               static_cast<size_t>(parts) * (WARP_BYTES + SUMS * WARP * sizeof(float));
    }

    /* Where a lane's copies stand: a span of its warp's part of a tile. */
    struct cursor {
        int32_t number, span;     /* of the block's tiles; of the part */
        const uint8_t *data[2];   /* of each side: the lane's run of row g */
        const uint8_t *scales[2]; /* the word with its scale: FP4's of row g, FP8's of row 0 */
        int32_t row;              /* row g of the tile as it lies in its matrix */
        bool whole, same; /* all is there and aligned; rows g and g + 8 share FP8's scales */
    };

    const Job &job;
    known *tiles;
    uint32_t known_at; /* the same */
    uint32_t runs,
        words;       /* this lane's in the first step of its warp's ring, as shared addresses */
    float *joint;    /* [part][SUMS][lane] */
    int32_t n_tiles; /* of this block */
    int32_t begin, spans; /* this warp's part of K */
    int32_t g, t, data_stride, scale_stride;

    __device__ mma_narrow(const Job &j, uint8_t *shared) : job(j) {
        int32_t length = mma_part_length(j.rows.k), items = j.count(HEIGHT, WIDTH);
        int32_t block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
        tiles = reinterpret_cast<known *>(shared), known_at = shared_address(shared);
        joint = reinterpret_cast<float *>(shared + KNOWN_BYTES + blockDim.x / WARP * WARP_BYTES);
        runs = shared_address(shared + KNOWN_BYTES + warp_id() * WARP_BYTES);
        words = runs + RING + lane_id() * 4, runs += lane_id() * 16;
        n_tiles = items > block ? (items - block + blocks - 1) / blocks : 0;
        begin = warp_id() * length;
        int32_t left = j.rows.k - begin < length ? j.rows.k - begin : length;
        spans = (left + SPAN - 1) / SPAN;
        g = lane_id() / 4, t = lane_id() % 4;
        data_stride = static_cast<int32_t>(j.rows.data_stride);
        scale_stride = static_cast<int32_t>(j.rows.scale_stride);
    }

    /* A warp: finds out where tile `number` of this block lies. */
    __device__ void look_ahead(int32_t number) const {
        if (number >= n_tiles) return;
        known &k = tiles[number % KNOWN];
        int32_t item = static_cast<int32_t>(blockIdx.x + number * gridDim.x);
        mma_tile at = job.tile(item, HEIGHT, WIDTH);
        if (lane_id() == 0) k.tile = at;
        for (int32_t c = lane_id(); c < WIDTH; c += WARP)
            k.row[c] = static_cast<int32_t>(job.x_row(at, c < at.columns ? c : 0));
    }

    /* ---- Copies ---- */

    __device__ void begin_tile(cursor &c) const {
        c.span = 0;
        if (c.number >= n_tiles) return;
        const mma_tile &at = tiles[c.number % KNOWN].tile;
        c.row = at.row + g;
        c.whole = job.rows.aligned && job.rows.k % MMA_K == 0 && at.row + HEIGHT <= at.end;
        c.same = at.row % 16 == 0;
#pragma unroll
        for (int side = 0; side < Job::SIDES; side++) {
            c.data[side] = at.data[side] + c.row * job.rows.data_stride +
                           begin / GROUP * MMA_GROUP_BYTES + t * MMA_RUN_BYTES;
            c.scales[side] = at.scale[side] + begin / 32;
            c.whole = c.whole && reinterpret_cast<uintptr_t>(at.data[side]) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(at.scale[side]) % 4 == 0;
            if (W == DI_FP4_PAIR) c.scales[side] += c.row * job.rows.scale_stride;
        }
    }
    __device__ void advance(cursor &c) const {
#pragma unroll
        for (int side = 0; side < Job::SIDES; side++)
            c.data[side] += GROUPS * MMA_GROUP_BYTES, c.scales[side] += 4;
        if (++c.span < spans) return;
        c.number++;
        begin_tile(c);
    }

    /* Begins to copy rows g and g + 8 of tile m to `step` in the ring. */
    __device__ void copy_rows(const cursor &c, int m, uint32_t step) const {
        int side = m / MT, first = m % MT * 16;
        uint32_t word = words + step / STEP * WORDS;
        if (c.number < n_tiles && c.whole) {
            const uint8_t *run = rows_on(c.data[side], first / 8, 8 * data_stride);
            const uint8_t *run8 = run + 8 * data_stride;
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                copy_16(runs + step + 2 * q * ROW, run + q * MMA_GROUP_BYTES);
                copy_16(runs + step + (2 * q + 1) * ROW, run8 + q * MMA_GROUP_BYTES);
            }
            if (W == DI_FP4_PAIR) {
                const uint8_t *scale = rows_on(c.scales[side], first / 8, 8 * scale_stride);
                copy_4(word, scale);
                copy_4(word + WARP * 4, scale + 8 * scale_stride);
            } else if (SCALES) {
                copy_4(word, rows_on(c.scales[side], (c.row + first) >> 5, scale_stride));
                if (!c.same)
                    copy_4(word + WARP * 4,
                           rows_on(c.scales[side], (c.row + first + 8) >> 5, scale_stride));
            }
        } else if (c.number < n_tiles) {
            const mma_tile &at = tiles[c.number % KNOWN].tile;
#pragma unroll 1
            for (int q = 0; q < GROUPS; q++)
                copy_odd_rows<W>(at.data[side], at.scale[side], c.row + first, at.end - 1,
                                 job.rows.k, begin / GROUP + c.span * GROUPS + q,
                                 runs + step + 2 * q * ROW, word);
        }
        copies_commit();
    }

    /* ---- Products ---- */

    /* This lane's column of octet j of tile `number`, at the beginning of the part. */
    __device__ const uint8_t *column_of(int32_t number, int j) const {
        return job.x +
               mma_narrow_at(tiles[number % KNOWN].row[8 * j + g], mma_padded(job.rows.k), t) +
               begin / 32 * 512;
    }
    static __device__ __forceinline__ uint4 load_unit(const uint8_t *x, int u) {
        /* Not __ldg: it was written while this kernel waited. */
        return *reinterpret_cast<const uint4 *>(x + u * 512);
    }

    /* sums += the 16 rows in a step of the ring times the columns' span at x; b has it where there is
     * one octet. */
    template <bool FAR>
    __device__ void multiply(uint32_t step, const uint32_t (&scales)[GROUPS][2],
                             const uint8_t *const (&x)[NT], const uint4 (&b)[UNITS], int32_t octets,
                             float (&sums)[NT][4]) const {
#pragma unroll
        for (int q = 0; q < GROUPS; q++) {
            uint4 low = load_shared_128(runs + step + 2 * q * ROW);
            uint4 high = load_shared_128(runs + step + (2 * q + 1) * ROW);
            uint32_t by = mma_multiplier<W>(scales[q][0], FAR);
            uint32_t by8 = mma_multiplier<W>(scales[q][1], FAR);
#pragma unroll
            for (int u = 0; u < GROUP / 32; u++) {
                int unit = q * (GROUP / 32) + u;
                uint32_t a[8];
                mma_decode<W, FAR>(low, high, u, by, by8, a);
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    if (NT > 1 && j >= octets) break;
                    uint4 column = NT == 1 ? b[unit] : load_unit(x[j], unit);
                    mma_bf16(sums[j], a, column.x, column.y);
                    mma_bf16(sums[j], a + 4, column.z, column.w);
                }
            }
        }
    }

    /* The 16 rows in a step; `same`: their FP8 scales are those of the first. */
    __device__ void consume(bool same, uint32_t step, const uint8_t *const (&x)[NT],
                            const uint4 (&b)[UNITS], int32_t octets, float (&sums)[NT][4]) const {
        uint32_t scales[GROUPS][2] = {};
        if (SCALES) {
            bool far = false;
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                uint32_t at = words + step / STEP * WORDS + mma_scale_byte<W>(q, t);
                scales[q][0] = load_shared_8(at);
                scales[q][1] =
                    W == DI_F8_E4M3 && same ? scales[q][0] : load_shared_8(at + WARP * 4);
                far = far || mma_far<W>(scales[q][0]) || mma_far<W>(scales[q][1]);
            }
            if (__any_sync(ALL_LANES, far)) {
                multiply<true>(step, scales, x, b, octets, sums);
                return;
            }
        }
        multiply<false>(step, scales, x, b, octets, sums);
    }

    /* ---- Sums ---- */

    /* The sum of all parts, in their order, of value f of a lane. */
    static __device__ float joined(const float *sums, int32_t parts, int f, int lane) {
        float y = sums[f * WARP + lane];
        for (int32_t p = 1; p < parts; p++) y += sums[(p * SUMS + f) * WARP + lane];
        return y;
    }

    /* Tile `number`; each time other warps have the most to do. */
    __device__ void finish(int32_t number, const mma_tile &at) const {
        int32_t threads = static_cast<int32_t>(blockDim.x), parts = threads / WARP;
        int32_t thread = (static_cast<int32_t>(threadIdx.x) + number % parts * WARP) % threads;
        if constexpr (Job::SIDES == 1) {
            for (int32_t e = thread; e < at.columns * HEIGHT; e += threads) {
                int32_t row = e % HEIGHT, column = e / HEIGHT;
                int f = (row / 16 * NT + column / 8) * 4 + row % 16 / 8 * 2 + column % 2;
                job.store(at, row, column, joined(joint, parts, f, row % 8 * 4 + column % 8 / 2));
            }
        } else { /* a warp a column: lane l has channel l of 32 */
            static_assert(HEIGHT == 32, "the quantiser's block");
            int m = lane_id() / 16, upper = lane_id() / 8 % 2;
            for (int32_t column = thread / WARP; column < at.columns; column += parts) {
                int j = column / 8, i = 2 * upper + column % 2;
                int lane = lane_id() % 8 * 4 + column % 8 / 2;
                int gate = (m * NT + j) * 4 + i, up = ((MT + m) * NT + j) * 4 + i;
                job.finish(at, 0, column, joined(joint, parts, gate, lane),
                           joined(joint, parts, up, lane));
            }
        }
    }

    /* What runs on from tile to tile. */
    struct stream {
        cursor next;    /* to be copied, AHEAD steps before what is multiplied */
        uint32_t step;  /* in the ring: the first of the span to be multiplied */
        uint4 b[UNITS]; /* of its columns, where there is one octet */
    };

    /* The columns of the next span, of this tile or the next. */
    __device__ void load_ahead(stream &s, int32_t number, int32_t span, const uint8_t *x) const {
        if (span + 1 < spans)
            x += UNITS * 512;
        else if (number + 1 < n_tiles)
            x = column_of(number + 1, 0);
#pragma unroll
        for (int u = 0; u < UNITS; u++) s.b[u] = load_unit(x, u);
    }

    /* One span of all rows. */
    __device__ void run_span(stream &s, int32_t number, int32_t span, bool same, int32_t octets,
                             const uint8_t *const (&x)[NT], float (&sums)[TILES][NT][4]) const {
        uint4 b[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) b[u] = s.b[u];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            uint32_t read_last =
                m > 0 ? s.step + (m - 1) * STEP : (s.step > 0 ? s.step : RING) - STEP;
            if ((m + AHEAD) % TILES == 0) advance(s.next);
            copies_wait<AHEAD - 1>();
            copy_rows(s.next, (m + AHEAD) % TILES, read_last);
            consume(same, s.step + m * STEP, x, b, octets, sums[m]);
            if (NT == 1 && m == 0) load_ahead(s, number, span, x[0]);
        }
        s.step = s.step + TILES * STEP < RING ? s.step + TILES * STEP : 0;
    }

    /* All of tile `number`. */
    __device__ void run_tile(int32_t number, stream &s) const {
        const known &at = tiles[number % KNOWN];
        int32_t octets = (at.tile.columns + 7) / 8;
        bool same = at.tile.row % 16 == 0;
        const uint8_t *x[NT];
        float sums[TILES][NT][4] = {};
#pragma unroll
        for (int j = 0; j < NT; j++) x[j] = column_of(number, j);
        int32_t parts = static_cast<int32_t>(blockDim.x) / WARP;
        if (warp_id() == (number + 1) % parts) look_ahead(number + 2);
        for (int32_t span = 0; span < spans; span++) {
            run_span(s, number, span, same, octets, x, sums);
#pragma unroll
            for (int j = 0; j < NT; j++) x[j] += UNITS * 512;
        }
        float *mine = joint + warp_id() * SUMS * WARP + lane_id();
        __syncthreads(); /* the sums before are read */
#pragma unroll
        for (int f = 0; f < SUMS; f++) mine[f * WARP] = sums[f / (4 * NT)][f / 4 % NT][f % 4];
        __syncthreads(); /* also: the tile after the next one is known */
        finish(number, at.tile);
    }

    /* Brings the first tile's columns to the first cache; later ones' are likely there. */
    __device__ void warm_columns() const {
        const uint8_t *x = column_of(0, 0);
        uint32_t nowhere = known_at + NOWHERE + lane_id() * 4;
#pragma unroll 4
        for (int32_t u = 0; u < spans * UNITS; u++) copy_4(nowhere, x + u * 512);
    }

    __device__ void run() const {
        if (warp_id() == 0) look_ahead(0), look_ahead(1);
        __syncthreads();
        stream s = {};
        begin_tile(s.next);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i > 0 && i % TILES == 0) advance(s.next);
            copy_rows(s.next, i % TILES, i * STEP);
        }
        if (Job::STATIC) await_kernels_before();
        if (n_tiles > 0) warm_columns();
        if (NT == 1 && n_tiles > 0)
#pragma unroll
            for (int u = 0; u < UNITS; u++) s.b[u] = load_unit(column_of(0, 0), u);
        for (int32_t number = 0; number < n_tiles; number++) run_tile(number, s);
    }
};

template <typename Job, int MT, int NT>
static __global__ void __launch_bounds__(MMA_PARTS *WARP, 2) mma_narrow_kernel(Job job) {
    extern __shared__ __align__(128) uint8_t mma_shared[];
    if (!Job::STATIC) await_kernels_before();
    let_kernels_begin();
    mma_narrow<Job, MT, NT>(job, mma_shared).run();
}

#endif
