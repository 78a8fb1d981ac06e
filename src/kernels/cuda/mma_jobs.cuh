/* What the kernels of products work through: tiles of weight rows times tiles of columns, where a
 * column is a row of activations. mma_narrow.cuh and mma_wide.cuh know how to multiply, a job knows
 * where operands lie and what becomes of the sums.
 *
 * A job has: FORMAT, of its weights; SIDES, matrices whose rows are taken side by side (gate and
 * up); STATIC, whether its tiles are known before earlier kernels are done; AS_STORED, whether rows
 * of activations are read as they lie; rows, what all stored rows have in common; count and tile,
 * of tiles of some height and width; x_row(tile, column), the prepared row (AS_STORED: the value
 * that it begins with), or x_octet(tile), the first eight of wide ones, of x_octets() in all; and
 * what becomes of sums. One side: store of one; with column_at, which says where a column goes,
 * store4 of four, store8 of eight that are bf16 (WHOLE_OCTETS: of all columns of eight),
 * store_float where FLOATS and the tile say so. Two: finish and finish8; with column_at, which says
 * a column's weight, store_h8 of eight of both that are bf16. COLUMNS: narrow products ask
 * column_at before a tile's turn and give what it says to finish, or to store_at in place of store.
 * PAIRED: of two matrices of one shape narrow products finish a tile of each together. PICKS: each
 * block of a narrow product makes its lists, from a pick_source that is there when the kernel begins
 * or, where it is not STATIC, has waited.
 */
#ifndef DI_KERNELS_CUDA_MMA_JOBS_CUH
#define DI_KERNELS_CUDA_MMA_JOBS_CUH

#include "kernels/cuda/mma_order.cuh"
#include "kernels/cuda/rows.cuh"

typedef struct mma_tile {
    const uint8_t *strips[2]; /* the first chunk of its first strip, of each side */
    int32_t row, end;         /* the tile's first row in its group; rows of that */
    int32_t column, columns;  /* first; how many there are */
    int32_t which;            /* group or expert */
    /* Of a stored matrix's products: where they go, what the tile's first row is there. */
    void *out;
    int64_t out_stride;
    int32_t out_row;
    bool to_f;
} mma_tile;

/* Everything about stored rows that is one for a whole job. */
typedef struct mma_rows {
    int32_t k;
    uint64_t block_bytes;
    const uint32_t *far; /* not 0: some matrix has scales that mma_far says so of */
} mma_rows;

static inline mma_rows mma_rows_of(const di_stream *s, di_dtype dtype, int32_t k) {
    return mma_rows{k, mma_block_bytes(dtype, k), s->far};
}

/* The first chunk of the strip at `row` of a group of rows whose first block is number `block`. */
template <di_dtype W>
static __device__ __forceinline__ const uint8_t *
mma_strip(const mma_rows &rows, const uint8_t *matrix, int32_t block, int32_t row) {
    return matrix + static_cast<uint64_t>(block + row / MMA_BLOCK) * rows.block_bytes +
           row % MMA_BLOCK / MMA_STRIP * mma_format<W>::CHUNK;
}

/* Which of `down` tiles of weights and `across` of columns is i-th. Eight tiles of columns go with
 * a tile of weights before the next: together they fit the second cache. Returns the tile of
 * weights. */
static __device__ __forceinline__ int32_t mma_in_bands(int32_t i, int32_t down, int32_t across,
                                                       int32_t *column) {
    constexpr int BAND = 8;
    int32_t band = i / (down * BAND), at = i - band * down * BAND;
    int32_t in_band = across - band * BAND < BAND ? across - band * BAND : BAND;
    *column = band * BAND + at % in_band;
    return at / in_band;
}

/* Four values, of which `left` are there. */
static __device__ __forceinline__ void mma_store4(__nv_bfloat16 *out, int32_t left, float4 y) {
    if (left >= 4 && reinterpret_cast<uintptr_t>(out) % 8 == 0) {
        *reinterpret_cast<uint2 *>(out) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
        return;
    }
    const float v[4] = {y.x, y.y, y.z, y.w};
    for (int i = 0; i < 4; i++)
        if (i < left) out[i] = __float2bfloat16_rn(v[i]);
}

