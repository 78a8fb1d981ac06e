/* What kernels of streams share: their grids, and the collapse of a row's streams for the sublayers
 * and the head. */
#ifndef DI_KERNELS_CUDA_STREAMS_CUH
#define DI_KERNELS_CUDA_STREAMS_CUH

#include "kernels/cuda/rows.cuh"

/* Elementwise kernels: a thread a chunk, a grid_row a row. With few rows a row's blocks are on as
 * many processors as there are. */
static constexpr int ELEMENT_THREADS = 128;

static inline dim3 element_grid(int64_t n_rows, int64_t width) {
    return cuda_row_grid(cuda_blocks(width, ROW_CHUNK * ELEMENT_THREADS), n_rows);
}
static __device__ __forceinline__ int64_t element_chunk() {
    return (static_cast<int64_t>(blockIdx.x) * ELEMENT_THREADS + threadIdx.x) * ROW_CHUNK;
}

/* sum_j pre[j] streams[j] of one chunk. */
template <bool WHOLE, typename A>
static __device__ __forceinline__ void collapse_chunk(const A *streams, const float *pre,
                                                      int32_t hc, int64_t width, int64_t at,
                                                      float *out) {
    for (int i = 0; i < ROW_CHUNK; i++) out[i] = 0;
#pragma unroll 4
    for (int32_t j = 0; j < hc; j++) {
        float v[ROW_CHUNK];
        load_chunk<WHOLE>(streams + j * width, at, width, v);
        for (int i = 0; i < ROW_CHUNK; i++) out[i] = fmaf(pre[j], v[i], out[i]);
    }
}

/* out = a(sum_j pre[j] streams[j]); a thread makes its chunks. */
template <typename A>
static __device__ __forceinline__ void collapse_row(const A *streams, const float *pre, int32_t hc,
                                                    int64_t width, A *out) {
    bool whole = whole_chunks(streams, width) && whole_chunks(out, width);
    EACH_CHUNK(at, width) {
        float v[ROW_CHUNK];
        if (whole) {
            collapse_chunk<true>(streams, pre, hc, width, at, v);
            store_chunk<true>(out, at, width, v);
        } else {
            collapse_chunk<false>(streams, pre, hc, width, at, v);
            store_chunk<false>(out, at, width, v);
        }
    }
}

/* A chunk of all streams. HC: their number, or 0 for any. */
template <bool WHOLE, int HC, typename A> struct stream_chunks {
    static constexpr int MOST = HC > 0 ? HC : DI_OPS_MAX_HC;
    chunk_bits<WHOLE, A> of[MOST];
    __device__ __forceinline__ void load(const A *from, int32_t any_hc, int64_t width, int64_t at) {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            if (i < (HC > 0 ? HC : any_hc)) of[i].load(from + i * width, at, width);
    }
};

/* One chunk of all streams, from the sublayer's y and the streams before; then(k, it) for each.
 * post, comb: of the row. */
template <bool WHOLE, int HC, typename A, typename Then>
static __device__ __forceinline__ void
expand_chunk(const float *post, const float *comb, int32_t any_hc,
             const stream_chunks<WHOLE, HC, A> &before, A *to, int64_t width, int64_t at,
             const float (&y)[ROW_CHUNK], Then then) {
    constexpr int MOST = HC > 0 ? HC : DI_OPS_MAX_HC;
    int32_t hc = HC > 0 ? HC : any_hc;
    float sum[ROW_CHUNK];
#pragma unroll
    for (int k = 0; k < MOST; k++) {
        if (k >= hc) break;
        for (int e = 0; e < ROW_CHUNK; e++) sum[e] = 0;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i >= hc) break;
            float share = comb[i * hc + k];
            for (int e = 0; e < ROW_CHUNK; e++) sum[e] = fmaf(share, before.of[i].value(e), sum[e]);
        }
        for (int e = 0; e < ROW_CHUNK; e++) sum[e] = fmaf(post[k], y[e], sum[e]);
        store_chunk<WHOLE>(to + k * width, at, width, sum);
        then(k, sum);
    }
}
/* The same from streams in memory. */
template <bool WHOLE, int HC, typename A, typename Then>
static __device__ __forceinline__ void
expand_chunk(const float *post, const float *comb, int32_t any_hc, const A *from, A *to,
             int64_t width, int64_t at, const float (&y)[ROW_CHUNK], Then then) {
    stream_chunks<WHOLE, HC, A> before;
    before.load(from, any_hc, width, at);
    expand_chunk<WHOLE, HC, A>(post, comb, any_hc, before, to, width, at, y, then);
}

/* The sum of the experts of one chunk, in their order, and then the shared one. rows, shared: of the
 * row. As many rows as the release has are asked for at once; those behind the last are the last
 * again, and not added. */
static constexpr int COMBINE_AT_ONCE = 6;
template <bool WHOLE, typename A>
static __device__ __forceinline__ void combine_chunk(const A *rows, const A *shared, int32_t top_k,
                                                     int64_t width, int64_t at,
                                                     float (&sum)[ROW_CHUNK]) {
    chunk_bits<WHOLE, A> last, v[COMBINE_AT_ONCE];
    last.load(shared, at, width);
    for (int i = 0; i < ROW_CHUNK; i++) sum[i] = 0;
    for (int32_t first = 0; first < top_k; first += COMBINE_AT_ONCE) {
#pragma unroll
        for (int k = 0; k < COMBINE_AT_ONCE; k++) {
            int32_t row = first + k < top_k ? first + k : top_k - 1;
            v[k].load(rows + row * width, at, width);
        }
#pragma unroll
        for (int k = 0; k < COMBINE_AT_ONCE; k++)
            for (int i = 0; i < ROW_CHUNK; i++)
                sum[i] = first + k < top_k ? sum[i] + v[k].value(i) : sum[i];
    }
    for (int i = 0; i < ROW_CHUNK; i++) sum[i] += last.value(i);
}
template <bool WHOLE, typename A>
static __device__ __forceinline__ void combine_chunk(const di_combine_args &args, int64_t t,
                                                     int64_t at, float (&sum)[ROW_CHUNK]) {
    combine_chunk<WHOLE>(cuda_at<const A>(args.rows) + t * args.top_k * args.width,
                         cuda_at<const A>(args.shared) + t * args.width, args.top_k, args.width, at,
                         sum);
}

#endif
