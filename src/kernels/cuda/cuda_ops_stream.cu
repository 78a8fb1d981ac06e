/* Streams: embedding, mixing, collapse and expand (model.md 3.4, 3.5). */
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/streams.cuh"
#include "kernels/cuda/weights.cuh"

/* A block a row; a dead row's token may be anything. */
template <typename A> static __global__ void embed_kernel(di_embed_args args) {
    int64_t t = blockIdx.x, width = args.embed.k;
    if (cuda_at<const int32_t>(args.batch.pos)[t] < 0) return;
    const uint8_t *row = cuda_at<const uint8_t>(args.embed.data) +
                         2 * width * cuda_at<const int32_t>(args.batch.token)[t];
    A *streams = cuda_at<A>(args.streams) + t * args.hc * width;
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS) {
        A value = from_float<A>(load_bf16(row + 2 * d));
        for (int32_t j = 0; j < args.hc; j++) streams[j * width + d] = value;
    }
    if (threadIdx.x < args.hc)
        cuda_at<float>(args.pre)[t * args.hc + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

void cuda_op_embed(di_stream *s, const di_embed_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->embed.dtype == DI_BF16);
    CUDA_LAUNCH_A(s, "embed", static_cast<uint32_t>(args->batch.n_rows), ROW_THREADS, 0,
                  embed_kernel, *args);
}

/* ---- Mixing coefficients ---- */

static __device__ void normalise(double *comb, int32_t hc, int32_t of, int32_t step, double eps) {
    double sum = 0;
    for (int32_t i = 0; i < hc; i++) sum += comb[of + i * step];
    for (int32_t i = 0; i < hc; i++) comb[of + i * step] /= sum + eps;
}

/* Row softmax + eps of row i. */
static __device__ void soften(double *row, int32_t hc, double eps) {
    double top = row[0], sum = 0;
    for (int32_t k = 1; k < hc; k++) top = fmax(top, row[k]);
    for (int32_t k = 0; k < hc; k++) sum += row[k] = exp(row[k] - top);
    for (int32_t k = 0; k < hc; k++) row[k] = row[k] / sum + eps;
}

/* Sinkhorn by the first warp: lane i has row i, then column i. */
static __device__ void sinkhorn(double *comb, int32_t hc, int32_t iters, double eps) {
    int32_t lane = lane_id();
    if (lane < hc) soften(comb + lane * hc, hc, eps);
    __syncwarp();
    if (lane < hc) normalise(comb, hc, lane, hc, eps);
    for (int32_t i = 1; i < iters; i++) {
        __syncwarp();
        if (lane < hc) normalise(comb, hc, lane * hc, 1, eps);
        __syncwarp();
        if (lane < hc) normalise(comb, hc, lane, hc, eps);
    }
    __syncwarp();
}

/* One row: m [(2 + hc) hc], the bare products, to pre, post and comb. In double: a few hundred
 * values, and what they are multiplied with must not be off. */
template <typename A> static __global__ void mix_kernel(di_mix_args args, const float *products) {
    __shared__ double comb[DI_OPS_MAX_HC * DI_OPS_MAX_HC];
    int32_t hc = args.hc, n_mix = (2 + hc) * hc;
    int64_t t = blockIdx.x, width = static_cast<int64_t>(hc) * args.width;
    const A *v = cuda_at<const A>(args.streams) + t * width;
    double squares = 0;
    for (int64_t i = threadIdx.x; i < width; i += ROW_THREADS) {
        double x = static_cast<double>(to_float(v[i]));
        squares += x * x;
    }
    double root = sqrt(block_sum<ROW_WARPS>(squares) / static_cast<double>(width) + args.rms_eps);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n_mix; i += ROW_THREADS) {
        int part = i < hc ? 0 : i < 2 * hc ? 1 : 2;
        double m = static_cast<double>(products[t * n_mix + i]) / root;
        m = m * static_cast<double>(vector_value(args.scale, part)) +
            static_cast<double>(vector_value(args.base, i));
        if (part == 0)
            cuda_at<float>(args.pre)[t * hc + i] = static_cast<float>(sigmoid(m) + args.hc_eps);
        else if (part == 1)
            cuda_at<float>(args.post)[t * hc + i - hc] = static_cast<float>(2 * sigmoid(m));
        else
            comb[i - 2 * hc] = m;
    }
    __syncthreads();
    if (warp_id() > 0) return;
    sinkhorn(comb, hc, args.iters, args.hc_eps);
    for (int32_t i = lane_id(); i < hc * hc; i += WARP)
        cuda_at<float>(args.comb)[t * hc * hc + i] = static_cast<float>(comb[i]);
}