/* Eight that are bf16. */
static __device__ __forceinline__ void mma_store8(__nv_bfloat16 *out, int32_t left, uint4 y) {
    if (left >= 8 && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
        *reinterpret_cast<uint4 *>(out) = y;
        return;
    }
    const uint32_t words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < left)
            out[i] = __ushort_as_bfloat16(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
}

/* ---- A stored matrix, or groups of its rows, times rows of activations; or two matrices ---- */

typedef struct mma_matrix {
    const uint8_t *data;
    int32_t n; /* rows of a group */
    bool to_f;
    void *out;
    int64_t out_stride;
} mma_matrix;

template <di_dtype W> struct mma_linear {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 1;
    static constexpr bool STATIC = true, AS_STORED = false, FLOATS = true, COLUMNS = false;
    static constexpr bool WHOLE_OCTETS = false;
    static constexpr bool PAIRED = false, PICKS = false;
    mma_rows rows;
    const uint8_t *x;
    int32_t groups, n_rows;
    /* n of the second is 0 where there is one, and groups 1 where there are two. */
    mma_matrix of[2];

    /* Tiles of `height` weight rows and `width` columns. */
    static __host__ __device__ int32_t over(int32_t n, int each) { return (n + each - 1) / each; }
    __host__ __device__ int32_t count(int height, int width) const {
        int32_t down = groups * over(of[0].n, height) + over(of[1].n, height);
        return down * over(n_rows, width);
    }
    __device__ mma_tile tile(int32_t i, int height, int width) const {
        int32_t across = over(n_rows, width);
        int32_t of_first = groups * over(of[0].n, height) * across, matrix = i >= of_first;
        if (matrix) i -= of_first;
        mma_matrix m = matrix ? of[1] : of[0];
        int32_t n = m.n, down = over(n, height);
        int32_t group = i / (down * across), column;
        int32_t row = mma_in_bands(i % (down * across), down, across, &column) * height;
        column *= width;
        return mma_tile{{mma_strip<W>(rows, m.data, group * mma_blocks(n), row), NULL},
                        row,
                        n,
                        column,
                        n_rows - column < width ? n_rows - column : width,
                        group,
                        m.out,
                        m.out_stride,
                        group * n + row,
                        m.to_f};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const {
        return t.which * mma_rows8(n_rows) + t.column + column;
    }
    __device__ int64_t x_octet(const mma_tile &t) const { return x_row(t, 0) / 8; }
    __device__ int64_t x_octets() const { return groups * mma_rows8(n_rows) / 8; }
    /* One sum. */
    __device__ void store(const mma_tile &t, int32_t row, int32_t column, float y) const {
        if (t.row + row >= t.end || column >= t.columns) return;
        int64_t at = (t.column + column) * t.out_stride + t.out_row + row;
        if (t.to_f)
            static_cast<float *>(t.out)[at] = y;
        else
            static_cast<__nv_bfloat16 *>(t.out)[at] = __float2bfloat16_rn(y);
    }
    /* Where the tile's first row of a column is, and neighbours from `row`, a multiple of them,
     * on. */
    typedef int64_t of_column;
    __device__ of_column column_at(const mma_tile &t, int32_t column) const {
        return (t.column + column) * t.out_stride + t.out_row;
    }
    __device__ void store8(const mma_tile &t, int32_t row, of_column at, uint4 y) const {
        mma_store8(static_cast<__nv_bfloat16 *>(t.out) + at + row, t.end - t.row - row, y);
    }
    __device__ void store_float(const mma_tile &t, int32_t row, of_column at, float y) const {
        if (t.row + row < t.end) static_cast<float *>(t.out)[at + row] = y;
    }
    __device__ void store4(const mma_tile &t, int32_t row, of_column at, float4 y) const {
        if (!t.to_f) {
            mma_store4(static_cast<__nv_bfloat16 *>(t.out) + at + row, t.end - t.row - row, y);
            return;
        }
        const float v[4] = {y.x, y.y, y.z, y.w};
        for (int i = 0; i < 4; i++)
            if (t.row + row + i < t.end) static_cast<float *>(t.out)[at + row + i] = v[i];
    }
};

/* The same for rows that are not quantised, where they lie: a run is as it is stored in all formats
 * without pairs. Few rows; of groups in a row; K a multiple of MMA_K; all of it aligned to 16
 * bytes. */
template <di_dtype W> struct mma_linear_stored : mma_linear<W> {
    static constexpr bool AS_STORED = true;
    int64_t stride;
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const {
        return (t.column + column) * stride + static_cast<int64_t>(t.which) * this->rows.k;
    }
};

/* q8 of a warp's 32 values, one each, into the row of the next product's input. */
static __device__ __forceinline__ void mma_store_q8(const mma_order &order, uint8_t *out,
                                                    int64_t row, int32_t first, int32_t padded,
                                                    float value) {
    uint8_t scale, code = warp_q8(value, &scale);
    reinterpret_cast<__nv_bfloat16 *>(out)[mma_value_at(order, row, first + lane_id(), padded)] =
        __float2bfloat16_rn(di_e4m3_decode(code) * di_e8m0_decode(scale));
}

/* What comes out is read by another product alone, quantised: rows are made ready for it. Tiles are
 * of the quantiser's 32 rows, of which groups have a whole number. */
template <di_dtype W> struct mma_linear_low : mma_linear_stored<W> {
    mma_order order;
    uint8_t *ready;
    int32_t padded; /* of its rows */
    __device__ void store(const mma_tile &t, int32_t row, int32_t column, float y) const {
        (void)row; /* the lane */
        mma_store_q8(order, ready, t.column + column, t.out_row, padded, round_a<__nv_bfloat16>(y));
    }
};

/* The same of many rows: eight neighbours at once, in whole warps, also of columns that fill up the
 * last eight, which are zeros. */
template <di_dtype W> struct mma_linear_made : mma_linear<W> {
    static constexpr bool FLOATS = false, WHOLE_OCTETS = true;
    uint8_t *ready;
    typedef int32_t of_column;
    __device__ of_column column_at(const mma_tile &t, int32_t column) const {
        return t.column + column;
    }
    __device__ void store8(const mma_tile &t, int32_t row, of_column column, uint4 y) const {
        float v[8];
        bf16_words(y, v);
        mma_store_wide<W>(mma_rows8(this->n_rows) / 8, ready, column, t.out_row + row,
                          t.row + row < t.end, v);
    }
};

/* RoPE of what comes out, heads side by side, at the rows' positions: those that are dead stay as
 * they are. Tiles of 32 rows, of which a head has a whole number, a lane each. */
typedef struct mma_turn {
    const int32_t *pos;   /* of the columns */
    const float2 *angles; /* [column][dims / 2], cos and sin; written by the kernel before */
    int32_t head_dim, dims;
} mma_turn;
template <di_dtype W> struct mma_linear_turned : mma_linear<W> {
    mma_turn turn;
    __device__ void store(const mma_tile &t, int32_t row, int32_t column, float y) const {
        int32_t at = (t.out_row + row) % turn.head_dim - (turn.head_dim - turn.dims);
        int32_t of = t.column + column;
        float mine = round_a<__nv_bfloat16>(y), other = __shfl_xor_sync(ALL_LANES, mine, 1);
        if (at >= 0) {
            int32_t pos = turn.pos[of];
            float2 angle = turn.angles[of * (turn.dims / 2) + at / 2]; /* asked for with pos */
            if (pos < 0) angle = make_float2(1, 0);
            mine = at % 2 == 0 ? rotated(make_float2(mine, other), angle).x
                               : rotated(make_float2(other, mine), angle).y;
        }
        mma_linear<W>::store(t, row, column, mine);
    }
};

/* ---- Experts ---- */

/* The live picks, sorted by expert and, within one, by row. All in device memory. */
typedef struct pick_tile {
    int32_t expert, first, count; /* slots first.. of the sorted picks */
} pick_tile;
typedef struct pick_lists {
    int32_t width;    /* most picks of a tile */
    int32_t align;    /* slots of every expert begin at multiples of this */
    int32_t *n_tiles; /* of at most `width` picks of one expert */
    int32_t *n_slots; /* those between experts included */
    pick_tile *tiles;
    int32_t *pick;  /* of a slot: row * top_k + i; -1: between experts */
    int32_t *place; /* of a slot: row * top_k + the number of the row's picks of lower experts */
} pick_lists;

/* What picks are sorted from: [n_rows * top_k], the experts; rows that are dead, or NULL. */
typedef struct pick_source {
    const int32_t *picks, *pos;
    int32_t n_rows, top_k;
} pick_source;

/* Of pick i; -1 for one that is not there or dead. */
static __device__ __forceinline__ int32_t pick_expert(const pick_source &from, int32_t i,
                                                      int32_t end) {
    if (i >= end) return -1;
    int32_t expert = __ldcg(from.picks + i); /* not behind the other load */
    bool live = from.pos == NULL || __ldcg(from.pos + i / from.top_k) >= 0;
    return live ? expert : -1;
}

/* Few picks, sorted by one block, each by a thread that counts those before it. N: at most so many,
 * for each of which there is a place: its expert, NO_EXPERT for a dead one; its slot and its tile's
 * picks where it begins one. */
static constexpr int32_t NO_EXPERT = INT32_MAX;
template <int N> struct pick_sort { int32_t experts[N], begins[N], counts[N]; };
template <int N>
static __device__ void sort_few(const pick_source &from, const pick_lists &lists,
                                pick_sort<N> &at) {
    int32_t n = from.n_rows * from.top_k, each = static_cast<int32_t>(blockDim.x);
    int32_t thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = thread; i < n; i += each) {
        int32_t mine = pick_expert(from, i, n);
        at.experts[i] = mine < 0 ? NO_EXPERT : mine;
    }
    __syncthreads();
    for (int32_t i = thread; i < n; i += each) {
        int32_t mine = at.experts[i], slot = 0, first = 0, total = 0, below = 0;
#pragma unroll 4
        for (int32_t j = 0; j < n; j++) {
            int32_t other = at.experts[j];
            first += other < mine;
            slot += other < mine || (other == mine && j < i);
            total += other == mine;
        }
        bool live = mine != NO_EXPERT, begin = live && (slot - first) % lists.width == 0;
        int32_t left = total - (slot - first), row = i / from.top_k * from.top_k;
        at.begins[i] = begin ? slot : NO_EXPERT;
        at.counts[i] = left < lists.width ? left : lists.width;
        if (!live) continue;
        for (int32_t k = 0; k < from.top_k; k++) below += at.experts[row + k] < mine;
        lists.pick[slot] = i;
        lists.place[slot] = row + below;
    }
    __syncthreads();
    for (int32_t i = thread; i < n; i += each) {
        int32_t slot = at.begins[i], tile = 0, tiles = 0;
        if (slot == NO_EXPERT && i > 0) continue;
        for (int32_t j = 0; j < n; j++) {
            tile += at.begins[j] < slot;
            tiles += at.begins[j] != NO_EXPERT;
        }
        if (slot != NO_EXPERT) lists.tiles[tile] = pick_tile{at.experts[i], slot, at.counts[i]};
        if (i == 0) *lists.n_tiles = tiles;
    }
}

