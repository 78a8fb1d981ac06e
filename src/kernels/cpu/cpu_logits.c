/* Logits as a token is drawn from them. Sorting is partial: the best ids are selected by a
 * quickselect in growing portions. */
#include "kernels/cpu/cpu_logits.h"

#include <math.h>

cpu_logits cpu_logits_of(const cpu_kernels *k, const di_sample_args *a, int64_t i, const float *raw,
                         double *x, int32_t *ids) {
    cpu_logits r = {.k = k, .args = a, .p = cpu_params_of(a, i), .raw = raw, .x = x, .ids = ids};
    if (a->extra.address) {
        r.extra = (const int32_t *)cpu_at(a->extra) + ((const int32_t *)cpu_at(a->extra_at))[i];
        r.n_extra = ((const int32_t *)cpu_at(a->n_extra))[i];
    }
    return r;
}

bool cpu_has_penalties(const di_sample_args *a, const di_sample_params *p) {
    return a->counts.address &&
           (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

static int32_t extra_id(const cpu_logits *r, int64_t j) {
    return r->extra[j * r->args->extra_stride];
}

static int32_t extra_count(const cpu_logits *r, int32_t n, int32_t id) {
    int32_t count = 0;
    for (int32_t j = 0; j < n; j++) count += extra_id(r, j) == id;
    return count;
}

/* Of an id that stands in the prompt or `output` times in the output. */
static void penalise(const cpu_logits *r, int32_t id, int32_t output) {
    const di_sample_params *p = r->p;
    double x = r->x[id], repetition = (double)p->repetition_penalty;
    if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
    if (output > 0) x -= (double)p->presence_penalty + (double)p->frequency_penalty * output;
    r->x[id] = x;
}

static void penalise_all(const cpu_logits *r) {
    int32_t vocab = r->args->vocab;
    const int32_t *own = (const int32_t *)cpu_at(r->args->counts) + (int64_t)r->p->slot * vocab;
    for (int32_t id = 0; id < vocab; id++) {
        if (own[id] == 0) continue;
        penalise(r, id, (own[id] & ~DI_COUNT_PROMPT) + extra_count(r, r->n_extra, id));
    }
    for (int32_t j = 0; j < r->n_extra; j++) { /* those that stand among the drafts alone */
        int32_t id = extra_id(r, j);
        if (id < 0 || own[id] != 0 || extra_count(r, j, id) > 0) continue;
        penalise(r, id, extra_count(r, r->n_extra, id));
    }
}

static void adjust(const cpu_logits *r) {
    const di_sample_args *a = r->args;
    const di_sample_params *p = r->p;
    const float *raw = r->raw;
    double *x = r->x;
    for (int32_t id = 0; id < a->vocab; id++) x[id] = (double)raw[id];
    if (cpu_has_penalties(a, p)) penalise_all(r);
    for (int32_t i = 0; i < p->n_bias; i++) {
        const di_logit_bias *bias = (const di_logit_bias *)cpu_at(a->biases) + p->bias_begin + i;
        r->x[bias->id] += (double)bias->value;
    }
    const uint32_t *mask = cpu_mask_of(a, p);
    for (int32_t id = 0; mask && id < a->vocab; id++)
        if (!cpu_allows(mask, id)) r->x[id] = -INFINITY;
}

int32_t cpu_logits_adjust(const cpu_logits *r) {
    const double *x = r->x;
    const float *raw = r->raw;
    int32_t n = r->args->vocab, greedy = 0;
    adjust(r);
    bool bad = false;
    for (int32_t id = 0; id < n; id++) {
        bad = bad || isnan(raw[id]) || isnan(x[id]) || x[id] == INFINITY;
        if (x[id] > x[greedy]) greedy = id;
    }
    return bad || x[greedy] == -INFINITY ? -2 : greedy;
}

/* ---- Truncation ---- */

static bool before(const double *x, int32_t a, int32_t b) {
    return x[a] != x[b] ? x[a] > x[b] : a < b;
}

static void swap(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k first of ids[0 .. n) in the order of `before` to the front, unsorted. */
static void select_first(const double *x, int32_t *ids, int32_t n, int32_t k) {
    int32_t low = 0, high = n;
    while (high - low > 1 && k > low && k < high) {
        int32_t middle = low + (high - low) / 2;
        if (before(x, ids[middle], ids[low])) swap(&ids[middle], &ids[low]);
        if (before(x, ids[high - 1], ids[low])) swap(&ids[high - 1], &ids[low]);
        if (before(x, ids[high - 1], ids[middle])) swap(&ids[high - 1], &ids[middle]);
        int32_t pivot = ids[middle], i = low, j = high - 1;
        while (i <= j) { /* no two ids are equal in the order */
            while (before(x, ids[i], pivot)) i++;
            while (before(x, pivot, ids[j])) j--;
            if (i <= j) swap(&ids[i++], &ids[j--]);
        }
        if (k <= j + 1)
            high = j + 1;
        else if (k >= i)
            low = i;
        else
            return;
    }
}

/* Heap sort of ids[0 .. n): no recursion, no memory. */
static void sift(const double *x, int32_t *ids, int32_t root, int32_t n) {
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(x, ids[child], ids[child + 1])) child++;
        if (before(x, ids[child], ids[root])) return;
        swap(&ids[root], &ids[child]);
    }
}
static void sort_ids(const double *x, int32_t *ids, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(x, ids, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        swap(&ids[0], &ids[end]);
        sift(x, ids, 0, end);
    }
}

/* Moves the ids with x >= least to the front; how many. */
static int32_t split_ids(const double *x, int32_t *ids, int32_t n, double least) {
    int32_t front = 0;
    for (int32_t i = 0; i < n; i++)
        if (x[ids[i]] >= least) swap(&ids[front++], &ids[i]);
    return front;
}

/* How many of n ids, best first, make up top_p; puts them in order as it goes. The few that are
 * near the top come first by themselves: mostly they suffice. */
static int32_t prefix_of(const cpu_logits *r, int32_t n, double total, double top) {
    double sum = 0;
    int32_t sorted = 0, kept = 0, portion = 32, limit = split_ids(r->x, r->ids, n, top - 12);
    while (kept < n) {
        if (kept == limit) limit = n;
        if (kept == sorted) {
            int32_t more = limit - sorted < portion ? limit - sorted : portion;
            select_first(r->x, r->ids + sorted, limit - sorted, more);
            sort_ids(r->x, r->ids + sorted, more);
            sorted += more;
            portion *= 4;
        }
        sum += exp(r->x[r->ids[kept++]] - top) / total;
        if (sum >= (double)r->p->top_p) break;
    }
    return kept;
}

/* Leaves the kept ids at the front of r->ids, in any order, and returns their number. `top`:
 * largest x; ids holds n ids, those with x = -inf left out. */
static int32_t truncate(const cpu_logits *r, int32_t n, double top) {
    const di_sample_params *p = r->p;
    if (p->top_k > 0 && p->top_k < n) {
        select_first(r->x, r->ids, n, p->top_k);
        n = p->top_k;
    }
    if (p->top_p < 1) {
        double total = 0; /* terms below e^-55 of the first do not show in a double */
        if (n > 1000 && p->top_k <= 0) {
            total = r->k->sum_exp_double(r->x, top, r->args->vocab);
        } else {
            for (int32_t i = 0; i < n; i++) total += exp(r->x[r->ids[i]] - top);
        }
        n = prefix_of(r, n, total, top);
    }
    if (p->min_p > 0) {
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++) {
            double x = r->x[r->ids[i]];
            if (exp(x - top) >= (double)p->min_p || x == top) swap(&r->ids[kept++], &r->ids[i]);
        }
        n = kept;
    }
    return n;
}

