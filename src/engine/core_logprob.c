/* Log-probabilities of raw logits, on the host, for those who asked for more than the sampled
 * token's. In double and in a fixed order: the same bits every time. */
#include <math.h>

#include "engine/core_internal.h"

double core__log_sum(const float *logits, int32_t n) {
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return NAN;
        if ((double)logits[i] > max) max = (double)logits[i];
    }
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return max + log(sum);
}

/* Insertion into a short sorted list; most ids fail the first comparison. */
void core__top(const float *logits, int32_t n, double log_sum, di_top_logprob *top, int32_t n_top) {
    int32_t held = 0;
    for (int32_t id = 0; id < n; id++) {
        float x = logits[id];
        if (held == n_top && x <= logits[top[held - 1].id]) continue;
        int32_t at = held < n_top ? held++ : held - 1;
        for (; at > 0 && x > logits[top[at - 1].id]; at--) top[at] = top[at - 1];
        top[at].id = id;
    }
    for (int32_t i = 0; i < held; i++) {
        top[i].logprob = (float)((double)logits[top[i].id] - log_sum);
    }
}
