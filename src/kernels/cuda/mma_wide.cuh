/* Products of many columns: bound by the matrix units.
 *
 * A block has two warpgroups that multiply and a warp that copies. It takes a tile of 128 weight rows
 * (64 of each side where there are two) and up to N columns; stages of packed weights and prepared
 * activations come in whole pieces through a ring in shared memory. Weights are decoded in
 * registers, once for all columns, and are the left operand of wgmma m64nNk16 from there,
 * activations the right one from shared memory. While one unit is multiplied the next is decoded.
 * Blocks stay, and the ring runs on from tile to tile. A warpgroup has rows of its own and never waits
 * for the other, which multiplies while this one finishes sums. With two sides a thread has a channel's
 * gate and up.
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

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/mma_group.cuh"
#include "kernels/cuda/mma_jobs.cuh"

/* Three warpgroups; of the last one a warp copies, and the others have its registers. */
static constexpr int WIDE_MULTIPLY = 256, WIDE_THREADS = 384, WIDE_HEIGHT = 128;
static constexpr int WIDE_GROUP = 128; /* threads of a warpgroup */

/* Warpgroup 0 or 1. By constants: a barrier whose number is not known takes all that a block has. */
static __device__ __forceinline__ void group_meets(int group) {
    if (group == 0)
        asm volatile("bar.sync 1, %0;" ::"n"(WIDE_GROUP) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"(WIDE_GROUP) : "memory");
}

template <typename Job, int N, bool SPLIT> struct mma_wide {
    static constexpr di_dtype W = Job::FORMAT;
    static constexpr int GROUP = mma_format<W>::GROUP, HEIGHT = WIDE_HEIGHT / Job::SIDES;
    static constexpr int K = mma_format<W>::CHUNK_K, GROUPS = K / GROUP; /* of a stage */
    static constexpr int UNITS = K / 32;
    static constexpr int STRIPS = WIDE_HEIGHT / MMA_STRIP, OCTETS = N / 8, SUMS = N / 2;
    static_assert(WIDE_HEIGHT == MMA_BLOCK, "a side's strips are neighbours");

    /* A stage: [strip] its chunk; [octet][step][half][column][16 bytes]. */
    static constexpr uint32_t STRIP = mma_format<W>::CHUNK, OCTET = K * 16;
    static constexpr uint32_t WEIGHTS = STRIPS * STRIP, STAGE = WEIGHTS + OCTETS * OCTET;
    static_assert(WEIGHTS % 128 == 0 && STAGE % 128 == 0, "operands are aligned");

    /* Blocks of a processor: two where tiles are small. Those of routed experts of few columns are
     * bound by memory and by decoding, and one waits while the other decodes. */
    static constexpr bool ROUTED = W == DI_FP4_PAIR && !SPLIT;
    static constexpr int BLOCKS = (SPLIT && N <= 64) || (ROUTED && N <= 32) ? 2 : 1;

    /* Registers of a thread of the last warpgroup, and of the others: together no more than three
     * have when the block begins, 168 or 80. */
    static constexpr int FEWER = BLOCKS == 1 ? 40 : SPLIT ? 40 : 32;
    static constexpr int MORE = BLOCKS == 1 ? 232 : SPLIT ? 96 : 104;
    static_assert(FEWER + 2 * MORE <= 3 * (BLOCKS == 1 ? 168 : 80), "there are as many");

    /* What the sums of a column need, which a thread of each warpgroup asks for before the tile is
     * multiplied: columns are never more than threads. */
    using of_column = typename Job::of_column;
    static_assert(N <= WIDE_GROUP, "a thread a column");

    /* Tiles are known from the first of their copies on. They are looked up a warp's width at a time,
     * since each costs several reads of memory one behind the other. */
    static constexpr int MOST_DEPTH = 8, KNOWN = MOST_DEPTH + 2;
    struct shared_part {
        mma_tile tile[KNOWN], looked_up[WARP];
        uint64_t full[MOST_DEPTH], empty[MOST_DEPTH];
        of_column columns[2][SPLIT ? 1 : N]; /* of each warpgroup */
    };

    /* Shared memory: the ring, its barriers and what is known of tiles; sums on their way out, in
     * bf16, of PASS columns. Blocks that have one part of one tile put theirs, joint[column][row],
     * where the ring was. */
    static constexpr uint32_t ALL = (BLOCKS == 2 ? 112 : 226) * 1024;
    static constexpr int PASS = N <= 64 ? N : 64;
    static constexpr int PITCH = WIDE_HEIGHT + 4, JOINT_PASS = N <= 64 ? N : 32;
    static constexpr int ROWS = WIDE_HEIGHT / 2; /* a warpgroup's, of both sides */
    static constexpr uint32_t OUT = SPLIT ? 0 : 2 * PASS * ROWS * 2;
    static constexpr uint32_t PART = (sizeof(shared_part) + 127) / 128 * 128;
    static constexpr int FIT = static_cast<int>((ALL - PART - OUT) / STAGE);
    static constexpr int DEPTH = FIT < MOST_DEPTH ? FIT : MOST_DEPTH;
    static_assert(DEPTH >= 3 && (!SPLIT || DEPTH * STAGE >= JOINT_PASS * PITCH * 4), "room");
    static constexpr uint32_t OUT_AT = DEPTH * STAGE, PART_AT = OUT_AT + OUT;
    static constexpr size_t BYTES = PART_AT + PART;

    const Job &job;
    uint32_t ring; /* a shared address */
    float *joint;  /* where the ring is */
    shared_part *part;
    int32_t n_items, n_tiles; /* in all; of this block */
    int32_t first_stage, end_stage;
    int32_t t, group, own_row; /* own_row and OTHER_ROW further: of this thread's sums */
    bool far;
    uint32_t leads; /* 1 in one lane of a warp */

    /* From the run and the scale of a thread's first row to those of its second: 8 further in its
     * strip, or the same of the other side. */
    static constexpr uint32_t SIDE = WEIGHTS / 2;
    static constexpr int OTHER_ROW = Job::SIDES == 1 ? 8 : HEIGHT;
    static constexpr uint32_t OTHER_RUN = Job::SIDES == 1 ? WARP * 16 : SIDE;
    static constexpr uint32_t OTHER_SCALE = Job::SIDES == 2 ? SIDE : W == DI_FP4_PAIR ? WARP : 4;

    __device__ mma_wide(const Job &j, uint8_t *shared) : job(j), ring(shared_address(shared)) {
        joint = reinterpret_cast<float *>(shared);
        part = reinterpret_cast<shared_part *>(shared + PART_AT);
        int32_t block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
        n_items = j.count(HEIGHT, N);
        n_tiles = n_items > block ? (n_items - block + blocks - 1) / blocks : 0;
        first_stage = 0, end_stage = mma_padded(j.rows.k) / K;
        if (SPLIT) {
            first_stage = static_cast<int32_t>(blockIdx.y) * part_stages();
            if (first_stage + part_stages() < end_stage) end_stage = first_stage + part_stages();
        }
        t = lane_id() % 4, group = warp_id() / 4;
        own_row = warp_id() * (MMA_STRIP / Job::SIDES) + lane_id() / 4;
        far = mma_format<W>::SCALES && *j.rows.far != 0;
        leads = elected_lane();
    }
    __device__ int32_t part_stages() const { return mma_part_length(job.rows.k) / K; }

    /* Where the ring is written or read. */
    struct place {
        int slot;
        uint32_t parity;
        __device__ void next() {
            if (++slot == DEPTH) slot = 0, parity ^= 1;
        }
    };

    /* ---- The warp that copies: a lane a side, and one the activations ---- */

    /* What this lane copies: a piece of every stage. */
    struct piece {
        const uint8_t *from;
        uint32_t to, bytes; /* in a stage; 0: nothing */
        int64_t between;    /* from stage to stage */
    };
    __device__ piece piece_of(const mma_tile &at) const {
        int lane = lane_id();
        if (lane < Job::SIDES) {
            const uint8_t *first = lane == 0 ? at.strips[0] : at.strips[1];
            return piece{first + first_stage * WEIGHTS, lane * SIDE, WEIGHTS / Job::SIDES, WEIGHTS};
        }
        if (lane > Job::SIDES) return piece{NULL, 0, 0, 0};
        int64_t between = job.x_octets() * OCTET;
        return piece{job.x + first_stage * between + job.x_octet(at) * OCTET, WEIGHTS,
                     static_cast<uint32_t>((at.columns + 7) / 8) * OCTET, between};
    }

    /* Tiles from number `first` of this block's on, a lane each. */
    __device__ void look_up(int32_t first) const {
        int64_t item = blockIdx.x + static_cast<int64_t>(first + lane_id()) * gridDim.x;
        __syncwarp(); /* those before are read */
        if (item < n_items)
            part->looked_up[lane_id()] = job.tile(static_cast<int32_t>(item), HEIGHT, N);
        __syncwarp();
    }

    __device__ void copy_all() const {
        place at = {0, 1}; /* the first time round nothing is waited for */
        int known = 0;
        for (int32_t number = 0; number < n_tiles; number++) {
            if (number % WARP == 0) look_up(number);
            const mma_tile &tile = part->looked_up[number % WARP];
            piece mine = piece_of(tile);
            uint32_t all = __reduce_add_sync(ALL_LANES, mine.bytes);
            for (int32_t stage = first_stage; stage < end_stage; stage++) {
                uint32_t full = shared_address(&part->full[at.slot]);
                barrier_wait(shared_address(&part->empty[at.slot]), at.parity);
                if (lane_id() == 0) {
                    if (stage == first_stage) part->tile[known] = tile;
                    barrier_expect(full, all);
                }
                __syncwarp();
                if (mine.bytes > 0)
                    copy_bulk(ring + at.slot * STAGE + mine.to, mine.from, mine.bytes, full);
                mine.from += mine.between;
                at.next();
            }
            known = known + 1 == KNOWN ? 0 : known + 1;
        }
        if (AHEAD && n_tiles > 0 && lane_id() == 0) { /* who multiplies waits for a stage more */
            barrier_wait(shared_address(&part->empty[at.slot]), at.parity);
            barrier_arrive(shared_address(&part->full[at.slot]));
        }
    }

    /* ---- Products ---- */

    /* A warp is done with a stage: one lane says so for all, whose loads are done, since what they loaded
     * has been decoded and they have met in products_wait. */
    __device__ void release(int slot) const {
        if (WARP_ARRIVALS == WARP || leads != 0) barrier_arrive(shared_address(&part->empty[slot]));
    }

    /* In a stage: the run and the scale of own_row, in group 0 of its strip. */
    __device__ uint32_t own_run() const {
        return static_cast<uint32_t>(own_row / MMA_STRIP) * STRIP +
               static_cast<uint32_t>(own_row % MMA_STRIP / 8 * WARP + lane_id()) * 16;
    }
    __device__ uint32_t own_scale() const {
        int upper = own_row % MMA_STRIP / 8;
        return static_cast<uint32_t>(own_row / MMA_STRIP) * STRIP + mma_format<W>::RUNS +
               static_cast<uint32_t>(W == DI_FP4_PAIR ? upper * WARP + lane_id()
                                                      : upper * 4 + t / 2);
    }

    /* What a thread has of a stage's weights, and what they are multiplied by. */
    struct packed {
        uint4 lower[GROUPS], upper[GROUPS];
        uint32_t by[GROUPS], by8[GROUPS];
    };
    __device__ void load_runs(uint32_t stage, int q, packed &w) const {
        uint32_t run = stage + own_run() + 2 * q * WARP * 16;
        w.lower[q] = load_shared_128(run);
        w.upper[q] = load_shared_128(run + OTHER_RUN);
    }
    template <bool FAR> __device__ void load_group(uint32_t stage, int q, packed &w) const {
        load_runs(stage, q, w);
        if constexpr (mma_format<W>::SCALES) {
            uint32_t scales = stage + own_scale() + 2 * q; /* FP4 has one group */
            uint32_t by = load_shared_8(scales), by8 = load_shared_8(scales + OTHER_SCALE);
            bool is_far = AHEAD ? FAR : far;
            w.by[q] = is_far ? mma_multiplier<W, true>(by) : mma_multiplier<W, false>(by);
            w.by8[q] = is_far ? mma_multiplier<W, true>(by8) : mma_multiplier<W, false>(by8);
        }
    }
    __device__ uint32_t stage_of(int slot) const {
        return ring + static_cast<uint32_t>(slot) * STAGE;
    }
    /* The activations there, as group_mma takes them. From one lane: the compiler sees that all have the
     * same, as descriptors must be, and reckons further ones beside the loop's other work. */
    __device__ uint32_t operand_of(int slot) const {
        uint32_t first = group_operand(ring + WEIGHTS);
        return __shfl_sync(ALL_LANES, first + static_cast<uint32_t>(slot) * (STAGE / 16), 0);
    }
    __device__ void await(const place &at) const {
        barrier_wait(shared_address(&part->full[at.slot]), at.parity);
    }

    /* Whether weights are read from shared memory a stage ahead, and the loop is there twice, for far
     * scales and for others: what takes registers that two blocks do not have. */
    static constexpr bool AHEAD = mma_format<W>::SCALES && BLOCKS == 1;

    template <bool FAR>
    __device__ void decode_unit(int unit, const packed &w, uint32_t (&a)[8]) const {
        int q = unit / (GROUP / 32), u = unit % (GROUP / 32);
        if (AHEAD ? FAR : far)
            mma_decode<W, true>(w.lower[q], w.upper[q], u, w.by[q], w.by8[q], a);
        else
            mma_decode<W, false>(w.lower[q], w.upper[q], u, w.by[q], w.by8[q], a);
    }

    /* A stage, in units of two steps, for M columns; `before`: the slot of the stage before, which is
     * given back once its products are done, or -1. w: its weights, and then, if AHEAD, those of the
     * next stage, of whatever tile: half a stage early, since a warpgroup by itself has just the time of
     * a unit's products to decode the next one, and all of it while the other finishes sums. Behind the
     * last stage of all it reads what is in the ring, which copy_all lets it, and nobody uses that. */
    template <int M, bool FAR>
    __device__ void multiply_stage(const place &at, int before, packed &w, uint32_t (&a)[2][8],
                                   float (&sums)[M / 2]) const {
        uint32_t stage = stage_of(at.slot), x = operand_of(at.slot);
        place after = at;
        after.next();
        uint32_t next = stage_of(after.slot);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            int q = unit / (GROUP / 32);
            bool first = unit % (GROUP / 32) == 0;
            uint32_t(&mine)[8] = a[unit % 2];
            if (!AHEAD && mma_format<W>::SCALES && first) load_group<FAR>(stage, q, w);
            products_wait<1>(); /* the unit before the last one is done with its registers */
            if (unit == 1 && before >= 0) release(before);
            /* BF16: stored values are operands as they are: not before. */
            if (W == DI_BF16) load_runs(stage, q, w);
            decode_unit<FAR>(unit, w, mine);
            products_begin();
#pragma unroll
            for (int s = 0; s < 2; s++)
                group_mma<M, OCTET>(sums, mine + 4 * s, x + (2 * unit + s) * 16);
            products_commit();
            if (AHEAD && unit == UNITS / 2 - 1) await(after);
            if (AHEAD && (unit + 1) % (GROUP / 32) == 0) load_group<FAR>(next, q, w);
        }
    }

    /* sums += products of the stage there. Returns its slot. */
    template <int M, bool FAR>
    __device__ __forceinline__ int multiply_next(place &at, int before, packed &w,
                                                 uint32_t (&a)[2][8], float (&sums)[M / 2]) const {
        int slot = at.slot;
        if (!AHEAD) await(at);
        multiply_stage<M, FAR>(at, before, w, a, sums);
        at.next();
        return slot;
    }

    /* sums = products of so many stages. The first stands by itself: the compiler sees that its sums are
     * 0, and begins them without writing so. Two blocks have no registers for that. */
    template <int M, bool FAR>
    __device__ void multiply_part(int32_t stages, place &at, packed &w,
                                  float (&sums)[M / 2]) const {
        static_assert(K >= 64 && K % 64 == 0, "units of a stage take turns in two registers");
        uint32_t a[2][8] = {};
#pragma unroll
        for (int i = 0; i < M / 2; i++) sums[i] = 0.0f;
        int before = -1;
        if (BLOCKS == 1) before = multiply_next<M, FAR>(at, before, w, a, sums), stages--;
        for (; stages > 0; stages--) before = multiply_next<M, FAR>(at, before, w, a, sums);
        products_wait<0>();
        hold(sums);
        release(before);
    }

    /* The parts of K from 0 each, added in their order; the block's one part where it has one. */
    template <int M, bool FAR>
    __device__ void multiply_tile(place &at, packed &w, float (&total)[SUMS]) const {
        int32_t each = SPLIT ? end_stage - first_stage : part_stages();
        int32_t left = end_stage - first_stage;
#pragma unroll
        for (int i = 0; i < SUMS; i++) total[i] = -0.0f; /* plus x is x, also if that is -0 */
        do {
            float sums[M / 2];
            multiply_part<M, FAR>(left < each ? left : each, at, w, sums);
#pragma unroll
            for (int i = 0; i < M / 2; i++) total[i] = SPLIT ? sums[i] : total[i] + sums[i];
            left -= each;
        } while (!SPLIT && left > 0);
    }

    /* Narrower instructions where a tile is not full: 0 where there are none. Experts' tiles seldom
     * are; below 64 columns decoding is what takes time, unless tiles have no more than 32. Of a matrix
     * only the last tile is not: every width has left operands in registers of its own that nothing else
     * may use, and decoding needs them. */
    static __host__ __device__ constexpr int narrower(int m) {
        if (!ROUTED) return 0;
        return N == 32 && m > 8 ? m / 2 : N > 64 && m > 64 ? m - 32 : 0;
    }
    template <int M>
    __device__ void multiply_columns(int32_t columns, place &at, packed &w,
                                     float (&total)[SUMS]) const {
        constexpr int LESS = narrower(M);
        if constexpr (LESS > 0)
            if (columns <= LESS) {
                multiply_columns<LESS>(columns, at, w, total);
                return;
            }
        multiply_tile<M, false>(at, w, total);
    }

    /* ---- Sums of whole tiles ---- */

    /* Where 16 bytes, 8 rows, of a column are on their way out: places are exchanged within its 128
     * bytes, so that neither those of eight columns nor those of eight neighbours meet in a bank. Of two
     * sides, 8 channels' are neighbours. */
    static constexpr int CHUNKS = ROWS / 8;
    __device__ uint32_t out_place(int column, int chunk) const {
        return ring + OUT_AT +
               static_cast<uint32_t>((group * PASS + column) * ROWS * 2 +
                                     (chunk ^ column % 8) * 16);
    }
    __device__ void put_column(of_column mine) const {
        int thread = static_cast<int>(threadIdx.x) % WIDE_GROUP;
        if (thread < N) part->columns[group][thread] = mine;
    }

    /* PASS columns from `first` on to their places, in bf16, and before them what all need. */
    __device__ __forceinline__ void put_pass(int first, const float (&total)[SUMS],
                                             of_column mine) const {
        group_meets(group); /* all have read what was here before */
        if (first == 0) put_column(mine);
#pragma unroll
        for (int j = 0; j < PASS / 8; j += 2) {
            const float *y = total + first / 2 + 4 * j;
            int column = 8 * j + lane_id() / 16 * 8 + lane_id() % 8;
            store_matrices(out_place(column, warp_id() % 4 * 2 + lane_id() / 8 % 2),
                           pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]),
                           pack_bf16(y[6], y[7]));
        }
        group_meets(group);
    }

    /* One matrix: rows as they come. Short loops: what runs once takes long to be fetched. All threads
     * take as many turns: behind loops that some leave before others, ptxas has no uniform registers for
     * the ring. */
    __device__ void store_rows(const mma_tile &at, const float (&total)[SUMS],
                               of_column mine) const {
        int thread = static_cast<int>(threadIdx.x) % WIDE_GROUP, chunk = thread % CHUNKS;
        of_column *columns = part->columns[group];
#pragma unroll
        for (int first = 0; first < N; first += PASS) {
            if (first >= at.columns) break;
            put_pass(first, total, mine);
            int left = at.columns - first < PASS ? at.columns - first : PASS;
            if (Job::WHOLE_OCTETS) left = (left + 7) / 8 * 8;
#pragma unroll 1
            for (int turn = 0; turn < left; turn += WIDE_GROUP / CHUNKS) {
                int i = turn + thread / CHUNKS;
                if (i < left)
                    job.store8(at, group * ROWS + chunk * 8, columns[first + i],
                               load_shared_128(out_place(i, chunk)));
            }
        }
    }

    /* The same in float32, from where the sums are: eight lanes have a column's neighbours. */
    __device__ void store_floats(const mma_tile &at, const float (&total)[SUMS]) const {
#pragma unroll
        for (int f = 0; f < SUMS; f++) {
            int column = f / 4 * 8 + 2 * t + f % 2, row = own_row + f % 4 / 2 * OTHER_ROW;
            if (column < at.columns) job.store_float(at, row, job.column_at(at, column), total[f]);
        }
    }

    /* Gate and up, to h, which is quantised in blocks of 32 channels, those of a warpgroup. */
    __device__ void store_h(const mma_tile &at, const float (&total)[SUMS], of_column mine) const {
        constexpr int CHANNELS = ROWS / 2, EIGHTS = CHANNELS / 8, EACH = WIDE_GROUP / EIGHTS;
        int thread = static_cast<int>(threadIdx.x) % WIDE_GROUP, eight = thread % EIGHTS;
        const of_column *columns = part->columns[group];
#pragma unroll
        for (int first = 0; first < N; first += PASS) {
            if (first >= at.columns) break;
            put_pass(first, total, mine);
            int left = at.columns - first < PASS ? at.columns - first : PASS;
#pragma unroll 1
            for (int turn = 0; turn < left; turn += EACH) {
                int i = turn + thread / EIGHTS;
                uint4 gate = load_shared_128(out_place(i, 2 * eight));
                uint4 up = load_shared_128(out_place(i, 2 * eight + 1));
                job.store_h8(at, group * CHANNELS + eight * 8, first + i, columns[first + i], gate,
                             up);
            }
        }
    }

    /* ---- Sums of tiles that a cluster has ---- */

    /* joint[column][row] of JOINT_PASS columns. */
    __device__ void put_sums(const float (&total)[SUMS], int pass) const {
#pragma unroll
        for (int f = 0; f < SUMS; f++) {
            int column = f / 4 * 8 + f % 2, i = f % 4 / 2 * OTHER_ROW;
            if (column / JOINT_PASS != pass) continue;
            joint[(column % JOINT_PASS + 2 * t) * PITCH + own_row + i] = total[f];
        }
    }

    /* Four neighbours: the parts in their order, from the cluster's blocks. */
    static __device__ float4 joined4(const float *y) {
        float4 sum = cluster_read4(y, 0);
        for (int p = 1; p < static_cast<int>(gridDim.y); p++) {
            float4 more = cluster_read4(y, p);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        return sum;
    }

    /* A warp a column, or with two sides a lane eight channels of one. Every block joins and stores
     * its share of the sums. */
    __device__ void store_sums(const mma_tile &at, int pass) const {
        int parts = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
        int32_t first = pass * JOINT_PASS;
        int32_t columns = at.columns - first < JOINT_PASS ? at.columns - first : JOINT_PASS;
        if constexpr (Job::SIDES == 1) {
            constexpr int WARPS = WIDE_MULTIPLY / WARP;
            int mine = warp_id() + WARPS * (rank + parts * lane_id()); /* lane i: of the i-th */
            int64_t row = mine < columns ? job.column_at(at, first + mine) : 0;
            for (int i = 0; (mine = warp_id() + WARPS * (rank + parts * i)) < columns; i++)
                job.store4(at, 4 * lane_id(), __shfl_sync(ALL_LANES, row, i),
                           joined4(joint + mine * PITCH + 4 * lane_id()));
        } else {
            constexpr int EIGHTS = HEIGHT / 8;
            for (int e = static_cast<int>(threadIdx.x) + WIDE_MULTIPLY * rank;
                 e / WARP * WARP < columns * EIGHTS; e += WIDE_MULTIPLY * parts) {
                int column = e / EIGHTS, row = e % EIGHTS * 8;
                const float *y = joint + (column < columns ? column : 0) * PITCH + row;
                float4 v[4] = {joined4(y), joined4(y + 4), joined4(y + HEIGHT),
                               joined4(y + HEIGHT + 4)};
                job.finish8(at, row, first + column, v);
            }
        }
    }

    __device__ void store_joint(const mma_tile &at, const float (&total)[SUMS]) const {
#pragma unroll 1
        for (int pass = 0; pass * JOINT_PASS < at.columns; pass++) {
            cluster_sync_aligned(); /* all are done with their rings, or with reading sums */
            put_sums(total, pass);
            cluster_sync_aligned();
            store_sums(at, pass);
        }
    }

    /* ---- Tiles ---- */

    __device__ of_column find_column(const mma_tile &at) const {
        int32_t column = static_cast<int32_t>(threadIdx.x) % WIDE_GROUP;
        bool live = Job::WHOLE_OCTETS || column < at.columns;
        return !SPLIT && live ? job.column_at(at, column) : of_column{};
    }
    __device__ void store_tile(const mma_tile &at, const float (&total)[SUMS],
                               of_column mine) const {
        if constexpr (SPLIT) {
            store_joint(at, total);
        } else if constexpr (Job::SIDES == 2) {
            store_h(at, total, mine);
        } else {
            if constexpr (Job::FLOATS)
                if (at.to_f) {
                    store_floats(at, total);
                    return;
                }
            store_rows(at, total, mine);
        }
    }

    __device__ void multiply_all() const {
        place at = {0, 0};
        packed w = {};
        int known = 0;
        if (AHEAD && n_tiles > 0) {
            await(at);
#pragma unroll
            for (int q = 0; q < GROUPS; q++)
                if (far)
                    load_group<true>(stage_of(at.slot), q, w);
                else
                    load_group<false>(stage_of(at.slot), q, w);
        }
        for (int32_t number = 0; number < n_tiles; number++) {
            float total[SUMS];
            if (!AHEAD) await(at); /* the tile is known */
            const mma_tile &tile = part->tile[known];
            of_column mine = find_column(tile);
            if (AHEAD && far) /* seldom */
                multiply_tile<N, AHEAD>(at, w, total);
            else
                multiply_columns<N>(tile.columns, at, w, total);
            store_tile(tile, total, mine);
            known = known + 1 == KNOWN ? 0 : known + 1;
        }
    }

    __device__ void make_barriers() const {
        if (threadIdx.x != 0) return;
        for (int i = 0; i < DEPTH; i++) {
            barrier_init(shared_address(&part->full[i]), 1);
            barrier_init(shared_address(&part->empty[i]), WIDE_MULTIPLY / WARP * WARP_ARRIVALS);
        }
        barriers_made();
    }

    __device__ void run() const {
        make_barriers();
        __syncthreads();
        if (threadIdx.x >= WIDE_MULTIPLY) {
            fewer_registers<FEWER>();
            if (warp_id() == WIDE_MULTIPLY / WARP) copy_all();
        } else {
            more_registers<MORE>();
            multiply_all();
            if constexpr (SPLIT) cluster_sync_aligned(); /* no block ends while others read */
        }
    }
};

template <typename Job, int N, bool SPLIT>
static __global__ void __launch_bounds__(WIDE_THREADS, mma_wide<Job, N, SPLIT>::BLOCKS)
    mma_wide_kernel(Job job) {
    extern __shared__ __align__(128) uint8_t mma_shared[];
    await_kernels_before();
    let_kernels_begin();
    mma_wide<Job, N, SPLIT>(job, mma_shared).run();
}

#endif
