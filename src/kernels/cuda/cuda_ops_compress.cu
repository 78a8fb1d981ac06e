/* The compressor of a source (model.md 3.7): latents, index keys, pages, the raw ring. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/rows.cuh"

/* ---- Pooling ---- */

/* Where the values of c and g of a group lie, a row a token. */
typedef struct group_rows {
    const float *c[DI_OPS_MAX_RATIO], *g[DI_OPS_MAX_RATIO];
} group_rows;

static __device__ __forceinline__ void load_floats(const float *x, int64_t at, int64_t n,
                                                   float *out) {
    if (at + ROW_CHUNK <= n && aligned16(x + at))
        load_chunk<true>(x, at, n, out);
    else
        load_chunk<false>(x, at, n, out);
}

/* Softmax over the gates of each channel of a chunk, weighted sum. */
static __device__ void pool_chunk(const group_rows &rows, int32_t ratio, int64_t at, int64_t n,
                                  float *out) {
    float top[ROW_CHUNK], total[ROW_CHUNK] = {}, c[ROW_CHUNK], g[ROW_CHUNK];
    load_floats(rows.g[0], at, n, top);
    for (int32_t i = 1; i < ratio; i++) {
        load_floats(rows.g[i], at, n, g);
        for (int e = 0; e < ROW_CHUNK; e++) top[e] = fmaxf(top[e], g[e]);
    }
    for (int e = 0; e < ROW_CHUNK; e++) out[e] = 0;
    for (int32_t i = 0; i < ratio; i++) {
        load_floats(rows.g[i], at, n, g);
        load_floats(rows.c[i], at, n, c);
        for (int e = 0; e < ROW_CHUNK; e++) {
            float share = expf(g[e] - top[e]);
            total[e] += share;
            out[e] = fmaf(c[e], share, out[e]);
        }
    }
    for (int e = 0; e < ROW_CHUNK; e++) out[e] /= total[e];
}

template <typename A>
static __device__ __forceinline__ void store_values(A *x, int64_t at, int64_t n, const float *v) {
    if (at + ROW_CHUNK <= n && aligned16(x + at))
        store_chunk<true>(x, at, n, v);
    else
        store_chunk<false>(x, at, n, v);
}

/* A block a group. */
template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void pool_kernel(di_pool_args args) {
    __shared__ group_rows rows;
    int64_t g = blockIdx.x, width = args.width;
    begin_early();
    for (int64_t i = threadIdx.x; i < args.ratio; i += blockDim.x) {
        rows.c[i] = cuda_at<const float>(args.kv) + (g * args.ratio + i) * width;
        rows.g[i] = cuda_at<const float>(args.gate) + (g * args.ratio + i) * width;
    }
    __syncthreads();
    EACH_CHUNK(at, width) {
        float v[ROW_CHUNK];
        pool_chunk(rows, args.ratio, at, width, v);
        store_values(cuda_at<A>(args.out) + g * width, at, width, v);
    }
}

void cuda_op_pool(di_stream *s, const di_pool_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->ratio >= 1 && args->ratio <= DI_OPS_MAX_RATIO);
    CUDA_LAUNCH_EARLY_A(s, "pool", static_cast<uint32_t>(args->n_groups), row_threads(args->width),
                        0, pool_kernel, *args);
}

/* ---- Latents ---- */

/* What stands for the projections c (gate 0) or g (gate 1) of a position of row t's sequence: the
 * step's own, or those in the ring. */
static __device__ const float *raw_row(const di_compress_args &args, const float *projected,
                                       int64_t t, int32_t position, int gate) {
    const di_batch &b = args.batch;
    int64_t d = args.pages.d;
    int32_t slot = cuda_at<const di_row>(b.rows)[t].slot;
    int32_t length = cuda_at<const int32_t>(b.length)[slot];
    if (position >= length)
        return projected + (cuda_at<const int32_t>(b.first)[t] + (position - length)) * d;
    int64_t place = static_cast<int64_t>(slot) * args.ring_slots + position % args.ring_slots;
    return cuda_at<const float>(args.ring) + (place * 2 + gate) * d;
}

/* The position of the entry that row t completes, or -1. */
static __device__ int32_t entry_position(const di_compress_args &args, int64_t t) {
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t], ratio = args.pages.ratio;
    return pos < 0 || (pos + 1) % ratio != 0 ? -1 : pos + 1 - ratio;
}

