/* The logits of one out row as a token is drawn from them: after penalties, bias, mask, temperature
 * and truncation (di_sample_args). Shared by sample and accept. */
#ifndef DI_KERNELS_CPU_LOGITS_H
#define DI_KERNELS_CPU_LOGITS_H

#include "kernels/cpu/cpu.h"

typedef struct cpu_logits {
    const cpu_kernels *k;
    const di_sample_args *args;
    const di_sample_params *p;
    const float *raw;     /* [vocab] */
    const int32_t *extra; /* of this row, by args->extra_stride */
    int32_t n_extra;
    double *x;    /* [vocab] */
    int32_t *ids; /* [vocab] */
} cpu_logits;

static inline const di_sample_params *cpu_params_of(const di_sample_args *a, int64_t i) {
    const int32_t *of = cpu_at(a->param_of);
    return (const di_sample_params *)cpu_at(a->params) + (of ? of[i] : i);
}

/* The mask of these params: bit id % 32 of word id / 32 allows id. NULL: all are allowed. */
static inline const uint32_t *cpu_mask_of(const di_sample_args *a, const di_sample_params *p) {
    if (p->mask < 0) return NULL;
    return (const uint32_t *)cpu_at(a->masks) + (int64_t)p->mask * ((a->vocab + 31) / 32);
}
static inline bool cpu_allows(const uint32_t *mask, int32_t id) {
    return !mask || (mask[id / 32] >> (id % 32) & 1u);
}

/* Row i of sample, with its own logits or others; x and ids from a member's scratch. */
cpu_logits cpu_logits_of(const cpu_kernels *k, const di_sample_args *a, int64_t i, const float *raw,
                         double *x, int32_t *ids);

/* Whether penalties may change a row. */
bool cpu_has_penalties(const di_sample_args *a, const di_sample_params *p);

/* x = raw with penalties, bias and mask. The most likely id; -2: a NaN, an infinite logit, or
 * nothing allowed. */
int32_t cpu_logits_adjust(const cpu_logits *r);

/* After adjust, temperature > 0: x /= temperature, and truncation: the kept ids stand in front in
 * `ids`, their number is returned; behind them up to *n_listed those that are not kept, but for ids
 * with x = -inf. Without truncation -1: all ids, not listed. */
int32_t cpu_logits_keep(const cpu_logits *r, int32_t most_likely, int32_t *n_listed);

/* All of it: x is -inf where an id is not kept (at temperature 0 all but the most likely, which is
 * 0). False: no distribution. */
bool cpu_logits_process(const cpu_logits *r);

/* log softmax of the raw logits at an id; top: the largest. */
float cpu_logprob(const cpu_kernels *k, const float *raw, int32_t vocab, float top, int32_t id);

#endif
