/* Products with stored matrices, on the plain float units (product.cuh), and what goes into them. */
#include "kernels/cuda/product.cuh"

static constexpr int ROWS = PRODUCT_ROWS, WARPS = PRODUCT_WARPS;

/* A warp an output, of the ROWS rows from blockIdx.y * ROWS on. */
template <typename A, di_dtype W> static __global__ void product_kernel(cuda_product p) {
    int64_t j = static_cast<int64_t>(blockIdx.x) * WARPS + warp_id();
    int64_t t = static_cast<int64_t>(blockIdx.y) * ROWS;
    if (j >= p.n) return;
    int rows = static_cast<int>(p.n_rows - t < ROWS ? p.n_rows - t : ROWS);
    int64_t group = j / (p.n / p.groups);
    const A *x[ROWS];
    float sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        x[r] = cuda_at<const A>(p.x) + (t + r) * p.x_stride + group * p.w.k;
        sum[r] = 0;
    }
    bool aligned = p.w.k % 8 == 0 && p.x_stride % 8 == 0 && p.x.address % 32 == 0;
    lane_products<A, W>(row_of<W>(p.w, p.first + j), x, rows, p.w.k, aligned, sum);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) break;
        float y = warp_sum(sum[r]);
        int64_t at = (t + r) * p.out_stride + j;
        if (lane_id() != 0) continue;
        if (p.to_f)
            cuda_at<float>(p.out)[at] = y;
        else
            cuda_at<A>(p.out)[at] = from_float<A>(y);
    }
}

template <typename A> static void launch_product(di_stream *s, const cuda_product *p) {
    dim3 grid(cuda_blocks(p->n, WARPS), cuda_blocks(p->n_rows, ROWS));
    uint32_t threads = PRODUCT_THREADS;
    if (p->w.dtype == DI_F8_E4M3)
        cuda_launch(s, "product", grid, threads, 0, product_kernel<A, DI_F8_E4M3>, *p);
    else if (p->w.dtype == DI_FP4_PAIR)
        cuda_launch(s, "product", grid, threads, 0, product_kernel<A, DI_FP4_PAIR>, *p);
    else if (p->w.dtype == DI_BF16)
        cuda_launch(s, "product", grid, threads, 0, product_kernel<A, DI_BF16>, *p);
    else
        cuda_launch(s, "product", grid, threads, 0, product_kernel<A, DI_F32>, *p);
}

void cuda_run_product(di_stream *s, const cuda_product *p) {
    CUDA_REQUIRE(p->groups >= 1 && p->n % p->groups == 0);
    CUDA_REQUIRE(p->w.dtype == DI_F32 || p->w.dtype == DI_BF16 || p->w.dtype == DI_F8_E4M3 ||
                 p->w.dtype == DI_FP4_PAIR);
    CUDA_REQUIRE(cuda_blocks(p->n_rows, ROWS) <= 65535);
    if (s->release)
        launch_product<__nv_bfloat16>(s, p);
    else
        launch_product<float>(s, p);
}

/* A warp a block of 32 values, in place or not; the row's quantised values as A. */
template <typename A>
static __global__ void quantized_kernel(const A *x, int64_t n_blocks, A *out) {
    int64_t b = static_cast<int64_t>(blockIdx.x) * WARPS + warp_id(), at = b * 32 + lane_id();
    uint8_t scale;
    if (b >= n_blocks) return;
    uint8_t code = warp_q8(to_float(x[at]), &scale);
    out[at] = from_float<A>(di_e4m3_decode(code) * di_e8m0_decode(scale));
}

di_ptr cuda_quantized(di_stream *s, di_ptr x, int64_t n_rows, int64_t width) {
    if (!s->release) return x;
    CUDA_REQUIRE(width % 32 == 0);
    int64_t blocks = n_rows * (width / 32);
    di_ptr out = cuda_take_a(s, n_rows * width);
    cuda_launch(s, "quantize", cuda_blocks(blocks, WARPS), PRODUCT_THREADS, 0,
                quantized_kernel<__nv_bfloat16>, cuda_at<const __nv_bfloat16>(x), blocks,
                cuda_at<__nv_bfloat16>(out));
    return out;
}

void cuda_linear_rows(di_stream *s, const di_matrix *w, di_ptr x, int32_t n_rows, bool quantize,
                      bool to_f, di_ptr out) {
    if (quantize) x = cuda_quantized(s, x, n_rows, w->k);
    cuda_product p = {};
    p.w = *w, p.n_rows = n_rows, p.n = w->n, p.groups = 1, p.to_f = to_f;
    p.x = x, p.x_stride = w->k, p.out = out, p.out_stride = w->n;
    cuda_run_product(s, &p);
}

void cuda_linear_groups(di_stream *s, const di_matrix *w, int32_t groups, di_ptr x, int32_t n_rows,
                        bool quantize, bool to_f, di_ptr out) {
    int64_t width = static_cast<int64_t>(groups) * w->k;
    if (quantize) x = cuda_quantized(s, x, n_rows, width);
    cuda_product p = {};
    p.w = *w, p.n_rows = n_rows, p.n = w->n, p.groups = groups, p.to_f = to_f;
    p.x = x, p.x_stride = width, p.out = out, p.out_stride = w->n;
    cuda_run_product(s, &p);
}

void cuda_op_linear(di_stream *s, const di_linear_args *args) {
    cuda_begin(s);
    cuda_linear_groups(s, &args->w, args->groups > 1 ? args->groups : 1, args->x, args->n_rows,
                       args->quantize, args->to_f, args->out);
}
