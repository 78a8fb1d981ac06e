/* What the kernels of products work through: tiles of weight rows times tiles of columns, where a
 * column is a row of activations. mma_narrow.cuh and mma_wide.cuh know how to multiply, a job knows
 * where operands lie and what becomes of the sums.
 *
 * A job has: FORMAT, of its weights; SIDES, matrices whose rows are taken side by side (gate and
 * up); STATIC, whether its tiles are known before earlier kernels are done; rows, what all stored
 * rows have in common; count and tile, of tiles of some height and width; x_row(tile, column), the
 * prepared row; and what becomes of sums: store and store2 of one or two, or with two sides finish.
 */
#ifndef DI_KERNELS_CUDA_MMA_JOBS_CUH
#define DI_KERNELS_CUDA_MMA_JOBS_CUH

#include "kernels/cuda/mma_order.cuh"

typedef struct mma_tile {
    const uint8_t *data[2], *scale[2]; /* of each side: row 0 of its matrix */
    int32_t row, end;        /* the tile's first row; behind the matrix's (or group's) last */
    int32_t column, columns; /* first; how many there are */
    int32_t which;           /* group or expert */
    /* Of a stored matrix's products: where they go, what the tile's first row is there. */
    void *out;
    int64_t out_stride;
    int32_t out_row;
    bool to_f;
} mma_tile;

/* Everything about stored rows that is one for a whole job. */
typedef struct mma_rows {
    int32_t k;
    int64_t data_stride, scale_stride; /* bytes from row to row, of scales */
    bool aligned;                      /* every run is, if the first is */
} mma_rows;

static inline __host__ __device__ mma_rows mma_rows_of(di_dtype dtype, int32_t k) {
    if (dtype == DI_FP4_PAIR) return mma_rows{k, k / 2, k / 32, k % 32 == 0};
    if (dtype == DI_F8_E4M3) return mma_rows{k, k, (k + 31) / 32, k % 16 == 0};
    return mma_rows{k, static_cast<int64_t>(k) * 2, 0, k % 8 == 0};
}

/* The scale of a weight row's values 32 block and up. */
template <di_dtype W>
static __device__ __forceinline__ const uint8_t *
mma_scale_at(const mma_rows &rows, const uint8_t *scale, int32_t row, int32_t block) {
    return scale + (W == DI_F8_E4M3 ? row >> 5 : row) * rows.scale_stride + block;
}

/* ---- A stored matrix, or groups of its rows, times rows of activations; or two matrices ---- */

typedef struct mma_matrix {
    const uint8_t *data, *scale;
    int32_t n, first; /* n: rows of a group, from `first` on */
    bool to_f;
    void *out;
    int64_t out_stride;
} mma_matrix;