void cuda_op_mix(di_stream *s, const di_mix_args *args) {
    cuda_begin(s);
    int32_t n_mix = (2 + args->hc) * args->hc;
    CUDA_REQUIRE(args->hc >= 1 && args->hc <= DI_OPS_MAX_HC && args->iters >= 1 &&
                 args->fn.n == n_mix && args->fn.k == args->hc * args->width);
    di_ptr products = cuda_take_f(s, static_cast<int64_t>(args->n_rows) * n_mix);
    cuda_linear_rows(s, &args->fn, args->streams, args->n_rows, false, true, products);
    CUDA_LAUNCH_A(s, "mix", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0, mix_kernel, *args,
                  cuda_at<const float>(products));
}

/* ---- Collapse and expand ---- */

template <typename A> static __global__ void sublayer_in_kernel(di_sublayer_in_args args) {
    int64_t t = blockIdx.x, width = args.width;
    A *out = cuda_at<A>(args.out) + t * width;
    collapse_row(cuda_at<const A>(args.streams) + t * args.hc * width,
                 cuda_at<const float>(args.pre) + t * args.hc, args.hc, width, out);
    if (!cuda_none(args.collapsed)) {
        for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS)
            cuda_at<A>(args.collapsed)[t * width + d] = out[d];
    }
    row_norm(out, args.norm, width, args.eps, out); /* every thread reads what it wrote itself */
}

void cuda_op_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    cuda_begin(s);
    CUDA_LAUNCH_A(s, "sublayer_in", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0,
                  sublayer_in_kernel, *args);
}

template <typename A> static __global__ void sublayer_out_kernel(di_sublayer_out_args args) {
    __shared__ float post[DI_OPS_MAX_HC], comb[DI_OPS_MAX_HC * DI_OPS_MAX_HC];
    int64_t t = blockIdx.x, width = args.width;
    int32_t hc = args.hc;
    if (threadIdx.x < hc) post[threadIdx.x] = cuda_at<const float>(args.post)[t * hc + threadIdx.x];
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < hc * hc; i += ROW_THREADS)
        comb[i] = cuda_at<const float>(args.comb)[t * hc * hc + i];
    __syncthreads();
    A *streams = cuda_at<A>(args.streams) + t * hc * width;
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS) {
        float before[DI_OPS_MAX_HC], y = to_float(cuda_at<const A>(args.y)[t * width + d]);
        for (int32_t i = 0; i < hc; i++) before[i] = to_float(streams[i * width + d]);
        for (int32_t k = 0; k < hc; k++) {
            float sum = 0;
            for (int32_t i = 0; i < hc; i++) sum = fmaf(comb[i * hc + k], before[i], sum);
            streams[k * width + d] = from_float<A>(fmaf(post[k], y, sum));
        }
    }
}

void cuda_op_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->hc >= 1 && args->hc <= DI_OPS_MAX_HC);
    CUDA_LAUNCH_A(s, "sublayer_out", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0,
                  sublayer_out_kernel, *args);
}

template <typename A> static __global__ void stream_mean_kernel(di_stream_mean_args args) {
    int64_t t = blockIdx.x, width = args.width;
    const A *streams = cuda_at<const A>(args.streams) + t * args.hc * width;
    A *out = cuda_at<A>(args.out) + t * args.out_stride;
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS) {
        float sum = 0;
        for (int32_t j = 0; j < args.hc; j++) sum += to_float(streams[j * width + d]);
        out[d] = from_float<A>(sum / static_cast<float>(args.hc));
    }
}

void cuda_op_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    cuda_begin(s);
    CUDA_LAUNCH_A(s, "stream_mean", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0,
                  stream_mean_kernel, *args);
}
