/* Survivals, and the heap of next drafts. */
#include "kernels/allot.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

double di_allot_confidence(double logit, double temperature) {
    double x = logit / temperature;
    return isnan(x) ? 0 : 1 / (1 + exp(-x));
}

int32_t di_allot_limit(const di_allot_batch *batch, int32_t r) {
    int32_t limit = batch->limit == NULL ? batch->block : batch->limit[r];
    if (limit > batch->block) limit = batch->block;
    return limit < 0 ? 0 : limit;
}

double di_allot_survival(const di_allot_batch *batch, int32_t r, int32_t j) {
    double a = batch->survival[(int64_t)r * batch->block + j];
    return a > 0 ? fmin(a, 1) : 0; /* NaN: 0 */
}

static double next_survival(const di_allot_heap *h, int32_t r) {
    return di_allot_survival(h->batch, r, h->lengths[r]);
}

/* Whether request a's next draft is taken before b's. */
static bool before(const di_allot_heap *h, int32_t a, int32_t b) {
    double x = next_survival(h, a), y = next_survival(h, b);
    if (x != y) return x > y;
    return h->lengths[a] != h->lengths[b] ? h->lengths[a] < h->lengths[b] : a < b;
}

static void sift_down(di_allot_heap *h, int32_t root) {
    for (int32_t child; (child = 2 * root + 1) < h->n_heap; root = child) {
        if (child + 1 < h->n_heap && before(h, h->heap[child + 1], h->heap[child])) child++;
        if (!before(h, h->heap[child], h->heap[root])) return;
        int32_t swap = h->heap[root];
        h->heap[root] = h->heap[child];
        h->heap[child] = swap;
    }
}

di_allot_heap di_allot_begin(const di_allot_batch *batch, int32_t *lengths, int32_t *heap) {
    di_allot_heap h = {.batch = batch, .lengths = lengths, .heap = heap};
    for (int32_t r = 0; r < batch->n; r++) {
        lengths[r] = 0;
        if (di_allot_limit(batch, r) > 0) heap[h.n_heap++] = r;
    }
    for (int32_t i = h.n_heap / 2 - 1; i >= 0; i--) sift_down(&h, i);
    return h;
}

double di_allot_top(const di_allot_heap *h) { return next_survival(h, h->heap[0]); }

void di_allot_take(di_allot_heap *h) {
    int32_t r = h->heap[0];
    if (++h->lengths[r] >= di_allot_limit(h->batch, r)) h->heap[0] = h->heap[--h->n_heap];
    sift_down(h, 0);
}

int32_t di_allot_choose(const di_allot_batch *batch, int32_t budget, int32_t *lengths,
                        int32_t *heap) {
    di_allot_heap h = di_allot_begin(batch, lengths, heap);
    int32_t taken = 0;
    for (; taken < budget && h.n_heap > 0; taken++) di_allot_take(&h);
    return taken;
}
