/* Which drafts stand (dspark.md 6). Which of them are verified: cuda_ops_allot.cu. */
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/logit_draw.cuh"

/* What rejection makes of one out row: the verdict on the draft in the row behind it. */
typedef struct verdict {
    int32_t stands, token;
    float logprob;
} verdict;

/* ---- Where a row stands ---- */

/* Where the rows of block `begin + thread` begin, all blocks before it counted; *all: the rows of
 * LOGIT_THREADS blocks from `begin` on. */
static __device__ int32_t rows_before(logit_shared *s, const di_accept_args &args, int32_t begin,
                                      int32_t *n_rows, int32_t *all) {
    int32_t b = begin + static_cast<int32_t>(threadIdx.x);
    uint64_t total;
    *n_rows = b < args.n_blocks ? cuda_at<const int32_t>(args.n_rows)[b] : 0;
    uint64_t sum = sum_before(s, static_cast<uint64_t>(*n_rows), &total);
    *all = static_cast<int32_t>(total);
    return static_cast<int32_t>(sum) - *n_rows;
}

/* Draft k of a block stands in the row behind out row i. */
typedef struct judged {
    int32_t block, k; /* block -1: nothing to judge here */
} judged;

static __device__ judged judged_of(logit_shared *s, const di_accept_args &args, int32_t i) {
    int32_t before = 0, n_rows, all;
    s->block = -1;
    for (int32_t begin = 0; begin < args.n_blocks && before <= i; begin += LOGIT_THREADS) {
        int32_t at = before + rows_before(s, args, begin, &n_rows, &all);
        if (i >= at && i + 1 < at + n_rows) {
            s->block = begin + static_cast<int32_t>(threadIdx.x);
            s->last_id = i - at;
        }
        before += all;
    }
    __syncthreads();
    judged j = {s->block, s->last_id};
    bool dead = false;
    if (j.block >= 0) {
        int32_t k = static_cast<int32_t>(threadIdx.x);
        dead = !cuda_at<const di_block>(args.blocks)[j.block].reject ||
               (k <= j.k && cuda_at<const int32_t>(args.sample.token)[i - k] < 0);
    }
    if (__syncthreads_or(dead)) j.block = -1;
    return j;
}

/* ---- One draft by rejection ---- */

/* A distribution after all processors: of id, exp(divided(x) - total) if it is kept. */
template <typename X> struct distribution {
    logit_source<X> source;
    logit_rule<X> rule;
    row_look row;
    double total;
};

/* Whether the logits are one. */
template <typename X>
static __device__ __noinline__ bool distribution_of(logit_team *team, const di_sample_args &args,
                                                    int64_t i, const float *logits, double *scratch,
                                                    distribution<X> *out) {
    const di_sample_params &p = params_of(args, i);
    logit_source<float> raw = source_of(logits, mask_of(args, p), args.vocab, team->rank);
    bool bad = false;
    if constexpr (sizeof(X) == sizeof(double)) {
        bad = change_row(team, args, p, i, logits, scratch);
        out->source = source_of(static_cast<const double *>(scratch), NULL, args.vocab, team->rank);
    } else {
        out->source = raw;
    }
    out->row = look(team, raw, out->source, true, bad, -1);
    if (out->row.bad || out->row.best.id < 0) return false;
    X top = static_cast<X>(out->row.best.x);
    if (p.temperature == 0) {
        out->rule = rule_of(p, top);
        out->rule.temperature = out->rule.inverse = 1, out->rule.scale = 1;
        out->rule.min_p = 0;
        out->rule.last = top, out->rule.last_id = out->row.best.id;
    } else {
        out->rule = truncate(*team, p, out->source, args.vocab, top);
    }
    double mass = 0;
    each_quad(out->source, [&](const X *x, int32_t id) {
        for (int k = 0; k < 4; k++)
            if (keeps(out->rule, x[k], id + k)) mass += share_of(out->rule, x[k]);
    });
    out->total = divided(out->rule, top) + log(exchange_sum(team, mass));
    return true;
}

template <typename X>
static __device__ __forceinline__ double chance(const distribution<X> &d, X x, int32_t id) {
    return keeps(d.rule, x, id) ? exp(divided(d.rule, x) - d.total) : 0;
}

/* max(p - q, 0) of an id. */
template <typename X>
static __device__ __noinline__ double residual(const distribution<X> &p, const distribution<X> &q,
                                               X x, int32_t id) {
    double of_p = chance(p, x, id);
    double left = of_p > 0 ? of_p - chance(q, value_of(q.source, id), id) : 0;
    return left > 0 ? left : 0;
}

