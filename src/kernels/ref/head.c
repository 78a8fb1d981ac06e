/* Twins: the head, sampling, the counts that penalties need. */
#include <math.h>

#include "base/philox.h"
#include "kernels/ref/ref.h"

void ref_head(di_stream *s, const di_head_args *args) {
    ref_begin(s);
    int64_t width = args->width, hc = args->hc;
    double *normed =
        ref_none(args->normed) ? ref_take(s, args->n_out * width) : ref_doubles(s, args->normed);
    for (int64_t i = 0; i < args->n_out; i++) {
        int64_t row = ref_ints(s, args->which)[i];
        double *x = normed + i * width;
        ref_collapse_row(s, ref_doubles(s, args->streams) + row * hc * width,
                         ref_doubles(s, args->pre) + row * hc, args->hc, width, x);
        ref_norm_row(s, x, width, args->eps, &args->norm, x);
    }
    ref_linear_rows(s, &args->head, normed, args->n_out, false, true, ref_doubles(s, args->logits));
}

/* ---- Sampling ---- */

/* The logits of one row as the sampler sees them: penalties, bias, mask. */
static void adjust(const di_stream *s, const di_sample_args *args, const di_sample_params *p,
                   const double *logits, double *x) {
    const int32_t *counts = NULL;
    if (!ref_none(args->counts))
        counts = ref_ints(s, args->counts) + (int64_t)p->slot * args->vocab;
    for (int32_t id = 0; id < args->vocab; id++) {
        int32_t output = counts == NULL ? 0 : counts[id] & ~DI_COUNT_PROMPT;
        x[id] = logits[id];
        if (counts != NULL && counts[id] != 0 && p->repetition_penalty != 1) {
            double r = (double)p->repetition_penalty;
            x[id] = x[id] > 0 ? x[id] / r : x[id] * r;
        }
        if (output > 0) {
            x[id] -= (double)p->presence_penalty + (double)p->frequency_penalty * output;
        }
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        const di_logit_bias *b = (const di_logit_bias *)ref_at(s, args->biases) + p->bias_begin + i;
        REF_REQUIRE(b->id >= 0 && b->id < args->vocab);
        x[b->id] += (double)b->value;
    }
    if (p->mask < 0) return;
    int64_t words = (args->vocab + 31) / 32;
    const uint32_t *mask = (const uint32_t *)ref_at(s, args->masks) + p->mask * words;
    for (int32_t id = 0; id < args->vocab; id++) {
        if ((mask[id / 32] >> (id % 32) & 1u) == 0) x[id] = -INFINITY;
    }
}

/* Whether id a stands before id b: (x down, id up). */
static bool before(const double *x, int32_t a, int32_t b) {
    return x[a] != x[b] ? x[a] > x[b] : a < b;
}

/* A heap whose root is the last in the order. */
static void sift_down(const double *x, int32_t *heap, int32_t root, int32_t n) {
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) child++;
        if (!before(x, heap[root], heap[child])) return;
        int32_t swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

static void heap_sort(const double *x, int32_t *ids, int32_t n) { /* no allocation, n log n */
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift_down(x, ids, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        int32_t swap = ids[0];
        ids[0] = ids[end];
        ids[end] = swap;
        sift_down(x, ids, 0, end);
    }
}

/* How many of the sorted ids are kept. */
static int32_t truncate_sorted(const di_sample_params *p, const double *x, const int32_t *ids,
                               int32_t n) {
    double total = 0, sum = 0;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    while (n > 0 && x[ids[n - 1]] == -INFINITY) n--;
    for (int32_t i = 0; i < n; i++) total += exp(x[ids[i]] - x[ids[0]]);
    if (p->top_p < 1) {
        int32_t kept = 0;
        while (kept < n) {
            sum += exp(x[ids[kept++]] - x[ids[0]]) / total;
            if (sum >= (double)p->top_p) break;
        }
        n = kept;
    }
    while (n > 1 && exp(x[ids[n - 1]] - x[ids[0]]) < (double)p->min_p) n--;
    return n;
}

static int32_t draw(const di_sample_params *p, const double *x, const int32_t *ids, int32_t n,
                    int64_t position) {
    int32_t token = -1;
    double best = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (x[ids[i]] == -INFINITY) continue;
        double y = x[ids[i]] + di_gumbel(p->seed, position, ids[i]);
        if (token < 0 || y > best || (y == best && ids[i] < token)) best = y, token = ids[i];
    }
    return token;
}

static int32_t choose(di_stream *s, const di_sample_args *args, const di_sample_params *p,
                      const double *logits, int64_t position) {
    int32_t n = args->vocab, greedy = 0;
    double *x = ref_take(s, n);
    int32_t *ids = ref_take_ints(s, n);
    adjust(s, args, p, logits, x);
    for (int32_t id = 0; id < n; id++) {
        if (isnan(logits[id]) || isnan(x[id]) || x[id] == INFINITY) return -2;
        if (x[id] > x[greedy]) greedy = id;
        ids[id] = id;
    }
    if (x[greedy] == -INFINITY) return -2;
    if (p->temperature == 0) return greedy;
    for (int32_t id = 0; id < n; id++) x[id] /= (double)p->temperature;
    if (p->top_k > 0 || p->top_p < 1 || p->min_p > 0) { /* else the order changes nothing */
        heap_sort(x, ids, n);
        n = truncate_sorted(p, x, ids, n);
    }
    return draw(p, x, ids, n, position);
}

static double log_softmax_at(const double *logits, int32_t n, int32_t id) {
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) top = fmax(top, logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return logits[id] - top - log(sum);
}

void ref_sample(di_stream *s, const di_sample_args *args) {
    for (int64_t i = 0; i < args->n_out; i++) {
        ref_begin(s);
        const di_sample_params *p = (const di_sample_params *)ref_at(s, args->params) + i;
        const double *logits = ref_doubles(s, args->logits) + i * args->vocab;
        int32_t pos = ref_ints(s, args->pos)[ref_ints(s, args->which)[i]];
        int32_t token = pos < 0 ? -1 : choose(s, args, p, logits, (int64_t)pos + 1);
        float logprob = 0;
        if (token >= 0) {
            logprob = (float)log_softmax_at(logits, args->vocab, token);
            ref_ints(s, args->next_token)[p->slot] = token;
        }
        ref_ints(s, args->token)[i] = token;
        memcpy(ref_bytes(s, args->logprob) + 4 * i, &logprob, 4);
    }
}

void ref_tally(di_stream *s, const di_tally_args *args) {
    for (int32_t i = 0; i < args->n; i++) {
        int32_t id = ref_ints(s, args->tokens)[i], slot = ref_ints(s, args->slots)[i];
        if (id < 0) continue;
        REF_REQUIRE(id < args->vocab);
        int32_t *count = ref_ints(s, args->counts) + (int64_t)slot * args->vocab + id;
        if (args->prompt) {
            *count |= DI_COUNT_PROMPT;
        } else {
            *count += args->delta;
        }
    }
}
