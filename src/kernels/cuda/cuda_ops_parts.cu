/* Steps of operations: norms, RoPE, quantisers, float32 copies. */
#include "kernels/cuda/rows.cuh"

/* A block a row, a thread a chunk. */
template <typename A> struct norm_args {
    const A *x;
    di_vector weight;
    double eps;
    A *out;
};
template <bool RELEASED, typename A>
static __device__ __forceinline__ void norm_row(const norm_args<A> &args) {
    int64_t n = args.weight.n, at = static_cast<int64_t>(blockIdx.x) * n;
    let_kernels_begin();
    norm_chunks<RELEASED, RELEASED>(args.x + at, args.weight, n, args.eps, args.out + at);
}
template <typename A>
static __global__ __launch_bounds__(ROW_RELEASED, 2) void norm_released(norm_args<A> args) {
    norm_row<true>(args);
}
template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void norm_any(norm_args<A> args) {
    norm_row<false>(args);
}

template <typename A>
static void norm_rows(di_stream *s, di_ptr x, int64_t n_rows, di_vector weight, double eps,
                      di_ptr out) {
    norm_args<A> args = {cuda_at<const A>(x), weight, eps, cuda_at<A>(out)};
    uint32_t rows = static_cast<uint32_t>(n_rows), threads = row_threads(weight.n);
    if (released_rows(weight.n, {x, out}))
        cuda_launch_early(s, "norm", rows, threads, 0, norm_released<A>, args);
    else
        cuda_launch_early(s, "norm", rows, threads, 0, norm_any<A>, args);
}

void cuda_norm_rows(di_stream *s, di_ptr x, int64_t n_rows, di_vector weight, double eps,
                    di_ptr out) {
    if (s->release)
        norm_rows<__nv_bfloat16>(s, x, n_rows, weight, eps, out);
    else
        norm_rows<float>(s, x, n_rows, weight, eps, out);
}

void cuda_op_rms_norm(di_stream *s, const di_rms_norm_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->weight.n == args->width);
    cuda_norm_rows(s, args->x, args->n_rows, args->weight, args->eps, args->out);
}

template <typename A> static __global__ void rope_kernel(di_rope_args args) {
    int64_t t = blockIdx.x;
    begin_early();
    row_rope(cuda_at<A>(args.x) + t * args.n_heads * args.width, args.n_heads, args.width,
             args.rope, cuda_at<const int32_t>(args.positions)[t], args.inverse);
}

void cuda_op_rope(di_stream *s, const di_rope_args *args) {
    cuda_begin(s);
    CUDA_LAUNCH_EARLY_A(s, "rope", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0, rope_kernel,
                        *args);
}

template <typename A> static __global__ void quantize_kernel(di_quantize_args args) {
    int64_t t = blockIdx.x, width = args.width;
    int64_t code_bytes = args.kind == DI_Q8 ? width : width / 2;
    int64_t scale_bytes = width / (args.kind == DI_Q4C ? 16 : 32);
    begin_early();
    row_quantize(args.kind, cuda_at<const A>(args.x) + t * width, args.width,
                 cuda_at<uint8_t>(args.codes) + t * code_bytes,
                 cuda_at<uint8_t>(args.scales) + t * scale_bytes);
}

void cuda_op_quantize(di_stream *s, const di_quantize_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->width % (args->kind == DI_Q4C ? 16 : 32) == 0);
    CUDA_LAUNCH_EARLY_A(s, "quantize", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0,
                        quantize_kernel, *args);
}

template <typename T> static __global__ void to_f32_kernel(const T *src, int64_t n, float *out) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x;
    begin_early();
    if (i < n) out[i] = to_float(src[i]);
}

void cuda_op_to_f32(di_stream *s, const di_to_f32_args *args) {
    cuda_begin(s);
    uint32_t blocks = cuda_blocks(args->n, ROW_THREADS);
    if (s->release && !args->from_f)
        cuda_launch_early(s, "to_f32", blocks, ROW_THREADS, 0, to_f32_kernel<__nv_bfloat16>,
                          cuda_at<const __nv_bfloat16>(args->src), args->n,
                          cuda_at<float>(args->out));
    else
        cuda_launch_early(s, "to_f32", blocks, ROW_THREADS, 0, to_f32_kernel<float>,
                          cuda_at<const float>(args->src), args->n, cuda_at<float>(args->out));
}
