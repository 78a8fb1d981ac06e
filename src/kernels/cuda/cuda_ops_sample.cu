/* Sampling, and the counts that penalties need. */
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/logit_draw.cuh"

/* The seed of a live row's noise. */
static __device__ uint64_t noise_of(const di_sample_args &args, const di_sample_params &p,
                                    int32_t row) {
    if (p.noise != DI_NOISE_ROUND) return p.seed;
    int32_t first = cuda_at<const int32_t>(args.first)[row];
    return di_noise_seed(p.seed, DI_NOISE_DRAFT, cuda_at<const int32_t>(args.pos)[first]);
}

/* Token and, if it is wanted, log-probability of out row i, whose position is live. next: of one
 * thread, what comes out in all of them. */
template <typename X>
static __device__ int32_t sample_row(logit_team *team, const di_sample_args &args, int64_t i,
                                     const logit_source<float> &raw, const logit_source<X> &source,
                                     bool bad, int32_t next) {
    const di_sample_params &p = params_of(args, i);
    bool wanted = !cuda_none(args.logprob);
    row_look row = look(team, raw, source, wanted, bad, next);
    int32_t token = row.bad || row.best.id < 0 ? DI_NO_TOKEN : row.best.id;
    if (row.next >= 0 && row.next < args.n_out)
        prefetch_row(raw.x + (row.next - i) * args.vocab, args.vocab, team->rank);
    if (token >= 0 && p.temperature != 0) {
        int32_t of_step = cuda_at<const int32_t>(args.which)[i];
        int64_t position = static_cast<int64_t>(cuda_at<const int32_t>(args.pos)[of_step]) + 1;
        logit_rule<X> rule = truncate(*team, p, source, args.vocab, static_cast<X>(row.best.x));
        token = draw(team, source, args.vocab, rule, noise_of(args, p, of_step), position);
    }
    if (team->rank == 0 && threadIdx.x == 0) {
        cuda_at<int32_t>(args.token)[i] = token;
        if (wanted) cuda_at<float>(args.logprob)[i] = log_softmax(raw.x, row, token);
    }
    return row.next;
}

/* A dead row. */
static __device__ int32_t skip_row(logit_team *team, const di_sample_args &args, int64_t i,
                                   int32_t next) {
    if (team->rank == 0 && threadIdx.x == 0) {
        cuda_at<int32_t>(args.token)[i] = -1;
        if (!cuda_none(args.logprob)) cuda_at<float>(args.logprob)[i] = 0;
    }
    auto join = [](int32_t n) { return __reduce_max_sync(ALL_LANES, n); };
    const int32_t *parts = exchange(team, next, -1, join);
    return join(lane_id() < LOGIT_BLOCKS ? parts[lane_id()] : -1);
}

/* The last of a slot's rows stays: the number of every row with a token goes where its token is to
 * go, and the largest has won. By one block. */
static __device__ void next_tokens(const di_sample_args &args) {
    int32_t *next = cuda_at<int32_t>(args.next_token);
    for (int32_t begin = 0; begin < args.n_out; begin += LOGIT_THREADS) {
        int32_t i = begin + static_cast<int32_t>(threadIdx.x), token = -1, slot = 0;
        if (i < args.n_out) {
            token = __ldcg(cuda_at<const int32_t>(args.token) + i);
            slot = params_of(args, i).slot;
        }
        if (token >= 0) __stcg(next + slot, -1);
        __syncthreads();
        if (token >= 0) atomicMax(next + slot, i);
        __syncthreads();
        bool won = token >= 0 && __ldcg(next + slot) == i;
        __syncthreads();
        if (won) __stcg(next + slot, token);
        __syncthreads();
    }
}

/* Which row a cluster takes behind its first: the next that nobody has. For clusters do not all run at
 * once, and rows take different times. One thread asks; n_out times in all, so that the counter is 0 again
 * at the end. */
static __device__ __forceinline__ int32_t claim_row(const logit_team &team, int32_t n_out,
                                                    int32_t n_clusters, uint32_t *counter) {
    if (team.rank > 0 || threadIdx.x > 0) return -1;
    if (n_clusters == n_out) return n_out;
    return n_clusters + static_cast<int32_t>(atomicInc(counter, static_cast<uint32_t>(n_out) - 1));
}

/* Each cluster has a row of scratch for changed logits. */
static __global__ __cluster_dims__(LOGIT_BLOCKS, 1, 1)
    __launch_bounds__(LOGIT_THREADS, LOGIT_AT_ONCE) void sample_kernel(di_sample_args args,
                                                                       double *scratch,
                                                                       uint32_t *counters) {
    __shared__ logit_shared shared;
    logit_team team = team_begin(&shared);
    int32_t n_clusters = static_cast<int32_t>(gridDim.x) / LOGIT_BLOCKS;
    int32_t cluster = static_cast<int32_t>(blockIdx.x) / LOGIT_BLOCKS;
    scratch += static_cast<uint64_t>(cluster) * logit_scratch(args.vocab);
    for (int32_t i = cluster; i < args.n_out;) {
        int32_t next = claim_row(team, args.n_out, n_clusters, counters + 1);
        int32_t row = cuda_at<const int32_t>(args.which)[i];
        if (cuda_at<const int32_t>(args.pos)[row] < 0) {
            i = skip_row(&team, args, i, next);
            continue;
        }
        const di_sample_params &p = params_of(args, i);
        const float *logits =
            cuda_at<const float>(args.logits) + static_cast<int64_t>(i) * args.vocab;
        logit_source<float> raw = source_of(logits, mask_of(args, p), args.vocab, team.rank);
        if (has_penalties(args, p) || p.n_bias > 0) {
            bool bad = change_row(&team, args, p, i, logits, scratch);
            const double *changed = scratch;
            i = sample_row(&team, args, i, raw, source_of(changed, NULL, args.vocab, team.rank),
                           bad, next);
        } else {
            i = sample_row(&team, args, i, raw, raw, false, next);
        }
    }
    team_meet(&team);
    if (team.rank == 0 && last_block(counters, static_cast<uint32_t>(n_clusters)))
        next_tokens(args);
}

void cuda_op_sample(di_stream *s, const di_sample_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->vocab <= LOGIT_MAX_VOCAB);
    uint64_t n = static_cast<uint64_t>(args->n_out);
    uint64_t clusters = n < CUDA_SAMPLE_ROWS ? n : CUDA_SAMPLE_ROWS;
    double *scratch = cuda_take<double>(s, clusters * logit_scratch(args->vocab));
    cuda_launch(s, "sample", static_cast<uint32_t>(clusters * LOGIT_BLOCKS), LOGIT_THREADS, 0,
                sample_kernel, *args, scratch, cuda_counters(s));
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
