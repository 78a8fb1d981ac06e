/* Which drafts are verified, and which of them stand (dspark.md 6 and 8). */
#include "kernels/cuda/logits.cuh"

/* ---- allot ---- */

static __device__ int32_t draft_of(const di_allot_args &args, const di_block &block, int32_t k) {
    return cuda_at<const int32_t>(
        args.drafts)[static_cast<int64_t>(k) * args.n_columns + block.column];
}

/* How many drafts block b may have. */
static __device__ int32_t limit_of(const di_allot_args &args, const di_block &block) {
    int32_t limit = block.most < args.block ? block.most : args.block;
    return args.n_drafts == 0 || limit < 0 ? 0 : limit;
}

/* a_k of one block; they never grow with k. */
static __device__ void survivals(const di_allot_args &args, const di_block &block, double *out) {
    double a = 1;
    for (int32_t k = 0; k < limit_of(args, block); k++) {
        double logit = static_cast<double>(cuda_at<const float>(
            args.confidence)[static_cast<int64_t>(k) * args.n_columns + block.column]);
        float temperature = cuda_at<const float>(args.temperatures)[block.law * args.block + k];
        if (k > 0 && draft_of(args, block, k - 1) < 0) logit = NAN;
        double x = logit / static_cast<double>(temperature);
        a *= isnan(x) ? 0 : 1 / (1 + exp(-x)); /* di_allot_confidence */
        out[k] = a > 0 ? fmin(a, 1.0) : 0;
    }
}

/* Whether fewer than n_drafts come before draft k of block b. Within a block those that do are its
 * first ones. */
static __device__ bool taken(const di_allot_args &args, const double *survival, int32_t b,
                             int32_t k) {
    const di_block *blocks = cuda_at<const di_block>(args.blocks);
    double a = survival[static_cast<int64_t>(b) * args.block + k];
    int32_t before = 0;
    for (int32_t c = 0; c < args.n_blocks && before < args.n_drafts; c++) {
        const double *of = survival + static_cast<int64_t>(c) * args.block;
        int32_t limit = limit_of(args, blocks[c]), j = 0;
        while (j < limit && (of[j] > a || (of[j] == a && (j < k || (j == k && c < b))))) j++;
        before += j;
    }
    return before < args.n_drafts;
}

static __device__ void write_rows(const di_allot_args &args, int32_t b, int32_t begin,
                                  int32_t length) {
    di_block block = cuda_at<const di_block>(args.blocks)[b];
    for (int32_t k = 0; k <= length; k++) {
        int32_t row = begin + k;
        int32_t token = k == 0 ? cuda_at<const int32_t>(args.next_token)[block.slot]
                               : draft_of(args, block, k - 1);
        if (k > 0 && token < 0) token = 0;
        cuda_at<di_row>(args.rows)[row] = di_row{token, block.slot, k};
        cuda_at<int32_t>(args.which)[row] = row;
        cuda_at<int32_t>(args.slot)[row] = block.slot;
        cuda_at<int32_t>(args.param_of)[row] = b;
        cuda_at<int32_t>(args.extra_at)[row] = begin + 1;
        cuda_at<int32_t>(args.n_extra)[row] = k;
    }
    cuda_at<int32_t>(args.n_rows)[b] = 1 + length;
}

static constexpr int ALLOT_THREADS = 512;

/* One block. Threads share blocks in phase one and three, drafts in phase two. */
static __global__ void allot_kernel(di_allot_args args, double *survival, int32_t *lengths) {
    const di_block *blocks = cuda_at<const di_block>(args.blocks);
    int32_t n = args.n_blocks, thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t b = thread; b < n; b += ALLOT_THREADS) {
        lengths[b] = 0;
        survivals(args, blocks[b], survival + static_cast<int64_t>(b) * args.block);
    }
    __syncthreads();
    for (int64_t i = thread; i < static_cast<int64_t>(n) * args.block; i += ALLOT_THREADS) {
        int32_t b = static_cast<int32_t>(i / args.block), k = static_cast<int32_t>(i % args.block);
        if (k < limit_of(args, blocks[b]) && taken(args, survival, b, k)) atomicAdd(&lengths[b], 1);
    }
    __syncthreads();
    for (int32_t b = thread; b < n; b += ALLOT_THREADS) {
        int32_t begin = b;
        for (int32_t c = 0; c < b; c++) begin += lengths[c];
        write_rows(args, b, begin, lengths[b]);
    }
}