/* The normed latents of all groups that a row of the step completes, by row; others are zero. A
 * block a row, a thread a chunk. */
template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void latent_kernel(di_compress_args args,
                                                                 const float *c, const float *g,
                                                                 A *latents) {
    __shared__ group_rows rows;
    int64_t t = blockIdx.x, d = args.pages.d, at = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    begin_early();
    int32_t first = entry_position(args, t);
    float v[ROW_CHUNK] = {}, weight[ROW_CHUNK] = {};
    if (first >= 0) {
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.pages.ratio;
             i += static_cast<int32_t>(blockDim.x)) {
            rows.c[i] = raw_row(args, c, t, first + i, 0);
            rows.g[i] = raw_row(args, g, t, first + i, 1);
        }
        __syncthreads();
        if (at < d) {
            vector_chunk(args.norm, at, weight);
            pool_chunk(rows, args.pages.ratio, at, d, v);
            for (int e = 0; e < ROW_CHUNK; e++) v[e] = round_a<A>(v[e]);
        }
        float inverse = root_inverse(row_sum(chunk_squares(v, 0)), d, args.eps);
        chunk_norm(v, weight, inverse);
    }
    if (at < d) store_values(latents + t * d, at, d, v);
}

/* ---- Entries ---- */

/* Four consecutive values of a vector, in registers: rotated, then quantised. */
static constexpr int ENTRY_EACH = 4;

template <typename A>
static __device__ __forceinline__ void rope4(float *v, int32_t at, int32_t width,
                                             const di_rope &rope, int32_t position) {
    int32_t begin = width - rope.dims;
    for (int i = 0; i < ENTRY_EACH; i += 2) {
        if (at + i < begin || at + i >= width) continue;
        float2 angle = rope_angle(rope, position, (at + i - begin) / 2, false);
        float2 y = rotated(make_float2(v[i], v[i + 1]), angle);
        v[i] = round_a<A>(y.x), v[i + 1] = round_a<A>(y.y);
    }
}

