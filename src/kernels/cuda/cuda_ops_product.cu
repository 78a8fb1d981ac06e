/* Products with stored matrices: on the matrix units where mma_takes() says so, else on the plain
 * float units (product.cuh); and what goes into them. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/product.cuh"

static constexpr int ROWS = PRODUCT_ROWS, WARPS = PRODUCT_WARPS;

/* Long rows of which there are few are cut over the warps of a block. */
static __host__ __device__ bool cut_rows(const di_matrix &w) {
    return w.n <= 512 && w.k >= 8 * WARPS * WARP;
}

template <typename A>
static __device__ __forceinline__ void store_product(const cuda_product &p, int64_t row, int64_t j,
                                                     float y) {
    int64_t at = row * p.out_stride + j;
    if (p.to_f)
        cuda_at<float>(p.out)[at] = y;
    else
        cuda_at<A>(p.out)[at] = from_float<A>(y);
}

/* A warp an output, of the ROWS rows from blockIdx.y * ROWS on; a block an output where rows are cut,
 * the warps' sums added in their order. */
template <typename A, di_dtype W> static __global__ void product_kernel(cuda_product p) {
    __shared__ float part[WARPS][ROWS];
    begin_early();
    bool cut = cut_rows(p.w);
    int64_t j = cut ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * WARPS + warp_id();
    int64_t t = static_cast<int64_t>(blockIdx.y) * ROWS;
    if (j >= p.w.n) return;
    int rows = static_cast<int>(p.n_rows - t < ROWS ? p.n_rows - t : ROWS);
    int64_t group = j / (p.w.n / p.groups);
    const A *x[ROWS];
    float sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        x[r] = cuda_at<const A>(p.x) + (t + r) * p.x_stride + group * p.w.k;
        sum[r] = 0;
    }
    bool aligned = p.w.k % 8 == 0 && p.x_stride % 8 == 0 && p.x.address % 32 == 0;
    int64_t each = cut ? (p.w.k + 8 * WARPS - 1) / (8 * WARPS) * 8 : p.w.k;
    int64_t begin = cut ? warp_id() * each : 0, end = begin + each < p.w.k ? begin + each : p.w.k;
    lane_products<A, W>(row_of<W>(p.w, j), x, rows, begin, end, aligned, sum);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) break;
        float y = warp_sum(sum[r]);
        if (lane_id() != 0) continue;
        if (cut)
            part[warp_id()][r] = y;
        else
            store_product<A>(p, t + r, j, y);
    }
    if (!cut) return;
    __syncthreads();
    int r = static_cast<int>(threadIdx.x);
    if (r >= rows) return;
    float y = part[0][r];
    for (int i = 1; i < WARPS; i++) y += part[i][r];
    store_product<A>(p, t + r, j, y);
}

template <typename A> static void launch_product(di_stream *s, const cuda_product *p) {
    dim3 grid(cuda_blocks(p->w.n, cut_rows(p->w) ? 1 : WARPS), cuda_blocks(p->n_rows, ROWS));
    uint32_t threads = PRODUCT_THREADS;
    if (p->w.dtype == DI_F8_E4M3)
        cuda_launch_early(s, "product", grid, threads, 0, product_kernel<A, DI_F8_E4M3>, *p);
    else if (p->w.dtype == DI_FP4_PAIR)
        cuda_launch_early(s, "product", grid, threads, 0, product_kernel<A, DI_FP4_PAIR>, *p);
    else if (p->w.dtype == DI_BF16)
        cuda_launch_early(s, "product", grid, threads, 0, product_kernel<A, DI_BF16>, *p);
    else
        cuda_launch_early(s, "product", grid, threads, 0, product_kernel<A, DI_F32>, *p);
}

void cuda_run_product(di_stream *s, const cuda_product *p) {
    CUDA_REQUIRE(p->groups >= 1 && p->w.n % p->groups == 0);
    CUDA_REQUIRE(p->w.dtype == DI_F32 || p->w.dtype == DI_BF16 || p->w.dtype == DI_F8_E4M3 ||
                 p->w.dtype == DI_FP4_PAIR);
    if (mma_takes(s, p->w.dtype)) {
        mma_ready x =
            mma_prepare(s, p->w.dtype, p->x, p->x_stride, p->n_rows, p->groups, p->w.k, false);
        mma_run_linear(s, p, 1, &x);
        return;
    }
    CUDA_REQUIRE(cuda_blocks(p->n_rows, ROWS) <= 65535);
    if (!s->release)
        launch_product<float>(s, p);
    else /* the one type that is left */
        cuda_launch_early(s, "product",
                          dim3(cuda_blocks(p->w.n, cut_rows(p->w) ? 1 : WARPS),
                               cuda_blocks(p->n_rows, ROWS)),
                          PRODUCT_THREADS, 0, product_kernel<__nv_bfloat16, DI_F32>, *p);
}

