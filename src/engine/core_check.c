/* What a request must be, checked when it is submitted: nothing later can then fail for it alone
 * but its logits. */
#include <inttypes.h>
#include <math.h>

#include "engine/core_internal.h"

/* The values are floats: 0.01 as a float is a little less than 0.01, and in range. */
static di_status check(const char *name, double value, double min, double max, di_error *error) {
    if (isfinite(value) && value >= (double)(float)min && value <= max) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "%s: %g is no number from %g to %g", name, value, min, max);
}

static di_status check_sampling(const di_sample_params *s, di_error *error) {
    DI_TRY(check("temperature", (double)s->temperature, 0, 100, error));
    DI_TRY(check("top_k", s->top_k, 0, INT32_MAX, error));
    DI_TRY(check("top_p", (double)s->top_p, 0, 1, error));
    DI_TRY(check("min_p", (double)s->min_p, 0, 1, error));
    DI_TRY(check("repetition_penalty", (double)s->repetition_penalty, 0.01, 100, error));
    DI_TRY(check("presence_penalty", (double)s->presence_penalty, -100, 100, error));
    return check("frequency_penalty", (double)s->frequency_penalty, -100, 100, error);
}

static di_status check_biases(const di_core *core, const di_core_request *r, di_error *error) {
    DI_TRY(check("n_biases", r->n_biases, 0, CORE__MAX_BIASES, error));
    for (int32_t i = 0; i < r->n_biases; i++) {
        int32_t id = r->biases[i].id;
        if (id < 0 || id >= core->config->vocab_size) {
            return di_fail(error, DI_ERR_USAGE, "biases[%d]: there is no token %d, ids are 0 to %d",
                           i, id, core->config->vocab_size - 1);
        }
        DI_TRY(check("biases", (double)r->biases[i].value, -1000, 1000, error));
    }
    return DI_OK;
}

static di_status check_ids(const di_core *core, const di_core_request *r, di_error *error) {
    if (r->n_ids < 1) return di_fail(error, DI_ERR_USAGE, "ids: the prompt is empty");
    if (r->n_given < 0 || r->n_given > r->n_ids) {
        return di_fail(error, DI_ERR_USAGE, "n_given: %" PRId64 " of %" PRId64 " tokens",
                       r->n_given, r->n_ids);
    }
    if (r->n_ids >= core->max_tokens_held) {
        return di_fail(error, DI_ERR_LIMIT,
                       "ids: the prompt has %" PRId64 " tokens; with one token of answer it must "
                       "fit %" PRId64 ", %s; shorten it or allow more",
                       r->n_ids, core->max_tokens_held,
                       core->max_tokens_held < core->options.max_context
                           ? "what the page pool holds"
                           : "the context");
    }
    for (int64_t i = 0; i < r->n_ids; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= core->config->vocab_size) {
            return di_fail(error, DI_ERR_USAGE,
                           "ids[%" PRId64 "]: there is no token %d, ids are 0 to %d", i, r->ids[i],
                           core->config->vocab_size - 1);
        }
    }
    return DI_OK;
}

di_status core__check_request(const di_core *core, const di_core_request *r, di_error *error) {
    enum { MAX_CHOICES = 128 };
    if (core->failed != DI_OK) {
        *error = core->failure;
        return core->failed;
    }
    DI_TRY(check_ids(core, r, error));
    if (r->max_tokens < (r->n_given > 0 && r->n == 1 ? 0 : 1)) {
        return di_fail(error, DI_ERR_USAGE, "max_tokens: %" PRId64 ", at least 1 is needed",
                       r->max_tokens);
    }
    DI_TRY(check("n", r->n, 1, MAX_CHOICES, error));
    DI_TRY(check("top_logprobs", r->top_logprobs, 0, DI_MAX_TOP_LOGPROBS, error));
    DI_TRY(check_sampling(&r->sampling, error));
    return check_biases(core, r, error);
}