/* Q4I: eight lanes a scale; Q4C: four. Whole warps call; `live`: the values are in the vector. */
static __device__ __forceinline__ void quantize4(di_quantizer kind, const float *v, int32_t at,
                                                 bool live, uint8_t *codes, uint8_t *scales) {
    float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    largest = warp_reduce(largest, max_op(), kind == DI_Q4I ? 8 : 4);
    uint8_t scale;
    float step;
    if (kind == DI_Q4I) {
        scale = di_e8m0_ceil(fmaxf(largest, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        step = di_e8m0_decode(scale);
    } else {
        scale = di_e4m3_encode(fmaxf(largest, 6.0f * 0x1p-9f) / 6.0f);
        step = di_e4m3_decode(scale);
    }
    if (!live) return;
    for (int i = 0; i < ENTRY_EACH; i += 2)
        codes[(at + i) / 2] = static_cast<uint8_t>(di_e2m1_encode(v[i] / step) |
                                                   di_e2m1_encode(v[i + 1] / step) << 4);
    int32_t values = kind == DI_Q4I ? 32 : 16;
    if (at % values == 0) scales[at / values] = scale;
}

/* c and g of row t to the ring, whose place is this row's unless a later row of the step wants it
 * too. */
static __device__ void store_raw(const di_compress_args &args, const float *c, const float *g,
                                 int64_t t) {
    const di_batch &b = args.batch;
    const di_row *rows = cuda_at<const di_row>(b.rows);
    const int32_t *pos = cuda_at<const int32_t>(b.pos);
    int64_t d = args.pages.d, later = t + args.ring_slots;
    int32_t slot = rows[t].slot;
    if (pos[t] < 0) return;
    if (later < b.n_rows && rows[later].slot == slot && pos[later] >= 0) return;
    int64_t place = static_cast<int64_t>(slot) * args.ring_slots + pos[t] % args.ring_slots;
    float *out = cuda_at<float>(args.ring) + place * 2 * d;
    EACH_CHUNK(at, d) {
        float v[ROW_CHUNK];
        load_floats(c + t * d, at, d, v);
        store_values(out, at, d, v);
        load_floats(g + t * d, at, d, v);
        store_values(out + d, at, d, v);
    }
}

/* Warps of the key, then those of the latent. */
static inline __host__ __device__ uint32_t entry_threads(int64_t width) {
    return static_cast<uint32_t>((width + WARP * ENTRY_EACH - 1) / (WARP * ENTRY_EACH)) * WARP;
}

/* A block a row: the entry that it completes, from the normed latent and the bare key, into the
 * pages; then its raw projections into the ring, which latent_kernel has read. c NULL: no ring. */
template <typename A>
static __global__ void store_kernel(di_compress_args args, const A *latents, const A *keys,
                                    const float *c, const float *g) {
    const di_pages &pages = args.pages;
    int64_t t = blockIdx.x;
    begin_early();
    int32_t first = entry_position(args, t), slot = cuda_at<const di_row>(args.batch.rows)[t].slot;
    if (first >= 0 && !cuda_none(args.closed) && first < cuda_at<const int32_t>(args.closed)[slot])
        first = -1;
    if (first >= 0) {
        uint32_t of_key = args.wk.n > 0 ? entry_threads(pages.di) : 0;
        bool key = threadIdx.x < of_key;
        int32_t width = key ? pages.di : pages.d;
        int32_t at = static_cast<int32_t>(threadIdx.x - (key ? 0 : of_key)) * ENTRY_EACH;
        bool live = at < width;
        const A *x = key ? keys + t * pages.di : latents + t * pages.d;
        page_entry entry = entry_at(pages, slot, first / pages.ratio);
        float v[ENTRY_EACH] = {}, sum = 0;
        for (int i = 0; i < ENTRY_EACH && live; i++) v[i] = to_float(x[at + i]);
        for (int i = 0; i < ENTRY_EACH && key; i++) sum = fmaf(v[i], v[i], sum);
        if (of_key > 0) {
            float inverse = root_inverse(row_sum(sum), pages.di, args.eps);
            for (int i = 0; i < ENTRY_EACH && key && live; i++)
                v[i] = round_a<A>(vector_value(args.k_norm, at + i) * (v[i] * inverse));
        }
        rope4<A>(v, at, width, args.rope, first);
        if (key)
            quantize4(DI_Q4I, v, at, live, entry.key_codes, entry.key_scales);
        else
            quantize4(DI_Q4C, v, at, live, entry.codes, entry.scales);
    }
    if (c != NULL) store_raw(args, c, g, t);
}

template <typename A> static void compress(di_stream *s, const di_compress_args *args) {
    const di_pages *pages = &args->pages;
    int32_t n = args->batch.n_rows;
    uint32_t rows = static_cast<uint32_t>(n);
    int64_t d = pages->d;
    di_ptr latent = cuda_take_a(s, n * d), key = cuda_take_a(s, n * pages->di);
    const float *c = NULL, *g = NULL;
    if (pages->ratio == 1) {
        cuda_linear_rows(s, &args->wkv, args->u, n, false, false, latent);
        cuda_norm_rows(s, latent, n, args->norm, args->eps, latent);
    } else {
        di_ptr of_c = cuda_take_f(s, n * d), of_g = cuda_take_f(s, n * d);
        c = cuda_at<const float>(of_c), g = cuda_at<const float>(of_g);
        cuda_linear_part parts[2] = {{args->wkv, of_c, true}, {args->wgate, of_g, true}};
        cuda_linear_many(s, parts, 2, args->u, n, 1, false);
        cuda_launch_early(s, "latent", rows, row_threads(d), 0, latent_kernel<A>, *args, c, g,
                          cuda_at<A>(latent));
    }
    if (args->wk.n > 0) cuda_linear_rows(s, &args->wk, latent, n, false, false, key);
    uint32_t threads = entry_threads(d) + (args->wk.n > 0 ? entry_threads(pages->di) : 0);
    CUDA_REQUIRE(threads <= 1024);
    cuda_launch_early(s, "compress", rows, threads, 0, store_kernel<A>, *args,
                      cuda_at<const A>(latent), cuda_at<const A>(key), c, g);
}

void cuda_op_compress(di_stream *s, const di_compress_args *args) {
    const di_pages *pages = &args->pages;
    cuda_begin_beside(s, false);
    CUDA_REQUIRE(pages->ratio >= 1 && pages->ratio <= DI_OPS_MAX_RATIO && args->wkv.n == pages->d &&
                 pages->d % 16 == 0 && pages->d <= 1024 * ROW_CHUNK);
    CUDA_REQUIRE(args->wk.n == 0 || (args->wk.n == pages->di && pages->di % 32 == 0));
    if (s->release)
        compress<__nv_bfloat16>(s, args);
    else
        compress<float>(s, args);
}