/* A warp a block of 32 values, in place or not; the row's quantised values as A. */
template <typename A>
static __global__ void quantized_kernel(const A *x, int64_t n_blocks, A *out) {
    int64_t b = static_cast<int64_t>(blockIdx.x) * WARPS + warp_id(), at = b * 32 + lane_id();
    uint8_t scale;
    begin_early();
    if (b >= n_blocks) return;
    uint8_t code = warp_q8(to_float(x[at]), &scale);
    out[at] = from_float<A>(di_e4m3_decode(code) * di_e8m0_decode(scale));
}

di_ptr cuda_quantized(di_stream *s, di_ptr x, int64_t n_rows, int64_t width) {
    if (!s->release) return x;
    CUDA_REQUIRE(width % 32 == 0);
    int64_t blocks = n_rows * (width / 32);
    di_ptr out = cuda_take_a(s, n_rows * width);
    cuda_launch_early(s, "quantize", cuda_blocks(blocks, WARPS), PRODUCT_THREADS, 0,
                      quantized_kernel<__nv_bfloat16>, cuda_at<const __nv_bfloat16>(x), blocks,
                      cuda_at<__nv_bfloat16>(out));
    return out;
}

static cuda_product product_of(const cuda_linear_part &part, di_ptr x, int32_t n_rows,
                               int32_t groups) {
    cuda_product p = {};
    p.w = part.w, p.n_rows = n_rows, p.groups = groups, p.to_f = part.to_f;
    p.x = x, p.x_stride = static_cast<int64_t>(groups) * part.w.k;
    p.out = part.out, p.out_stride = part.w.n;
    return p;
}

void cuda_linear_many(di_stream *s, const cuda_linear_part *parts, int32_t n, di_ptr x,
                      int32_t n_rows, int32_t groups, bool quantize) {
    int64_t stride = static_cast<int64_t>(groups) * parts[0].w.k;
    mma_ready ready = {};
    di_ptr quantized = DI_NONE;
    for (int32_t i = 0; i < n; i++) {
        const di_matrix &w = parts[i].w;
        cuda_product p[MMA_MATRICES] = {product_of(parts[i], x, n_rows, groups)};
        CUDA_REQUIRE(w.k == parts[0].w.k);
        if (mma_takes(s, w.dtype)) {
            if (ready.data == NULL || ready.dtype != w.dtype)
                ready = mma_prepare(s, w.dtype, x, stride, n_rows, groups, w.k, quantize);
            bool two = i + 1 < n && parts[i + 1].w.dtype == w.dtype && groups == 1;
            if (two) p[1] = product_of(parts[++i], x, n_rows, groups);
            mma_run_linear(s, p, two ? 2 : 1, &ready);
            continue;
        }
        if (quantize && cuda_none(quantized)) quantized = cuda_quantized(s, x, n_rows, stride);
        if (quantize) p[0].x = quantized;
        cuda_run_product(s, &p[0]);
    }
}

void cuda_linear_groups(di_stream *s, const di_matrix *w, int32_t groups, di_ptr x, int32_t n_rows,
                        bool quantize, bool to_f, di_ptr out) {
    cuda_linear_part part = {*w, out, to_f};
    cuda_linear_many(s, &part, 1, x, n_rows, groups, quantize);
}

void cuda_linear_rows(di_stream *s, const di_matrix *w, di_ptr x, int32_t n_rows, bool quantize,
                      bool to_f, di_ptr out) {
    cuda_linear_groups(s, w, 1, x, n_rows, quantize, to_f, out);
}

void cuda_op_linear(di_stream *s, const di_linear_args *args) {
    cuda_begin(s);
    cuda_linear_groups(s, &args->w, args->groups > 1 ? args->groups : 1, args->x, args->n_rows,
                       args->quantize, args->to_f, args->out);
}
