/* Sampling, and the counts that penalties need. */
#include "kernels/cuda/logits.cuh"

/* The seed of a live row's noise. */
static __device__ uint64_t noise_of(const di_sample_args &args, int64_t i, int32_t row) {
    const di_sample_params &p = params_of(args, i);
    if (p.noise != DI_NOISE_ROUND) return p.seed;
    int32_t first = cuda_at<const int32_t>(args.first)[row];
    return di_noise_seed(p.seed, DI_NOISE_DRAFT, cuda_at<const int32_t>(args.pos)[first]);
}

/* Blocks of threads take the rows in turn; each has a row of scratch. */
static __global__ __launch_bounds__(LOGIT_THREADS) void sample_kernel(di_sample_args args,
                                                                      double *scratch) {
    int64_t vocab = args.vocab;
    double *x = scratch + vocab * blockIdx.x;
    for (int64_t i = blockIdx.x; i < args.n_out; i += gridDim.x) {
        const float *logits = cuda_at<const float>(args.logits) + i * vocab;
        int32_t row = cuda_at<const int32_t>(args.which)[i], token = -1;
        int32_t pos = cuda_at<const int32_t>(args.pos)[row];
        if (pos >= 0) {
            token =
                process_row(args, i, logits, x) < 0
                    ? DI_NO_TOKEN
                    : draw(x, args.vocab, noise_of(args, i, row), static_cast<int64_t>(pos) + 1);
        }
        bool wanted = !cuda_none(args.logprob);
        float logprob = wanted ? log_softmax(logits, args.vocab, token) : 0;
        if (threadIdx.x == 0) {
            cuda_at<int32_t>(args.token)[i] = token;
            if (wanted) cuda_at<float>(args.logprob)[i] = logprob;
        }
    }
}

/* One thread, in the order of the rows: the last of a slot's rows stays. */
static __global__ void next_token_kernel(di_sample_args args) {
    for (int32_t i = 0; i < args.n_out; i++) {
        int32_t token = cuda_at<const int32_t>(args.token)[i];
        if (token >= 0) cuda_at<int32_t>(args.next_token)[params_of(args, i).slot] = token;
    }
}

void cuda_op_sample(di_stream *s, const di_sample_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->vocab <= LOGIT_MAX_VOCAB);
    uint64_t n = static_cast<uint64_t>(args->n_out);
    uint64_t blocks = n < CUDA_SAMPLE_BLOCKS ? n : CUDA_SAMPLE_BLOCKS;
    double *scratch = cuda_take<double>(s, blocks * static_cast<uint64_t>(args->vocab));
    uint32_t any = n > 0;
    cuda_launch(s, "sample", static_cast<uint32_t>(blocks), LOGIT_THREADS, 0, sample_kernel, *args,
                scratch);
    cuda_launch(s, "sample", any, 1, 0, next_token_kernel, *args);
}

/* Integers: the order in which they are added does not show. */
static __global__ void tally_kernel(di_tally_args args) {
    int32_t i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= args.n) return;
    int32_t id = cuda_at<const int32_t>(args.tokens)[i];
    int32_t slot = cuda_at<const int32_t>(args.slots)[i];
    if (id < 0) return;
    int32_t *count = cuda_at<int32_t>(args.counts) + static_cast<int64_t>(slot) * args.vocab + id;
    if (args.prompt)
        atomicOr(count, static_cast<int32_t>(DI_COUNT_PROMPT));
    else
        atomicAdd(count, args.delta);
}

void cuda_op_tally(di_stream *s, const di_tally_args *args) {
    cuda_begin(s);
    cuda_launch(s, "tally", cuda_blocks(args->n, 256), 256, 0, tally_kernel, *args);
}
