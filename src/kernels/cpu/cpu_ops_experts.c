/* Routing, routed experts, the shared expert.
 *
 * An expert's rows are gathered by pointers, never copied: a task is 32 (or fewer) weight rows of
 * one expert times all rows that picked it. The gate and up tiles of the same channels are one
 * task, so that h, which is quantised in groups of 32 channels, is finished there.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* ---- routing ---- */

static float score_of(di_score scoring, float z) {
    if (scoring == DI_SCORING_SIGMOID) return 1.0f / (1.0f + expf(-z));
    if (scoring == DI_SCORING_SQRTSOFTPLUS) return sqrtf(z > 20 ? z : log1pf(expf(z)));
    return z; /* softmax needs the row, see below */
}

static void softmax(float *z, int32_t n) {
    float top = z[0];
    double total = 0;
    for (int32_t i = 1; i < n; i++) top = fmaxf(top, z[i]);
    for (int32_t i = 0; i < n; i++) total += (double)(z[i] = expf(z[i] - top));
    for (int32_t i = 0; i < n; i++) z[i] = (float)((double)z[i] / total);
}

/* The k largest of x, best first, the lower index first where they tie. */
static void best_first(const float *x, int32_t n, int32_t k, int32_t *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (count == k && !(x[i] > x[out[k - 1]])) continue;
        int32_t at = count < k ? count++ : k - 1;
        for (; at > 0 && x[i] > x[out[at - 1]]; at--) out[at] = out[at - 1];
        out[at] = i;
    }
    for (; count < k; count++) out[count] = 0; /* fewer experts than picks: never in a model */
}

typedef struct route_job {
    const di_route_args *args;
    const float *bias;
    float *z, *ranked; /* [n_rows][E] each */
} route_job;

static void route_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const route_job *job = user;
    const di_route_args *a = job->args;
    int64_t n = a->gate.n, k = a->top_k;
    (void)s, (void)scratch;
    for (int64_t t = begin; t < end; t++) {
        float *z = job->z + t * n, *ranked = job->ranked + t * n, *weights = cpu_at(a->weights);
        int32_t *picks = (int32_t *)cpu_at(a->picks) + t * k;
        weights += t * k;
        for (int64_t e = 0; e < n; e++)
            z[e] = score_of(a->scoring, (float)((double)z[e] / a->temperature));
        if (a->scoring == DI_SCORING_SOFTMAX) softmax(z, (int32_t)n);
        for (int64_t e = 0; e < n; e++) ranked[e] = z[e] + job->bias[e];
        best_first(ranked, (int32_t)n, a->top_k, picks);
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += (double)z[picks[i]];
        for (int64_t i = 0; i < k; i++) {
            double w = (double)z[picks[i]];
            if (a->normalize && k > 1) w /= sum + 1e-20;
            weights[i] = (float)(w * a->scale);
        }
        if (a->scores.address) memcpy((float *)cpu_at(a->scores) + t * n, z, (size_t)n * sizeof *z);
    }
}

void cpu_op_route(di_stream *s, const di_route_args *args) {
    cpu_begin(s);
    int32_t rows = args->n_rows, n = args->gate.n;
    if (rows == 0) return;
    uint64_t bytes = (uint64_t)rows * (uint64_t)n * sizeof(float);
    route_job job = {args, cpu_vector(s, args->bias), cpu_take(s, bytes), cpu_take(s, bytes)};
    const float *const *u = cpu_inputs(s, cpu_at(args->u), rows, 1, &args->gate, false);
    cpu_product_rows(s, &args->gate, u, job.z, rows, false);
    cpu_parallel(s, rows, 1, (int64_t)rows * n * 30, route_rows, &job);
}

/* ---- experts ---- */

/* One expert and the rows that go through it. */
typedef struct expert_run {
    di_matrix w1, w3, w2;
    int32_t m;
    const float **x;      /* [m] inputs */
    const float **h_in;   /* [m] = h, as inputs of w2 */
    float **h, **out;     /* [m] */
    const float *weights; /* [m], or NULL: 1 */
} expert_run;

