/* The head, and the token loop of drafts (dspark.md 5). */
#include "kernels/cuda/streams.cuh"
#include "kernels/cuda/weights.cuh"

/* A block an out row. */
template <typename A> static __global__ void head_kernel(di_head_args args, A *normed) {
    int64_t i = blockIdx.x, width = args.width;
    begin_early();
    int64_t row = cuda_at<const int32_t>(args.which)[i];
    A *out = normed + i * width;
    collapse_row(cuda_at<const A>(args.streams) + row * args.hc * width,
                 cuda_at<const float>(args.pre) + row * args.hc, args.hc, width, out);
    row_norm(out, args.norm, width, args.eps, out); /* every thread reads what it wrote itself */
}

void cuda_op_head(di_stream *s, const di_head_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->head.k == args->width && args->norm.n == args->width);
    di_ptr normed = args->normed;
    uint32_t rows = static_cast<uint32_t>(args->n_out);
    if (cuda_none(normed)) normed = cuda_take_a(s, static_cast<int64_t>(rows) * args->width);
    if (s->release)
        cuda_launch_early(s, "head", rows, ROW_THREADS, 0, head_kernel<__nv_bfloat16>, *args,
                          cuda_at<__nv_bfloat16>(normed));
    else
        cuda_launch_early(s, "head", rows, ROW_THREADS, 0, head_kernel<float>, *args,
                          cuda_at<float>(normed));
    cuda_linear_rows(s, &args->head, normed, args->n_out, false, true, args->logits);
}

/* A block a sequence: [h; e], zeros where there is no token before. */
template <typename A> static __global__ void join_kernel(di_markov_args args, A *joined) {
    int64_t i = blockIdx.x, width = args.width, rank = args.embed.k;
    begin_early();
    int32_t prev = cuda_at<const int32_t>(args.prev)[i * args.prev_stride];
    const A *hidden = cuda_at<const A>(args.hidden) + i * args.hidden_stride * width;
    A *out = joined + i * (width + rank);
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS)
        out[d] = prev < 0 ? from_float<A>(0) : hidden[d];
    weight_row row = row_of<DI_BF16>(args.embed, prev < 0 ? 0 : prev);
    for (int64_t d = threadIdx.x; d < rank; d += ROW_THREADS)
        out[width + d] = from_float<A>(prev < 0 ? 0 : decode1<DI_BF16>(row, d));
}

static __global__ void add_kernel(const float *base, int64_t n, float *out) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x;
    begin_early();
    if (i < n) out[i] = base[i] + out[i];
}

void cuda_op_markov(di_stream *s, const di_markov_args *args) {
    cuda_begin(s);
    int64_t joined = static_cast<int64_t>(args->width) + args->embed.k;
    int64_t n_logits = static_cast<int64_t>(args->n) * args->vocab;
    CUDA_REQUIRE(args->embed.dtype == DI_BF16 && args->proj.k == joined &&
                 args->head.k == args->embed.k && args->head.n == args->vocab);
    di_ptr x = cuda_take_a(s, args->n * joined);
    uint32_t rows = static_cast<uint32_t>(args->n);
    if (s->release)
        cuda_launch_early(s, "markov", rows, ROW_THREADS, 0, join_kernel<__nv_bfloat16>, *args,
                          cuda_at<__nv_bfloat16>(x));
    else
        cuda_launch_early(s, "markov", rows, ROW_THREADS, 0, join_kernel<float>, *args,
                          cuda_at<float>(x));
    cuda_product bias = {};
    bias.w = args->head, bias.n_rows = args->n, bias.groups = 1;
    bias.x = di_ptr_at(x, static_cast<uint64_t>(args->width) * cuda_a_bytes(s));
    bias.x_stride = joined, bias.out = args->logits, bias.out_stride = args->vocab;
    bias.to_f = true;
    cuda_run_product(s, &bias);
    cuda_launch_early(s, "markov", cuda_blocks(n_logits, ROW_THREADS), ROW_THREADS, 0, add_kernel,
                      cuda_at<const float>(args->base), n_logits, cuda_at<float>(args->logits));
    cuda_linear_rows(s, &args->proj, x, args->n, false, true, args->confidence);
}