template <di_dtype W> struct mma_linear {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 1;
    static constexpr bool STATIC = true;
    mma_rows rows;
    const uint8_t *x;
    int32_t groups, n_rows;
    mma_matrix
        of[2]; /* n of the second is 0 where there is one, and groups 1 where there are two */

    /* Tiles of `height` weight rows and `width` columns. Eight tiles of columns go with a tile of
     * weights before the next: together they fit the L2 cache. */
    static constexpr int BAND = 8;
    static __host__ __device__ int32_t over(int32_t n, int each) { return (n + each - 1) / each; }
    __host__ __device__ int32_t count(int height, int width) const {
        int32_t down = groups * over(of[0].n, height) + over(of[1].n, height);
        return down * over(n_rows, width);
    }
    __device__ mma_tile tile(int32_t i, int height, int width) const {
        int32_t across = over(n_rows, width);
        int32_t of_first = groups * over(of[0].n, height) * across, matrix = i >= of_first;
        if (matrix) i -= of_first;
        const mma_matrix &m = of[matrix];
        int32_t n = m.n, down = over(n, height);
        int32_t group = i / (down * across), at = i % (down * across), band = at / (down * BAND);
        int32_t in_band = across - band * BAND < BAND ? across - band * BAND : BAND;
        at -= band * down * BAND;
        int32_t column = (band * BAND + at % in_band) * width;
        return mma_tile{{m.data, NULL},
                        {m.scale, NULL},
                        m.first + group * n + at / in_band * height,
                        m.first + (group + 1) * n,
                        column,
                        n_rows - column < width ? n_rows - column : width,
                        group,
                        m.out,
                        m.out_stride,
                        group * n + at / in_band * height,
                        m.to_f};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const {
        return t.which * mma_rows8(n_rows) + t.column + column;
    }
    /* One sum. */
    __device__ void store(const mma_tile &t, int32_t row, int32_t column, float y) const {
        if (t.row + row >= t.end || column >= t.columns) return;
        int64_t at = (t.column + column) * t.out_stride + t.out_row + row;
        if (t.to_f)
            static_cast<float *>(t.out)[at] = y;
        else
            static_cast<__nv_bfloat16 *>(t.out)[at] = __float2bfloat16_rn(y);
    }
    /* Two neighbours, row even. */
    __device__ void store2(const mma_tile &t, int32_t row, int32_t column, float y0,
                           float y1) const {
        int64_t at = (t.column + column) * t.out_stride + t.out_row + row;
        bool whole = t.row + row + 1 < t.end && column < t.columns;
        if (!t.to_f && whole && (reinterpret_cast<uintptr_t>(t.out) / 2 + at) % 2 == 0) {
            *reinterpret_cast<uint32_t *>(static_cast<__nv_bfloat16 *>(t.out) + at) =
                pack_bf16(y0, y1);
            return;
        }
        store(t, row, column, y0);
        store(t, row + 1, column, y1);
    }
};

/* ---- Experts ---- */

/* The live picks, sorted by expert and, within one, by row. All in device memory. */
typedef struct pick_tile {
    int32_t expert, first, count; /* slots first.. of the sorted picks */
} pick_tile;
typedef struct pick_lists {
    int32_t width;    /* most picks of a tile */
    int32_t *n_tiles; /* of at most `width` picks of one expert */
    pick_tile *tiles;
    int32_t *pick; /* [n_rows * top_k] of a slot: row * top_k + i */
    int32_t
        *place; /* [n_rows * top_k] row * top_k + the number of the row's picks of lower experts */
} pick_lists;

template <typename A>
static __device__ __forceinline__ A swiglu_value(float gate, float up, double limit, float weight) {
    if (limit > 0) {
        float most = static_cast<float>(limit);
        gate = fminf(gate, most);
        up = fminf(fmaxf(up, -most), most);
    }
    return from_float<A>(weight * (gate * sigmoid(gate) * up));
}

/* q8 of a warp's 32 values of h, one each, into the row of the next product's input. */
static __device__ __forceinline__ void mma_store_h(const mma_order &order, uint8_t *h, int64_t row,
                                                   int32_t first, int32_t padded, float value) {
    uint8_t scale, code = warp_q8(value, &scale);
    reinterpret_cast<__nv_bfloat16 *>(h)[mma_value_at(order, row, first + lane_id(), padded)] =
        __float2bfloat16_rn(di_e4m3_decode(code) * di_e8m0_decode(scale));
}

/* h = q8(a([weight] silu(w1 x) * (w3 x))): routed experts, or with `experts` NULL one for all rows
 * whose matrices are data and scale. */
template <di_dtype W> struct mma_expert_in {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 2;
    static constexpr bool STATIC = false;
    mma_rows rows;
    const di_expert *experts;
    const uint8_t *data[2], *scale[2];
    const uint8_t *x;
    int32_t inner, n_rows, top_k;
    pick_lists lists;
    const float *weights; /* [n_rows * top_k], or NULL */
    double limit;
    mma_order h_order;
    uint8_t *h; /* a row a slot */

    __device__ int32_t count(int height, int width) const {
        int32_t across = experts == NULL ? (n_rows + width - 1) / width : *lists.n_tiles;
        return across * ((inner + height - 1) / height);
    }
    __device__ mma_tile tile(int32_t i, int height, int width) const {
        int32_t down = (inner + height - 1) / height;
        if (experts == NULL) { /* the weights of one stay in the cache: columns first */
            int32_t across = (n_rows + width - 1) / width, column = i % across * width;
            return mma_tile{{data[0], data[1]},
                            {scale[0], scale[1]},
                            i / across * height,
                            inner,
                            column,
                            n_rows - column < width ? n_rows - column : width,
                            0};
        }
        pick_tile t = lists.tiles[i / down];
        const di_expert &e = experts[t.expert];
        return mma_tile{{cuda_at<const uint8_t>(e.w1), cuda_at<const uint8_t>(e.w3)},
                        {cuda_at<const uint8_t>(e.w1_scale), cuda_at<const uint8_t>(e.w3_scale)},
                        i % down * height,
                        inner,
                        t.first,
                        t.count,
                        t.expert};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const {
        int32_t slot = t.column + column;
        return experts == NULL ? slot : lists.pick[slot] / top_k;
    }
    /* A warp: 32 channels of one column, from the sums of this lane's. */
    __device__ void finish(const mma_tile &t, int32_t row, int32_t column, float gate,
                           float up) const {
        int32_t slot = t.column + column;
        if (column >= t.columns || t.row + row >= t.end) return; /* the whole warp */
        float weight = weights == NULL ? 1.0f : weights[lists.pick[slot]];
        __nv_bfloat16 value =
            swiglu_value<__nv_bfloat16>(round_a<__nv_bfloat16>(gate), round_a<__nv_bfloat16>(up),
                                        limit, weight);
        mma_store_h(h_order, h, slot, t.row + row, mma_padded(inner), to_float(value));
    }
};

/* rows[place of the slot] = w2 h. */
template <di_dtype W> struct mma_expert_out {
    static constexpr di_dtype FORMAT = W;
    static constexpr int SIDES = 1;
    static constexpr bool STATIC = false;
    mma_rows rows;
    const di_expert *experts;
    const uint8_t *x; /* h */
    int32_t width;
    pick_lists lists;
    __nv_bfloat16 *out;

    __device__ int32_t count(int height, int) const {
        return *lists.n_tiles * ((width + height - 1) / height);
    }
    __device__ mma_tile tile(int32_t i, int height, int) const {
        int32_t down = (width + height - 1) / height;
        pick_tile t = lists.tiles[i / down];
        const di_expert &e = experts[t.expert];
        return mma_tile{{cuda_at<const uint8_t>(e.w2), NULL},
                        {cuda_at<const uint8_t>(e.w2_scale), NULL},
                        i % down * height,
                        width,
                        t.first,
                        t.count,
                        t.expert};
    }
    __device__ int64_t x_row(const mma_tile &t, int32_t column) const { return t.column + column; }
    __device__ void store(const mma_tile &t, int32_t row, int32_t column, float y) const {
        if (t.row + row >= t.end || column >= t.columns) return;
        int64_t place = lists.place[t.column + column];
        out[place * width + t.row + row] = __float2bfloat16_rn(y);
    }
    __device__ void store2(const mma_tile &t, int32_t row, int32_t column, float y0,
                           float y1) const {
        if (t.row + row + 1 < t.end && column < t.columns) {
            int64_t at = lists.place[t.column + column] * static_cast<int64_t>(width) + t.row + row;
            if ((reinterpret_cast<uintptr_t>(out) / 2 + at) % 2 == 0) {
                *reinterpret_cast<uint32_t *>(out + at) = pack_bf16(y0, y1);
                return;
            }
        }
        store(t, row, column, y0);
        store(t, row + 1, column, y1);
    }
};

#endif