typedef struct expert_job {
    const expert_run *runs;
    int32_t n, height;
    float limit;
} expert_job;

static int64_t tiles(int32_t n, int32_t height) { return (n + height - 1) / height; }

/* Channels first .. first + n - 1 of h. */
static void hidden_tile(di_stream *s, cpu_scratch *scratch, const expert_run *run, int32_t first,
                        int32_t n, float limit) {
    s->k->product(&run->w1, first, n, run->x, 0, run->m, scratch->acc, scratch);
    s->k->product(&run->w3, first, n, run->x, 0, run->m, scratch->acc2, scratch);
    for (int32_t r = 0; r < run->m; r++) {
        float *h = run->h[r] + first;
        s->k->swiglu(scratch->acc + (int64_t)r * CPU_TILE_N,
                     scratch->acc2 + (int64_t)r * CPU_TILE_N, run->weights ? run->weights[r] : 1.0f,
                     limit, n, s->release, h);
    }
}

static void hidden_tiles(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end) {
    const expert_job *job = user;
    int64_t base = 0;
    for (int32_t i = 0; i < job->n && base < end; i++) {
        const expert_run *run = &job->runs[i];
        int64_t count = tiles(run->w1.n, job->height);
        for (int64_t t = begin > base ? begin - base : 0; t < count && base + t < end; t++) {
            int32_t first = (int32_t)t * job->height, left = run->w1.n - first;
            hidden_tile(s, scratch, run, first, left < job->height ? left : job->height,
                        job->limit);
        }
        base += count;
    }
}

/* h becomes an input of w2, in place: all of it is there. */
static void finish_hidden(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                          int64_t end) {
    const expert_job *job = user;
    int64_t base = 0;
    (void)scratch;
    for (int32_t i = 0; i < job->n && base < end; i++) {
        const expert_run *run = &job->runs[i];
        for (int64_t r = begin > base ? begin - base : 0; r < run->m && base + r < end; r++) {
            float *h = run->h[r];
            if (s->release) s->k->quantize_q8(h, run->w1.n, NULL, NULL, h);
            if (run->w2.dtype == DI_FP4_PAIR) s->k->fp4_order(h, run->w1.n, h);
        }
        base += run->m;
    }
}

/* Both phases of all runs. */
static void run_experts(di_stream *s, const expert_run *runs, int32_t n, double limit) {
    int64_t work = 0, pieces = 0, rows = 0;
    expert_job job = {runs, n, CPU_TILE_N, (float)limit};
    cpu_product *down = cpu_take(s, (uint64_t)(n + 1) * sizeof *down);
    for (int32_t i = 0; i < n; i++) {
        const expert_run *run = &runs[i];
        CPU_REQUIRE(cpu_rows_fit(s, run->m));
        work += 2 * cpu_product_work(&run->w1, run->w1.n, run->m);
        rows += run->m;
        down[i] = (cpu_product){run->w2, 0, run->w2.n, run->h_in, 0, run->out, run->m, s->release};
    }
    for (;; job.height /= 2) {
        pieces = 0;
        for (int32_t i = 0; i < n; i++) pieces += tiles(runs[i].w1.n, job.height);
        if (pieces >= 4 * s->n_members || job.height == 8) break;
    }
    cpu_parallel(s, pieces, 1, work, hidden_tiles, &job);
    if (n > 0) cpu_parallel(s, rows, 4, rows * runs[0].w1.n / 4, finish_hidden, &job);
    cpu_products(s, down, n);
}

static int32_t is_live(const di_experts_args *a, int64_t t) {
    const int32_t *pos = cpu_at(a->pos);
    return !pos || pos[t] >= 0;
}

