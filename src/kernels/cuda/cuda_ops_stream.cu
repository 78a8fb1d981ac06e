/* Streams: embedding and mean (model.md 3.4, dspark.md 3). Sublayers: cuda_ops_sublayer.cu. Mixing:
 * cuda_ops_mix.cu. */
#include "kernels/cuda/streams.cuh"

/* ---- Embedding ---- */

/* A dead row's token may be anything. */
template <typename A> static __global__ void embed_kernel(di_embed_args args) {
    int64_t t = grid_row(), width = args.embed.k, at = element_chunk();
    begin_early();
    if (t >= args.batch.n_rows || cuda_at<const int32_t>(args.batch.pos)[t] < 0) return;
    int64_t token = cuda_at<const int32_t>(args.batch.token)[t];
    di_vector row = {DI_BF16, args.embed.k,
                     di_ptr_at(args.embed.data, static_cast<uint64_t>(2 * width * token))};
    A *streams = cuda_at<A>(args.streams) + t * args.hc * width;
    if (blockIdx.x == 0 && threadIdx.x < args.hc)
        cuda_at<float>(args.pre)[t * args.hc + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
    if (at >= width) return;
    float v[ROW_CHUNK];
    vector_chunk(row, at, v);
    bool whole = whole_chunks(streams, width);
    for (int32_t j = 0; j < args.hc; j++) {
        if (whole)
            store_chunk<true>(streams + j * width, at, width, v);
        else
            store_chunk<false>(streams + j * width, at, width, v);
    }
}

void cuda_op_embed(di_stream *s, const di_embed_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->embed.dtype == DI_BF16 && args->hc <= ELEMENT_THREADS);
    CUDA_LAUNCH_EARLY_A(s, "embed", element_grid(args->batch.n_rows, args->embed.k),
                        ELEMENT_THREADS, 0, embed_kernel, *args);
}

/* ---- Mean ---- */

template <bool WHOLE, typename A>
static __device__ __forceinline__ void mean_chunk(const di_stream_mean_args &args, int64_t t,
                                                  int64_t at) {
    int64_t width = args.width;
    const A *streams = cuda_at<const A>(args.streams) + t * args.hc * width;
    float sum[ROW_CHUNK] = {}, v[ROW_CHUNK];
#pragma unroll 4
    for (int32_t j = 0; j < args.hc; j++) {
        load_chunk<WHOLE>(streams + j * width, at, width, v);
        for (int i = 0; i < ROW_CHUNK; i++) sum[i] += v[i];
    }
    for (int i = 0; i < ROW_CHUNK; i++) sum[i] = sum[i] / static_cast<float>(args.hc);
    store_chunk<WHOLE>(cuda_at<A>(args.out) + t * args.out_stride, at, width, sum);
}

template <typename A> static __global__ void stream_mean_kernel(di_stream_mean_args args) {
    int64_t t = grid_row(), at = element_chunk();
    begin_early();
    if (t >= args.n_rows || at >= args.width) return;
    bool whole = whole_chunks(cuda_at<const A>(args.streams), args.width) &&
                 whole_chunks(cuda_at<const A>(args.out), args.out_stride);
    if (whole)
        mean_chunk<true, A>(args, t, at);
    else
        mean_chunk<false, A>(args, t, at);
}

void cuda_op_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    cuda_begin(s);
    CUDA_LAUNCH_EARLY_A(s, "stream_mean", element_grid(args->n_rows, args->width), ELEMENT_THREADS,
                        0, stream_mean_kernel, *args);
}