/* A sample of max(p - q, 0); rounding speaks where it is too little, and p is taken instead. */
template <typename X>
static __device__ int32_t draw_residual(logit_team *team, const distribution<X> &p,
                                        const distribution<X> &q, int32_t vocab, uint64_t seed,
                                        int64_t position) {
    uint64_t noise = di_noise_seed(seed, DI_NOISE_RESIDUAL, 0);
    double mass = 0;
    each_quad(p.source, [&](const X *x, int32_t id) {
        for (int k = 0; k < 4; k++) mass += residual(p, q, x[k], id + k);
    });
    if (exchange_sum(team, mass) <= DI_TINY_RESIDUAL)
        return draw(team, p.source, vocab, p.rule, noise, position);
    auto value = [&](X x, int32_t id) {
        float left = static_cast<float>(residual(p, q, x, id));
        return left > 0x1p-126f ? logf(left) : -INFINITY;
    };
    return draw_best(team, p.source, vocab,
                     draw_rule<decltype(value)>{noise, position, LOG2_E, value}, 0,
                     [&](X x, int32_t id) {
                         double left = residual(p, q, x, id);
                         return left > 0 ? scored{log(left), id} : scored{0, -1};
                     });
}

/* di_reject_draft on out row i, and the log-probability of what comes out. */
template <typename X>
static __device__ verdict judge(logit_team *team, const di_accept_args &args, int64_t i, judged j,
                                double *scratch) {
    const di_sample_args &sample = args.sample;
    int64_t vocab = sample.vocab, row = cuda_at<const int32_t>(sample.which)[i];
    const float *logits = cuda_at<const float>(sample.logits) + i * vocab;
    int32_t column = cuda_at<const di_block>(args.blocks)[j.block].column;
    const float *of_draft = cuda_at<const float>(args.draft_logits) +
                            (static_cast<int64_t>(j.k) * args.n_columns + column) * vocab;
    int32_t behind = cuda_at<const int32_t>(sample.which)[i + 1];
    int32_t draft = cuda_at<const int32_t>(args.row_token)[behind];
    int64_t position = static_cast<int64_t>(cuda_at<const int32_t>(sample.pos)[row]) + 1;
    uint64_t seed = params_of(sample, i).seed;
    verdict v = {0, cuda_at<const int32_t>(sample.token)[i], 0};
    distribution<X> p, q;
    /* sample has drawn from p: it is one. */
    distribution_of(team, sample, i, logits, scratch, &p);
    if (distribution_of(team, sample, i, of_draft, scratch + logit_scratch(sample.vocab), &q)) {
        uint64_t words = di_noise_seed(seed, DI_NOISE_ACCEPT, position);
        double u = di_uniform53(static_cast<uint32_t>(words >> 32), static_cast<uint32_t>(words));
        if (draft >= 0 && draft < vocab) {
            double q_draft = chance(q, value_of(q.source, draft), draft);
            v.stands = q_draft > 0 && u * q_draft < chance(p, value_of(p.source, draft), draft);
        }
        v.token = v.stands ? draft
                           : draw_residual(team, p, q, static_cast<int32_t>(vocab), seed, position);
    }
    v.logprob = log_softmax(logits, p.row, v.token);
    return v;
}

/* ---- All blocks ---- */

/* How many drafts of a block stand, and what comes out of its rows. Eight lanes a block, a row a
 * lane; all lanes of a warp call, n_rows 0 where there is no block. */
static constexpr int WALK_LANES = 8;
static __device__ void walk(const di_accept_args &args, int32_t b, int32_t begin, int32_t n_rows,
                            const verdict *verdicts) {
    int32_t *token = cuda_at<int32_t>(args.sample.token);
    float *logprob = cuda_at<float>(args.sample.logprob);
    const int32_t *which = cuda_at<const int32_t>(args.sample.which);
    di_block block = n_rows > 0 ? cuda_at<const di_block>(args.blocks)[b] : di_block{};
    int lane = lane_id() % WALK_LANES, shift = lane_id() - lane;
    int32_t m = n_rows > 0 ? -1 : 0;
    for (int32_t k = lane; __any_sync(ALL_LANES, m < 0); k += WALK_LANES) {
        int32_t i = begin + k, drawn = m < 0 && k < n_rows ? token[i] : -1;
        bool visited = drawn >= 0 && k + 1 < n_rows, stands = false;
        verdict v = {0, drawn, 0};
        if (visited && block.reject) {
            v = verdicts[i];
            stands = v.stands;
        } else if (visited) {
            stands = cuda_at<const int32_t>(args.row_token)[which[i + 1]] == drawn;
        }
        uint32_t fallen = ~__ballot_sync(ALL_LANES, stands) >> shift & ((1u << WALK_LANES) - 1);
        if (m >= 0) continue;
        if (fallen) m = k - lane + __ffs(static_cast<int>(fallen)) - 1;
        if (visited && block.reject && (m < 0 || k <= m))
            token[i] = v.token, logprob[i] = v.logprob;
        if (k != m) continue;
        int32_t last = visited ? v.token : token[i];
        if (last >= 0) cuda_at<int32_t>(args.sample.next_token)[block.slot] = last;
        cuda_at<int32_t>(args.n_valid)[block.slot] = m + 1;
    }
    for (int32_t k = m + 1 + lane; k < n_rows; k += WALK_LANES)
        token[begin + k] = -1, logprob[begin + k] = 0;
}