/* Rows by expert, experts ascending (a counting sort), and where each result goes. */
static int32_t gather(di_stream *s, const di_experts_args *a, const float *const *x,
                      expert_run *runs) {
    int64_t k = a->top_k, total = (int64_t)a->n_rows * k;
    const int32_t *picks = cpu_at(a->picks);
    const float *weights = cpu_at(a->weights);
    int32_t *count = cpu_take(s, ((uint64_t)a->n_experts + 1) * sizeof *count), n = 0;
    const float **in = cpu_take(s, (uint64_t)total * sizeof *in);
    const float **h_in = cpu_take(s, (uint64_t)total * sizeof *h_in);
    float **h = cpu_take(s, (uint64_t)total * sizeof *h);
    float **out = cpu_take(s, (uint64_t)total * sizeof *out);
    float *w = cpu_take(s, (uint64_t)total * sizeof *w);
    int64_t stride = cpu_input_width(a->dtype, a->inner);
    float *hidden = cpu_take(s, (uint64_t)(total * stride) * sizeof *hidden);
    memset(count, 0, ((size_t)a->n_experts + 1) * sizeof *count);
    for (int64_t t = 0; t < a->n_rows; t++)
        for (int64_t i = 0; i < k && is_live(a, t); i++) count[picks[t * k + i] + 1]++;
    for (int32_t e = 0; e < a->n_experts; e++) count[e + 1] += count[e];
    const di_expert *experts = cpu_at(a->experts);
    for (int32_t e = 0; e < a->n_experts; e++) {
        int32_t begin = count[e], m = count[e + 1] - begin;
        if (m == 0) continue;
        const di_expert *at = &experts[e];
        runs[n++] = (expert_run){
            {a->dtype, a->inner, a->width, at->w1, at->w1_scale},
            {a->dtype, a->inner, a->width, at->w3, at->w3_scale},
            {a->dtype, a->width, a->inner, at->w2, at->w2_scale},
            m,
            in + begin,
            h_in + begin,
            h + begin,
            out + begin,
            w + begin,
        };
    }
    for (int64_t t = 0; t < a->n_rows; t++)
        for (int64_t i = 0; i < k && is_live(a, t); i++) {
            int32_t e = picks[t * k + i], below = 0, at = count[e]++;
            for (int64_t j = 0; j < k; j++) below += picks[t * k + j] < e;
            in[at] = x[t];
            h[at] = hidden + at * stride;
            h_in[at] = h[at];
            w[at] = weights[t * k + i];
            out[at] = (float *)cpu_at(a->rows) + (t * k + below) * a->width;
        }
    return n;
}

void cpu_op_experts(di_stream *s, const di_experts_args *args) {
    cpu_begin(s);
    if (args->n_rows == 0) return;
    const di_matrix like = {args->dtype, args->inner, args->width, DI_NONE, DI_NONE};
    const float *const *x = cpu_inputs(s, cpu_at(args->u), args->n_rows, 1, &like, true);
    int64_t most = (int64_t)args->n_rows * args->top_k;
    if (most > args->n_experts) most = args->n_experts;
    expert_run *runs = cpu_take(s, (uint64_t)most * sizeof *runs);
    int32_t n = gather(s, args, x, runs);
    run_experts(s, runs, n, args->limit);
}

void cpu_op_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    cpu_begin(s);
    if (args->n_rows == 0) return;
    int32_t m = args->n_rows, inner = args->w1.n;
    int64_t stride = cpu_input_width(args->w2.dtype, inner);
    const float *const *x = cpu_inputs(s, cpu_at(args->u), m, 1, &args->w1, true);
    float *hidden = cpu_take(s, (uint64_t)m * (uint64_t)stride * sizeof *hidden);
    const float **in = cpu_take(s, (uint64_t)m * sizeof *in);
    const float **h_in = cpu_take(s, (uint64_t)m * sizeof *h_in);
    float **h = cpu_rows(s, hidden, stride, m);
    for (int32_t r = 0; r < m; r++) in[r] = x[r], h_in[r] = h[r];
    expert_run run = {args->w1, args->w3, args->w2, m,
                      in,       h_in,     h,        cpu_rows(s, cpu_at(args->out), args->w2.n, m),
                      NULL};
    run_experts(s, &run, 1, args->limit);
}