void cuda_op_allot(di_stream *s, const di_allot_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->block <= DI_OPS_MAX_BLOCK);
    uint64_t n = static_cast<uint64_t>(args->n_blocks);
    double *survival = cuda_take<double>(s, n * static_cast<uint64_t>(args->block));
    int32_t *lengths = cuda_take<int32_t>(s, n);
    uint32_t any = n > 0;
    cuda_launch(s, "allot", any, ALLOT_THREADS, 0, allot_kernel, *args, survival, lengths);
}

/* ---- accept ---- */

/* What rejection makes of one out row: the verdict on the draft in the row behind it. */
typedef struct verdict {
    int32_t stands, token;
    float logprob;
} verdict;

/* Draft k of a block stands in the row behind this one. */
typedef struct judged {
    int32_t block, k; /* block -1: nothing to judge here */
} judged;

static __device__ int32_t begin_of(const di_accept_args &args, int32_t b) {
    int32_t begin = 0;
    for (int32_t c = 0; c < b; c++) begin += cuda_at<const int32_t>(args.n_rows)[c];
    return begin;
}

static __global__ void find_judged_kernel(di_accept_args args, judged *out) {
    int32_t thread = static_cast<int32_t>(threadIdx.x), n_out = args.sample.n_out;
    for (int32_t i = thread; i < n_out; i += ALLOT_THREADS) out[i] = judged{-1, 0};
    __syncthreads();
    for (int32_t b = thread; b < args.n_blocks; b += ALLOT_THREADS) {
        if (!cuda_at<const di_block>(args.blocks)[b].reject) continue;
        int32_t begin = begin_of(args, b), n = cuda_at<const int32_t>(args.n_rows)[b];
        for (int32_t k = 0; k + 1 < n; k++) {
            if (cuda_at<const int32_t>(args.sample.token)[begin + k] < 0) break;
            out[begin + k] = judged{b, k};
        }
    }
}

/* A sample of max(p - q, 0); p, q processed rows, their totals log sum exp. */
static __device__ int32_t draw_residual(const double *p, double p_total, const double *q,
                                        double q_total, int32_t vocab, uint64_t seed,
                                        int64_t position) {
    uint64_t noise = di_noise_seed(seed, DI_NOISE_RESIDUAL, 0);
    scored mine = {0, -1};
    double mass = 0;
    EACH_ID(id, vocab) {
        double left = exp(p[id] - p_total) - exp(q[id] - q_total);
        if (!(left > 0)) continue;
        mass += left;
        mine = better(mine, scored{log(left) + di_gumbel(noise, position, id), id});
    }
    mass = block_sum<LOGIT_WARPS>(mass);
    int32_t token = block_best(mine).id;
    return mass > DI_TINY_RESIDUAL ? token : draw(p, vocab, noise, position);
}

/* di_reject_draft on processed rows; both are distributions. */
static __device__ verdict judge(const double *p, const double *q, int32_t vocab, int32_t draft,
                                uint64_t seed, int64_t position) {
    __syncthreads(); /* what other threads wrote of p and q is read */
    double p_total = log_total(p, vocab), q_total = log_total(q, vocab);
    if (draft >= 0 && draft < vocab) {
        uint64_t words = di_noise_seed(seed, DI_NOISE_ACCEPT, position);
        double u = di_uniform53(static_cast<uint32_t>(words >> 32), static_cast<uint32_t>(words));
        double p_draft = exp(p[draft] - p_total), q_draft = exp(q[draft] - q_total);
        if (q_draft > 0 && u * q_draft < p_draft) return verdict{1, draft, 0};
    }
    return verdict{0, draw_residual(p, p_total, q, q_total, vocab, seed, position), 0};
}

/* Blocks of threads take the rows that are judged in turn; each has two rows of scratch. A verdict
 * does not hang on those before it, so all can be made at once. */
