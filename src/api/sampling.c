/* Sampling values: defaults, generation_config.json, checks, and the ids that are never sampled. */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

di_sampling di_sampling_defaults(void) {
    return (di_sampling){.seed = 0,
                         .temperature = 1.0f,
                         .top_k = 0,
                         .top_p = 0.95f,
                         .min_p = 0.0f,
                         .repetition_penalty = 1.0f,
                         .presence_penalty = 0.0f,
                         .frequency_penalty = 0.0f,
                         .biases = NULL,
                         .n_biases = 0};
}

/* ---- Checks ---- */

enum { MAX_BIASES = 16384 };

/* The values are floats: 0.01 as a float is a little less than 0.01, and in range. */
static di_status check(const char *name, double value, double min, double max, di_error *error) {
    if (isfinite(value) && value >= (double)(float)min && value <= max) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "%s: %g is no number from %g to %g", name, value, min, max);
}

di_status di_sampling_check(const di_sampling *s, int32_t vocab_size, di_error *error) {
    DI_TRY(check("temperature", (double)s->temperature, 0, 100, error));
    DI_TRY(check("top_k", s->top_k, 0, INT32_MAX, error));
    DI_TRY(check("top_p", (double)s->top_p, 0, 1, error));
    DI_TRY(check("min_p", (double)s->min_p, 0, 1, error));
    DI_TRY(check("repetition_penalty", (double)s->repetition_penalty, 0.01, 100, error));
    DI_TRY(check("presence_penalty", (double)s->presence_penalty, -100, 100, error));
    DI_TRY(check("frequency_penalty", (double)s->frequency_penalty, -100, 100, error));
    DI_TRY(check("n_biases", s->n_biases, 0, MAX_BIASES, error));
    if (s->n_biases > 0 && !s->biases) {
        return di_fail(error, DI_ERR_USAGE, "biases is NULL, but n_biases is %d", s->n_biases);
    }
    for (int32_t i = 0; i < s->n_biases; i++) {
        int32_t token = s->biases[i].token;
        if (token < 0 || token >= vocab_size) {
            return di_fail(error, DI_ERR_USAGE, "logit bias: there is no token %d, ids are 0 to %d",
                           token, vocab_size - 1);
        }
        DI_TRY(check("logit bias", (double)s->biases[i].value, -1000, 1000, error));
    }
    return DI_OK;
}

/* ---- generation_config.json ---- */

static di_status read_number(const di_json *file, const char *path, const char *key, double *out,
                             di_error *error) {
    const di_json *value = di_json_get(file, key);
    if (!value || value->type == DI_JSON_NULL) return DI_OK;
    if (di_json_double(value, out)) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s: %s is no number", path, key);
}

static di_status read_values(const di_json *file, const char *path, di_sampling *s,
                             di_error *error) {
    double temperature = (double)s->temperature, top_p = (double)s->top_p, top_k = s->top_k;
    double repetition = (double)s->repetition_penalty;
    DI_TRY(read_number(file, path, "temperature", &temperature, error));
    DI_TRY(read_number(file, path, "top_p", &top_p, error));
    DI_TRY(read_number(file, path, "top_k", &top_k, error));
    DI_TRY(read_number(file, path, "repetition_penalty", &repetition, error));
    bool sampled = true;
    const di_json *do_sample = di_json_get(file, "do_sample");
    if (do_sample && do_sample->type != DI_JSON_NULL && !di_json_bool(do_sample, &sampled)) {
        return di_fail(error, DI_ERR_INVALID, "do_sample is neither true nor false");
    }
    DI_TRY(check("top_k", top_k, 0, INT32_MAX, error));
    s->temperature = sampled ? (float)temperature : 0.0f;
    s->top_p = (float)top_p;
    s->top_k = (int32_t)top_k;
    s->repetition_penalty = (float)repetition;
    return di_sampling_check(s, 0, error);
}

di_status di_sampling_load(const char *directory, di_sampling *sampling, di_error *error) {
    enum { MAX_BYTES = 1 << 20 };
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/generation_config.json", directory);
    if (access(path, F_OK) != 0 && errno == ENOENT) return DI_OK;
    char *text = NULL;
    uint64_t size;
    DI_TRY(di_file_read(path, MAX_BYTES, &text, &size, error));
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *file;
    di_error why;
    di_status status;
    DI_TRY_DONE(di_json_parse(text, size, path, &arena, &file, error));
    status = read_values(file, path, sampling, &why);
    if (status != DI_OK)
        status = di_fail(error, DI_ERR_INVALID, "%.300s: %.600s", path, why.message);
done:
    di_arena_free(&arena);
    free(text);
    return status;
}

/* ---- For the step ---- */

bool di_sampling_has_penalties(const di_sampling *s) {
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

di_sample_params di_sampling_params(const di_sampling *s, int32_t slot) {
    return (di_sample_params){
        .seed = s->seed,
        .temperature = s->temperature,
        /* 0 would mean "no token at all"; the least positive value keeps the likeliest one. */
        .top_p = s->top_p > 0.0f ? s->top_p : FLT_MIN,
        .min_p = s->min_p,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .top_k = s->top_k,
        .slot = slot,
        .bias_begin = 0,
        .n_bias = s->n_biases,
        .mask = 0,
    };
}

/* ---- The mask ---- */

/* Tokens that stand for images or for nothing, by how their names begin: ids differ between
 * vocabularies. */
static bool is_placeholder(const char *bytes, size_t size) {
    static const char *const prefixes[] = {"<｜place▁holder▁", "<|place_holder_",
                                           "<｜deepseek_image｜>", "<｜image｜>", "<｜rl_image_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (size >= n && memcmp(bytes, prefixes[i], n) == 0) return true;
    }
    return false;
}

void di_sampling_mask(const di_tokenizer *tokenizer, int32_t vocab_size, uint32_t *words) {
    for (int32_t id = 0; id < vocab_size; id++) {
        bool allowed = true;
        if (tokenizer) {
            size_t size;
            const char *bytes = di_tokenizer_bytes(tokenizer, id, &size);
            allowed =
                bytes && !(di_tokenizer_is_added(tokenizer, id) && is_placeholder(bytes, size));
        }
        if (allowed) words[id / 32] |= UINT32_C(1) << (id % 32);
    }
}