/* Lists that every block of a narrow product makes for itself, in shared memory: that costs less
 * than a kernel that all of them wait for. */
static constexpr int MMA_BLOCK_PICKS = 64;
typedef struct block_lists {
    pick_sort<MMA_BLOCK_PICKS> sort;
    int32_t n_tiles, pick[MMA_BLOCK_PICKS], place[MMA_BLOCK_PICKS];
    pick_tile tiles[MMA_BLOCK_PICKS];
} block_lists;
/* All threads of the block call. */
static __device__ __forceinline__ void make_lists(const pick_source &from, pick_lists &lists,
                                                  block_lists &own) {
    lists.n_tiles = &own.n_tiles, lists.tiles = own.tiles;
    lists.pick = own.pick, lists.place = own.place;
    sort_few(from, lists, own.sort);
    __syncthreads();
}

/* A number of lists: of the block's own, or past the first cache. */
template <bool OWN> static __device__ __forceinline__ int32_t listed(const int32_t *at) {
    return OWN ? *at : __ldcg(at);
}

/* a(weight silu(gate) up); rounded to bf16, by the device's own powers. */
template <typename A>
static __device__ __forceinline__ A swiglu_value(float gate, float up, double limit, float weight) {
    if (limit > 0) {
        float most = static_cast<float>(limit);
        gate = fminf(gate, most);
        up = fminf(fmaxf(up, -most), most);
    }
    float of_gate = sizeof(A) == 2 ? fast_sigmoid(gate) : sigmoid(gate);
    return from_float<A>(weight * (gate * of_gate * up));
}