int32_t cpu_logits_keep(const cpu_logits *r, int32_t most_likely, int32_t *n_listed) {
    const di_sample_params *p = r->p;
    int32_t n = r->args->vocab, listed = 0;
    double *x = r->x, temperature = (double)p->temperature;
    for (int32_t id = 0; id < n; id++) x[id] /= temperature;
    *n_listed = 0;
    if (!(p->top_k > 0 || p->top_p < 1 || p->min_p > 0)) return -1;
    for (int32_t id = 0; id < n; id++)
        if (x[id] != -INFINITY) r->ids[listed++] = id;
    *n_listed = listed;
    return truncate(r, listed, r->x[most_likely]);
}

bool cpu_logits_process(const cpu_logits *r) {
    int32_t greedy = cpu_logits_adjust(r), n_listed;
    if (greedy < 0) return false;
    if (r->p->temperature == 0) {
        for (int32_t id = 0; id < r->args->vocab; id++) r->x[id] = id == greedy ? 0 : -INFINITY;
        return true;
    }
    int32_t kept = cpu_logits_keep(r, greedy, &n_listed);
    for (int32_t i = kept < 0 ? n_listed : kept; i < n_listed; i++) r->x[r->ids[i]] = -INFINITY;
    return true;
}

float cpu_logprob(const cpu_kernels *k, const float *raw, int32_t vocab, float top, int32_t id) {
    double sum = k->sum_exp(raw, top, vocab);
    return (float)((double)raw[id] - (double)top - log(sum));
}
