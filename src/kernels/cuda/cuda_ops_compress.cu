/* The compressor of a source (model.md 3.7): latents, index keys, pages, the raw ring. */
#include "kernels/cuda/rows.cuh"

/* Where the r values of c and g of one channel lie. */
typedef struct group_rows {
    const float *c[DI_OPS_MAX_RATIO], *g[DI_OPS_MAX_RATIO];
} group_rows;

/* Softmax over the gates of channel d, weighted sum. */
static __device__ float pooled(const group_rows &rows, int32_t ratio, int64_t d) {
    float top = rows.g[0][d], total = 0, sum = 0;
    for (int32_t i = 1; i < ratio; i++) top = fmaxf(top, rows.g[i][d]);
    for (int32_t i = 0; i < ratio; i++) {
        float share = expf(rows.g[i][d] - top);
        total += share;
        sum = fmaf(rows.c[i][d], share, sum);
    }
    return sum / total;
}

/* A block a group. */
template <typename A> static __global__ void pool_kernel(di_pool_args args) {
    __shared__ group_rows rows;
    int64_t g = blockIdx.x, width = args.width, i = threadIdx.x;
    if (i < args.ratio) {
        rows.c[i] = cuda_at<const float>(args.kv) + (g * args.ratio + i) * width;
        rows.g[i] = cuda_at<const float>(args.gate) + (g * args.ratio + i) * width;
    }
    __syncthreads();
    for (int64_t d = i; d < width; d += ROW_THREADS)
        cuda_at<A>(args.out)[g * width + d] = from_float<A>(pooled(rows, args.ratio, d));
}

void cuda_op_pool(di_stream *s, const di_pool_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->ratio >= 1 && args->ratio <= DI_OPS_MAX_RATIO);
    CUDA_LAUNCH_A(s, "pool", static_cast<uint32_t>(args->n_groups), ROW_THREADS, 0, pool_kernel,
                  *args);
}

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

/* The pooled latents of all groups that a row of the step completes, by row; others are zero. */
template <typename A>
static __global__ void pooled_rows_kernel(di_compress_args args, const float *c, const float *g,
                                          A *latent) {
    __shared__ group_rows rows;
    int64_t t = blockIdx.x, d = args.pages.d;
    int32_t at = entry_position(args, t), i = static_cast<int32_t>(threadIdx.x);
    if (at >= 0 && i < args.pages.ratio) {
        rows.c[i] = raw_row(args, c, t, at + i, 0);
        rows.g[i] = raw_row(args, g, t, at + i, 1);
    }
    __syncthreads();
    for (int64_t x = threadIdx.x; x < d; x += ROW_THREADS)
        latent[t * d + x] = from_float<A>(at < 0 ? 0 : pooled(rows, args.pages.ratio, x));
}

/* A block a row, after pooled_rows_kernel; the ring's place is this row's unless a later row of the
 * step wants it too. */
static __global__ void ring_store_kernel(di_compress_args args, const float *c, const float *g) {
    const di_batch &b = args.batch;
    const di_row *rows = cuda_at<const di_row>(b.rows);
    const int32_t *pos = cuda_at<const int32_t>(b.pos);
    int64_t t = blockIdx.x, d = args.pages.d, later = t + args.ring_slots;
    int32_t slot = rows[t].slot;
    if (pos[t] < 0) return;
    if (later < b.n_rows && rows[later].slot == slot && pos[later] >= 0) return;
    int64_t place = static_cast<int64_t>(slot) * args.ring_slots + pos[t] % args.ring_slots;
    float *out = cuda_at<float>(args.ring) + place * 2 * d;
    for (int64_t i = threadIdx.x; i < d; i += ROW_THREADS) {
        out[i] = c[t * d + i];
        out[d + i] = g[t * d + i];
    }
}

/* From the unrotated latent of the entry that row t completes: its index key, then the latent
 * itself, both into the pages. Latent and key are changed. */
template <typename A>
static __global__ void store_kernel(di_compress_args args, A *latents, A *keys) {
    int64_t t = blockIdx.x;
    const di_pages &pages = args.pages;
    int32_t at = entry_position(args, t), slot = cuda_at<const di_row>(args.batch.rows)[t].slot;
    if (at < 0) return;
    if (!cuda_none(args.closed) && at < cuda_at<const int32_t>(args.closed)[slot]) return;
    page_entry entry = entry_at(pages, slot, at / pages.ratio);
    A *latent = latents + t * pages.d;
    if (args.wk.n > 0) {
        A *key = keys + t * pages.di;
        row_norm(key, args.k_norm, pages.di, args.eps, key);
        __syncthreads();
        row_rope(key, 1, pages.di, args.rope, at, false);
        __syncthreads();
        row_quantize(DI_Q4I, key, pages.di, entry.key_codes, entry.key_scales);
    }
    row_rope(latent, 1, pages.d, args.rope, at, false);
    __syncthreads();
    row_quantize(DI_Q4C, latent, pages.d, entry.codes, entry.scales);
}

void cuda_op_compress(di_stream *s, const di_compress_args *args) {
    const di_pages *pages = &args->pages;
    int32_t n = args->batch.n_rows, ratio = pages->ratio;
    uint32_t rows = static_cast<uint32_t>(n);
    int64_t d = pages->d;
    cuda_begin(s);
    CUDA_REQUIRE(ratio >= 1 && ratio <= DI_OPS_MAX_RATIO && args->wkv.n == d && d % 16 == 0);
    CUDA_REQUIRE(args->wk.n == 0 || (args->wk.n == pages->di && pages->di % 32 == 0));
    di_ptr latent = cuda_take_a(s, n * d), key = cuda_take_a(s, n * pages->di);
    if (ratio == 1) {
        cuda_linear_rows(s, &args->wkv, args->u, n, false, false, latent);
    } else {
        di_ptr c = cuda_take_f(s, n * d), g = cuda_take_f(s, n * d);
        const float *c_rows = cuda_at<const float>(c), *g_rows = cuda_at<const float>(g);
        cuda_linear_rows(s, &args->wkv, args->u, n, false, true, c);
        cuda_linear_rows(s, &args->wgate, args->u, n, false, true, g);
        if (s->release)
            cuda_launch(s, "pool", rows, ROW_THREADS, 0, pooled_rows_kernel<__nv_bfloat16>, *args,
                        c_rows, g_rows, cuda_at<__nv_bfloat16>(latent));
        else
            cuda_launch(s, "pool", rows, ROW_THREADS, 0, pooled_rows_kernel<float>, *args, c_rows,
                        g_rows, cuda_at<float>(latent));
        cuda_launch(s, "ring store", rows, ROW_THREADS, 0, ring_store_kernel, *args, c_rows,
                    g_rows);
    }
    cuda_norm_rows(s, latent, n, args->norm, args->eps, latent);
    if (args->wk.n > 0) cuda_linear_rows(s, &args->wk, latent, n, false, false, key);
    if (s->release)
        cuda_launch(s, "compress", rows, ROW_THREADS, 0, store_kernel<__nv_bfloat16>, *args,
                    cuda_at<__nv_bfloat16>(latent), cuda_at<__nv_bfloat16>(key));
    else
        cuda_launch(s, "compress", rows, ROW_THREADS, 0, store_kernel<float>, *args,
                    cuda_at<float>(latent), cuda_at<float>(key));
}