static __global__ __launch_bounds__(LOGIT_THREADS) void judge_kernel(di_accept_args args,
                                                                     const judged *which,
                                                                     double *scratch,
                                                                     verdict *out) {
    const di_sample_args &sample = args.sample;
    int64_t vocab = sample.vocab;
    double *p = scratch + 2 * vocab * blockIdx.x, *q = p + vocab;
    for (int64_t i = blockIdx.x; i < sample.n_out; i += gridDim.x) {
        judged j = which[i];
        if (j.block < 0) continue;
        int32_t column = cuda_at<const di_block>(args.blocks)[j.block].column;
        const float *logits = cuda_at<const float>(sample.logits) + i * vocab;
        const float *of_draft = cuda_at<const float>(args.draft_logits) +
                                (static_cast<int64_t>(j.k) * args.n_columns + column) * vocab;
        int32_t drawn = cuda_at<const int32_t>(sample.token)[i];
        int32_t behind = cuda_at<const int32_t>(sample.which)[i + 1];
        int32_t draft = cuda_at<const int32_t>(args.row_token)[behind];
        int64_t row = cuda_at<const int32_t>(sample.which)[i];
        int64_t position = static_cast<int64_t>(cuda_at<const int32_t>(sample.pos)[row]) + 1;
        verdict v = {0, drawn, 0};
        bool good = process_row(sample, i, logits, p) >= 0; /* sample has drawn from it */
        if (good && process_row(sample, i, of_draft, q) >= 0)
            v = judge(p, q, sample.vocab, draft, params_of(sample, i).seed, position);
        v.logprob = log_softmax(logits, sample.vocab, v.token);
        if (threadIdx.x == 0) out[i] = v;
        __syncthreads(); /* p and q are written again */
    }
}

/* How many drafts of a block stand; tokens of its rows become those that come out. */
static __device__ int32_t walk(const di_accept_args &args, const di_block &block, int32_t begin,
                               int32_t n, const verdict *verdicts) {
    int32_t *token = cuda_at<int32_t>(args.sample.token);
    const int32_t *which = cuda_at<const int32_t>(args.sample.which);
    int32_t m = 0;
    for (; m + 1 < n && token[begin + m] >= 0; m++) {
        int32_t i = begin + m;
        if (!block.reject) {
            if (cuda_at<const int32_t>(args.row_token)[which[i + 1]] != token[i]) break;
            continue;
        }
        token[i] = verdicts[i].token;
        cuda_at<float>(args.sample.logprob)[i] = verdicts[i].logprob;
        if (!verdicts[i].stands) break;
    }
    return m;
}

static __global__ void accept_kernel(di_accept_args args, const verdict *verdicts) {
    int32_t b = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    if (b >= args.n_blocks) return;
    di_block block = cuda_at<const di_block>(args.blocks)[b];
    int32_t begin = begin_of(args, b), n = cuda_at<const int32_t>(args.n_rows)[b];
    int32_t m = walk(args, block, begin, n, verdicts);
    for (int32_t i = begin + m + 1; i < begin + n; i++) {
        cuda_at<int32_t>(args.sample.token)[i] = -1;
        cuda_at<float>(args.sample.logprob)[i] = 0;
    }
    int32_t last = cuda_at<int32_t>(args.sample.token)[begin + m];
    if (last >= 0) cuda_at<int32_t>(args.sample.next_token)[block.slot] = last;
    cuda_at<int32_t>(args.n_valid)[block.slot] = m + 1;
}

void cuda_op_accept(di_stream *s, const di_accept_args *args) {
    cuda_begin(s);
    uint64_t n = static_cast<uint64_t>(args->sample.n_out);
    uint64_t vocab = static_cast<uint64_t>(args->sample.vocab);
    uint64_t blocks = n < CUDA_SAMPLE_BLOCKS ? n : CUDA_SAMPLE_BLOCKS;
    CUDA_REQUIRE(args->sample.vocab <= LOGIT_MAX_VOCAB);
    judged *which = cuda_take<judged>(s, n);
    verdict *verdicts = cuda_take<verdict>(s, n);
    double *scratch = cuda_take<double>(s, 2 * blocks * vocab);
    uint32_t any = args->n_blocks > 0;
    cuda_launch(s, "accept", any, ALLOT_THREADS, 0, find_judged_kernel, *args, which);
    cuda_launch(s, "accept", static_cast<uint32_t>(any * blocks), LOGIT_THREADS, 0, judge_kernel,
                *args, static_cast<const judged *>(which), scratch, verdicts);
    cuda_launch(s, "accept", cuda_blocks(args->n_blocks, 64), 64, 0, accept_kernel, *args,
                static_cast<const verdict *>(verdicts));
}
