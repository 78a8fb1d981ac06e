/* Twins: sampling, the counts that penalties need. */
#include <math.h>

#include "base/philox.h"
#include "kernels/ref/ref.h"
#include "kernels/reject.h"

/* How often an id stands among the drafts before out row i. */
static int32_t extra_count(const di_stream *s, const di_sample_args *args, int64_t i, int32_t id) {
    if (ref_none(args->extra)) return 0;
    int64_t at = ref_ints(s, args->extra_at)[i];
    int32_t n = ref_ints(s, args->n_extra)[i], count = 0;
    for (int64_t j = 0; j < n; j++) {
        count += ref_ints(s, args->extra)[at + j * args->extra_stride] == id;
    }
    return count;
}

/* The logits of one row as the sampler sees them: penalties, bias, mask. */
static void adjust(const di_stream *s, const di_sample_args *args, int64_t i, const double *logits,
                   double *x) {
    const di_sample_params *p = ref_params(s, args, i);
    const int32_t *counts = NULL;
    if (!ref_none(args->counts))
        counts = ref_ints(s, args->counts) + (int64_t)p->slot * args->vocab;
    for (int32_t id = 0; id < args->vocab; id++) {
        int32_t extra = counts == NULL ? 0 : extra_count(s, args, i, id);
        int32_t output = counts == NULL ? 0 : (counts[id] & ~DI_COUNT_PROMPT) + extra;
        bool known = counts != NULL && (counts[id] != 0 || extra > 0);
        x[id] = logits[id];
        if (known && p->repetition_penalty != 1) {
            double r = (double)p->repetition_penalty;
            x[id] = x[id] > 0 ? x[id] / r : x[id] * r;
        }
        if (output > 0) {
            x[id] -= (double)p->presence_penalty + (double)p->frequency_penalty * output;
        }
    }
    for (int32_t k = 0; k < p->n_bias; k++) {
        const di_logit_bias *b = (const di_logit_bias *)ref_at(s, args->biases) + p->bias_begin + k;
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

bool ref_process(di_stream *s, const di_sample_args *args, int64_t i, const double *logits,
                 double *x) {
    const di_sample_params *p = ref_params(s, args, i);
    int32_t n = args->vocab, greedy = 0;
    int32_t *ids = ref_take_ints(s, n);
    adjust(s, args, i, logits, x);
    for (int32_t id = 0; id < n; id++) {
        if (isnan(logits[id]) || isnan(x[id]) || x[id] == INFINITY) return false;
        if (x[id] > x[greedy]) greedy = id;
        ids[id] = id;
    }
    if (x[greedy] == -INFINITY) return false;
    if (p->temperature == 0) {
        for (int32_t id = 0; id < n; id++) x[id] = id == greedy ? 0 : -INFINITY;
        return true;
    }
    for (int32_t id = 0; id < n; id++) x[id] /= (double)p->temperature;
    if (p->top_k > 0 || p->top_p < 1 || p->min_p > 0) { /* else the order changes nothing */
        heap_sort(x, ids, n);
        for (int32_t k = truncate_sorted(p, x, ids, n); k < n; k++) x[ids[k]] = -INFINITY;
    }
    return true;
}

/* The seed of a live row's noise. */
static uint64_t noise_of(const di_stream *s, const di_sample_args *args, int64_t i) {
    const di_sample_params *p = ref_params(s, args, i);
    if (p->noise != DI_NOISE_ROUND) return p->seed;
    int32_t first = ref_ints(s, args->first)[ref_ints(s, args->which)[i]];
    return di_noise_seed(p->seed, DI_NOISE_DRAFT, ref_ints(s, args->pos)[first]);
}

double ref_log_softmax(const double *logits, int32_t n, int32_t id) {
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) top = fmax(top, logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return logits[id] - top - log(sum);
}

void ref_sample(di_stream *s, const di_sample_args *args) {
    for (int64_t i = 0; i < args->n_out; i++) {
        ref_begin(s);
        double *x = ref_take(s, args->vocab);
        const double *logits = ref_doubles(s, args->logits) + i * args->vocab;
        int32_t pos = ref_ints(s, args->pos)[ref_ints(s, args->which)[i]], token = -1;
        float logprob = 0;
        if (pos >= 0) {
            bool good = ref_process(s, args, i, logits, x);
            token = good ? di_reject_sample(x, args->vocab, noise_of(s, args, i), (int64_t)pos + 1)
                         : DI_NO_TOKEN;
        }
        if (token >= 0) {
            logprob = (float)ref_log_softmax(logits, args->vocab, token);
            ref_ints(s, args->next_token)[ref_params(s, args, i)->slot] = token;
        }
        ref_ints(s, args->token)[i] = token;
        if (args->logprob.address) memcpy(ref_bytes(s, args->logprob) + 4 * i, &logprob, 4);
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