static __device__ void walk_all(logit_shared *s, const di_accept_args &args,
                                const verdict *verdicts) {
    int32_t before = 0;
    for (int32_t first = 0; first < args.n_blocks; first += LOGIT_THREADS) {
        int32_t n_rows, all, thread = static_cast<int32_t>(threadIdx.x);
        int32_t begin = before + rows_before(s, args, first, &n_rows, &all);
        s->own_count[thread] = static_cast<uint32_t>(begin);
        s->own_count[LOGIT_THREADS + thread] = static_cast<uint32_t>(n_rows);
        __syncthreads();
        int32_t left = args.n_blocks - first;
        int32_t here = left < LOGIT_THREADS ? left : LOGIT_THREADS;
        constexpr int AT_ONCE = LOGIT_THREADS / WALK_LANES;
        for (int32_t base = 0; base < here; base += AT_ONCE) {
            int32_t b = base + thread / WALK_LANES;
            walk(args, first + b, static_cast<int32_t>(s->own_count[b]),
                 static_cast<int32_t>(s->own_count[LOGIT_THREADS + b]), verdicts);
        }
        before += all;
        __syncthreads();
    }
}

/* Whether a block has a draft to judge. */
static __device__ bool any_reject(const di_accept_args &args) {
    bool found = false;
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < args.n_blocks; b += LOGIT_THREADS)
        found = found || (cuda_at<const di_block>(args.blocks)[b].reject &&
                          cuda_at<const int32_t>(args.n_rows)[b] > 1);
    return __syncthreads_or(found) != 0;
}

/* Clusters take the rows that are judged in turn; each has two rows of scratch. A verdict does not
 * hang on those before it, so all can be made at once. The last cluster to end walks the blocks. */
static __global__ __cluster_dims__(LOGIT_BLOCKS, 1, 1)
    __launch_bounds__(LOGIT_THREADS,
                      LOGIT_AT_ONCE) void accept_kernel(di_accept_args args, double *scratch,
                                                        verdict *verdicts, uint32_t *counter) {
    __shared__ logit_shared shared;
    logit_team team = team_begin(&shared);
    int32_t n_clusters = static_cast<int32_t>(gridDim.x) / LOGIT_BLOCKS;
    int32_t cluster = static_cast<int32_t>(blockIdx.x) / LOGIT_BLOCKS;
    scratch += 2 * logit_scratch(args.sample.vocab) * static_cast<uint64_t>(cluster);
    bool any = any_reject(args);
    for (int32_t i = cluster; any && i + 1 < args.sample.n_out; i += n_clusters) {
        judged j = judged_of(&shared, args, i);
        if (j.block < 0) continue;
        const di_sample_params &p = params_of(args.sample, i);
        bool changed = has_penalties(args.sample, p) || p.n_bias > 0;
        verdict v = changed ? judge<double>(&team, args, i, j, scratch)
                            : judge<float>(&team, args, i, j, scratch);
        if (team.rank == 0 && threadIdx.x == 0) verdicts[i] = v;
    }
    team_meet(&team);
    if (team.rank == 0 && last_block(counter, static_cast<uint32_t>(n_clusters)))
        walk_all(&shared, args, verdicts);
}

void cuda_op_accept(di_stream *s, const di_accept_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->sample.vocab <= LOGIT_MAX_VOCAB);
    uint64_t n = static_cast<uint64_t>(args->sample.n_out);
    uint64_t clusters = n < CUDA_JUDGE_ROWS ? n : CUDA_JUDGE_ROWS;
    if (args->sample.n_out == args->n_blocks) clusters = 1; /* no drafts */
    if (args->n_blocks == 0) clusters = 0;
    verdict *verdicts = cuda_take<verdict>(s, n);
    double *scratch = cuda_take<double>(s, 2 * clusters * logit_scratch(args->sample.vocab));
    cuda_launch(s, "accept", static_cast<uint32_t>(clusters * LOGIT_BLOCKS), LOGIT_THREADS, 0,
                accept_kernel, *args, scratch, verdicts, cuda_counters(s));
}