/* h of two matrices of one shape, gate and up: h = q8(a(silu(w1 x) * (w3 x))), the rows of the next
 * product. Tiles of 32 rows. */
template <di_dtype W> struct mma_linear_gated : mma_linear<W> {
    static constexpr bool PAIRED = true;
    double limit;
    mma_order order;
    uint8_t *h;
    int32_t padded; /* of its rows */
    __device__ void finish(const mma_tile &t, int32_t column, float gate, float up) const {
        __nv_bfloat16 value = swiglu_value<__nv_bfloat16>(round_a<__nv_bfloat16>(gate),
                                                          round_a<__nv_bfloat16>(up), limit, 1.0f);
        mma_store_q8(order, h, t.column + column, t.row, padded, to_float(value));
    }
};

/* h = q8(a([weight] silu(w1 x) * (w3 x))): routed experts, or with `experts` NULL one for all rows
 * whose matrices are data. */
template <di_dtype W, bool OWN = false> struct mma_expert_in {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 2;
    static constexpr bool STATIC = false, AS_STORED = false, COLUMNS = true, PAIRED = false;
    static constexpr bool WHOLE_OCTETS = false, PICKS = OWN;
    mma_rows rows;
    const di_expert *experts;
    const uint8_t *data[2];
    const uint8_t *x;
    int32_t inner, n_rows, top_k;
    bool by_slot; /* a row of x is a slot's, not a row's */
    pick_lists lists;
    const float *weights; /* [n_rows * top_k], or NULL */
    double limit;
    mma_order h_order;
    uint8_t *h;       /* a row a slot */
    pick_source from; /* OWN */

    __device__ int32_t count(int height, int width) const {
        int32_t across = experts == NULL ? (n_rows + width - 1) / width : *lists.n_tiles;
        return across * ((inner + height - 1) / height);
    }
    __device__ mma_tile tile(int32_t i, int height, int width) const {
        int32_t down = (inner + height - 1) / height;
        if (experts == NULL) {
            int32_t across = (n_rows + width - 1) / width, column;
            int32_t row = mma_in_bands(i, down, across, &column) * height;
            column *= width;
            return tile_of(data[0], data[1], row, column,
                           n_rows - column < width ? n_rows - column : width, 0);
        }
        pick_tile t = lists.tiles[i / down];
        const di_expert &e = experts[t.expert];
        return tile_of(cuda_at<const uint8_t>(e.w1), cuda_at<const uint8_t>(e.w3),
                       i % down * height, t.first, t.count, t.expert);
    }
    __device__ mma_tile tile_of(const uint8_t *w1, const uint8_t *w3, int32_t row, int32_t column,
                                int32_t columns, int32_t which) const {
        return mma_tile{{mma_strip<W>(rows, w1, 0, row), mma_strip<W>(rows, w3, 0, row)},
                        row,
                        inner,
                        column,
                        columns,
                        which};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const {
        int32_t slot = t.column + column;
        return experts == NULL || by_slot ? slot : lists.pick[slot] / top_k;
    }
    __device__ int64_t x_octet(const mma_tile &t) const { return t.column / 8; } /* by_slot */
    __device__ int64_t x_octets() const { return h_order.octets; }
    __device__ float weight_of(int32_t slot) const {
        return weights == NULL ? 1.0f : weights[lists.pick[slot]];
    }
    typedef float of_column;
    __device__ of_column column_at(const mma_tile &t, int32_t column) const {
        return weight_of(t.column + column);
    }
    /* A channel of a column, whose weight is given, as bf16 has it. */
    __device__ float joined(float gate, float up, float weight) const {
        return to_float(swiglu_value<__nv_bfloat16>(round_a<__nv_bfloat16>(gate),
                                                    round_a<__nv_bfloat16>(up), limit, weight));
    }
    /* Eight channels from `row` on, of one column, from gate and up in bf16. Whole warps; four
     * neighbours have 32 channels. h is wide. */
    __device__ void store_h8(const mma_tile &t, int32_t row, int32_t column, float weight,
                             uint4 gate, uint4 up) const {
        float g[8], u[8];
        bf16_words(gate, g), bf16_words(up, u);
#pragma unroll
        for (int i = 0; i < 8; i++)
            g[i] = to_float(swiglu_value<__nv_bfloat16>(g[i], u[i], limit, weight));
        bool live = column < t.columns && t.row + row < t.end;
        mma_store_wide<W>(h_order.octets, h, t.column + column, t.row + row, live, g);
    }
    /* The same from sums: gate and up of four, and of the next four. */
    __device__ void finish8(const mma_tile &t, int32_t row, int32_t column,
                            const float4 (&sums)[4]) const {
        bool live = column < t.columns && t.row + row < t.end;
        float weight = live ? column_at(t, column) : 0.0f, v[8];
        const float gate[8] = {sums[0].x, sums[0].y, sums[0].z, sums[0].w,
                               sums[1].x, sums[1].y, sums[1].z, sums[1].w};
        const float up[8] = {sums[2].x, sums[2].y, sums[2].z, sums[2].w,
                             sums[3].x, sums[3].y, sums[3].z, sums[3].w};
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = joined(gate[i], up[i], weight);
        mma_store_wide<W>(h_order.octets, h, t.column + column, t.row + row, live, v);
    }
    /* A warp: 32 channels of one column, from the sums of this lane's. */
    __device__ void finish(const mma_tile &t, int32_t row, int32_t column, float weight, float gate,
                           float up) const {
        int32_t slot = t.column + column;
        if (column >= t.columns || t.row + row >= t.end) return; /* the whole warp */
        __nv_bfloat16 value =
            swiglu_value<__nv_bfloat16>(round_a<__nv_bfloat16>(gate), round_a<__nv_bfloat16>(up),
                                        limit, weight);
        mma_store_q8(h_order, h, slot, t.row + row, mma_padded(inner), to_float(value));
    }
};

/* rows[place of the slot] = w2 h. Lists, or the picks that they are made from, are written before
 * mma_expert_in, which waits before it lets this kernel begin: tiles are known while h is still
 * made. They are read past the first cache. */
template <di_dtype W, bool OWN = false> struct mma_expert_out {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 1;
    static constexpr bool STATIC = true, AS_STORED = false, FLOATS = false, COLUMNS = true;
    static constexpr bool WHOLE_OCTETS = false;
    static constexpr bool PAIRED = false, PICKS = OWN;
    mma_rows rows;
    const di_expert *experts;
    const uint8_t *x; /* h */
    int64_t octets;   /* of its rows, where they are wide */
    int32_t width;
    pick_lists lists;
    __nv_bfloat16 *out;
    pick_source from; /* OWN */

    __device__ int32_t count(int height, int) const {
        return listed<OWN>(lists.n_tiles) * ((width + height - 1) / height);
    }
    __device__ mma_tile tile(int32_t i, int height, int) const {
        int32_t down = (width + height - 1) / height;
        const int32_t *at = &lists.tiles[i / down].expert;
        pick_tile t = {listed<OWN>(at), listed<OWN>(at + 1), listed<OWN>(at + 2)};
        const di_expert &e = experts[t.expert];
        int32_t row = i % down * height;
        return mma_tile{{mma_strip<W>(rows, cuda_at<const uint8_t>(e.w2), 0, row), NULL},
                        row,
                        width,
                        t.first,
                        t.count,
                        t.expert};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const { return t.column + column; }
    __device__ int64_t x_octet(const mma_tile &t) const { return t.column / 8; }
    __device__ int64_t x_octets() const { return octets; }
    typedef int64_t of_column;
    __device__ of_column column_at(const mma_tile &t, int32_t column) const {
        return listed<OWN>(lists.place + t.column + column) * static_cast<int64_t>(width) + t.row;
    }
    __device__ void store_at(const mma_tile &t, int32_t row, of_column at, float y) const {
        if (t.row + row < t.end) out[at + row] = __float2bfloat16_rn(y);
    }
    __device__ void store8(const mma_tile &t, int32_t row, of_column at, uint4 y) const {
        mma_store8(out + at + row, t.end - t.row - row, y);
    }
};

#endif
