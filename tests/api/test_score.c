/* Scores against what the same engine samples, and what the sink is given. */
#include "deepinfer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "support/temp.h"

#define TINY DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"
enum { N = 45, CHUNK = 16, MAX_VOCAB = 384 };

static di_error error;

static const char *const backends[] = {"cpu", "ref"};

static di_engine *open_engine(const char *backend) {
    di_engine_options options = di_engine_options_defaults();
    options.backend = backend;
    options.context = 128;
    options.chunk = CHUNK;
    di_engine *engine = NULL;
    di_status status = di_engine_open(TINY, &options, &engine, &error);
    if (status == DI_ERR_UNSUPPORTED) return NULL;
    if (status != DI_OK) fail_msg("%s", error.message);
    return engine;
}

typedef struct seen {
    di_engine_info info;
    float logprobs[N], logits[N][MAX_VOCAB];
    int64_t next_logprob, next_logit, next_stream[64];
    double stream_sum[64];
    int64_t stop_after; /* positions; 0: never */
} seen;

static di_status on_logprobs(void *user, int64_t first, int64_t n, const float *values,
                             di_error *e) {
    seen *s = user;
    assert_int_equal(first, s->next_logprob);
    memcpy(s->logprobs + first, values, (size_t)n * sizeof *values);
    s->next_logprob += n;
    if (!s->stop_after || s->next_logprob < s->stop_after) return DI_OK;
    e->status = DI_ERR_IO;
    strcpy(e->message, "enough");
    return DI_ERR_IO;
}

static di_status on_logits(void *user, int64_t first, int64_t n, const float *values, di_error *e) {
    (void)e;
    seen *s = user;
    assert_int_equal(first, s->next_logit);
    for (int64_t i = 0; i < n; i++) {
        memcpy(s->logits[first + i], values + i * s->info.vocab_size,
               (size_t)s->info.vocab_size * sizeof *values);
    }
    s->next_logit += n;
    return DI_OK;
}

static di_status on_streams(void *user, int32_t layer, int64_t first, int64_t n,
                            const float *values, di_error *e) {
    (void)e;
    seen *s = user;
    assert_int_equal(first, s->next_stream[layer]);
    s->next_stream[layer] += n;
    int64_t count = n * s->info.n_streams * s->info.hidden_size;
    for (int64_t i = 0; i < count; i++) s->stream_sum[layer] += fabs((double)values[i]);
    return DI_OK;
}

static double log_softmax(const float *row, int32_t n, int32_t id) {
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) max = fmax(max, (double)row[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)row[i] - max);
    return (double)row[id] - max - log(sum);
}

/* The begin token and a greedy answer with its log-probabilities. */
static void greedy(di_engine *engine, int32_t *ids, float *logprobs) {
    di_sampling sampling = di_sampling_defaults();
    sampling.temperature = 0;
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    ids[0] = 0;
    assert_int_equal(di_sequence_prompt(sequence, ids, 1, NULL, &error), DI_OK);
    for (int i = 1; i < N; i++) {
        di_token token;
        assert_int_equal(di_sequence_next(sequence, &sampling, &token, &error), DI_OK);
        ids[i] = token.id;
        logprobs[i] = token.logprob;
    }
    di_sequence_destroy(sequence);
}

static void check_against_sampling(di_engine *engine) {
    int32_t ids[N];
    float want[N];
    greedy(engine, ids, want);
    seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->info = di_engine_get_info(engine);
    assert_true(s->info.vocab_size <= MAX_VOCAB && s->info.n_layers <= 64);
    di_score_sink sink = {s, on_logprobs, on_logits, on_streams};
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    assert_int_equal(di_sequence_score(sequence, ids, N, &sink, &error), DI_OK);
    assert_int_equal(s->next_logprob, N);
    assert_int_equal(s->next_logit, N);
    assert_true(isnan(s->logprobs[0]));
    for (int i = 1; i < N; i++) {
        double from_logits = log_softmax(s->logits[i - 1], s->info.vocab_size, ids[i]);
        assert_true(fabs((double)s->logprobs[i] - from_logits) < 1e-5);
        assert_true(fabs((double)s->logprobs[i] - (double)want[i]) < 1e-5);
    }
    for (int32_t layer = 0; layer < s->info.n_layers; layer++) {
        assert_int_equal(s->next_stream[layer], N);
        assert_true(isfinite(s->stream_sum[layer]) && s->stream_sum[layer] > 0);
    }
    /* The sequence holds the ids, and goes on from them. */
    di_sampling sampling = di_sampling_defaults();
    sampling.temperature = 0;
    di_token token;
    assert_int_equal(di_sequence_next(sequence, &sampling, &token, &error), DI_OK);
    double best = log_softmax(s->logits[N - 1], s->info.vocab_size, token.id);
    assert_true(fabs((double)token.logprob - best) < 1e-5);
    di_sequence_destroy(sequence);
    free(s);
}

static void test_agrees_with_sampling(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        di_engine *engine = open_engine(backends[i]);
        if (engine) check_against_sampling(engine);
        di_engine_close(engine);
    }
}

static void test_sink_can_stop(void **state) {
    (void)state;
    di_engine *engine = open_engine("ref");
    int32_t ids[N] = {0};
    for (int i = 1; i < N; i++) ids[i] = 3 + i;
    seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->stop_after = CHUNK;
    di_score_sink sink = {s, on_logprobs, NULL, NULL};
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    assert_int_equal(di_sequence_score(sequence, ids, N, &sink, &error), DI_ERR_IO);
    assert_string_equal(error.message, "enough");
    assert_true(s->next_logprob < N);
    size_t n;
    (void)di_sequence_ids(sequence, &n);
    assert_int_equal(n, CHUNK);
    assert_int_equal(di_sequence_score(sequence, ids, 0, &sink, &error), DI_ERR_USAGE);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
    free(s);
}

/* ---- Damage ---- */

/* A NaN as the first value of the last norm: no logit is a number then. */
static void damage(const char *path) {
    size_t size;
    char *bytes = temp_read(path, &size);
    uint64_t header, begin;
    memcpy(&header, bytes, 8);
    const char *entry = strstr(bytes + 8, "\"norm.weight\":");
    assert_non_null(entry);
    const char *offsets = strstr(entry, "\"data_offsets\":[");
    if (!offsets) offsets = strstr(entry, "\"data_offsets\": [");
    assert_non_null(offsets);
    begin = strtoull(strchr(offsets, '[') + 1, NULL, 10);
    memset(bytes + 8 + header + begin, 0xFF, 4);
    temp_write(path, bytes, size);
    free(bytes);
}

static void test_damaged_weights(void **state) {
    (void)state;
    char *directory = temp_dir_create();
    temp_copy_dir(TINY, directory);
    char *path = temp_printf("%s/model.safetensors", directory);
    damage(path);
    di_engine_options options = di_engine_options_defaults();
    options.backend = "ref";
    options.context = 64;
    di_engine *engine;
    di_sequence *sequence;
    static const int32_t ids[] = {0, 5, 6};
    assert_int_equal(di_engine_open(directory, &options, &engine, &error), DI_OK);
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    di_score_sink sink = {s, on_logprobs, NULL, NULL};
    assert_int_equal(di_sequence_score(sequence, ids, 3, &sink, &error), DI_ERR_INVALID);
    assert_string_equal(error.message,
                        "token 1 cannot be scored: the logits before it are not finite numbers; "
                        "the weights may be damaged");
    assert_int_equal(s->next_logprob, 0);
    free(s);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
    free(path);
    temp_dir_destroy(directory);
}

/* ---- Memory ---- */

static di_engine *open_with_memory(uint64_t memory) {
    di_engine_options options = di_engine_options_defaults();
    options.backend = "ref";
    options.context = 128;
    options.chunk = CHUNK;
    options.memory = memory;
    di_engine *engine = NULL;
    di_status status = di_engine_open(TINY, &options, &engine, &error);
    if (status != DI_OK) assert_int_equal(status, DI_ERR_MEMORY);
    return engine;
}

/* The least that is accepted, to the byte. */
static uint64_t least_memory(void) {
    uint64_t refused = 0, accepted = UINT64_C(64) << 20;
    while (accepted - refused > 1) {
        uint64_t middle = refused + (accepted - refused) / 2;
        di_engine *engine = open_with_memory(middle);
        *(engine ? &accepted : &refused) = middle;
        di_engine_close(engine);
    }
    return accepted;
}

typedef struct rows {
    int64_t most;
    float logprobs[N];
} rows;

static di_status keep_logprobs(void *user, int64_t first, int64_t n, const float *values,
                               di_error *e) {
    (void)e;
    rows *r = user;
    memcpy(r->logprobs + first, values, (size_t)n * sizeof *values);
    return DI_OK;
}

static di_status count_rows(void *user, int32_t layer, int64_t first, int64_t n,
                            const float *values, di_error *e) {
    (void)layer, (void)first, (void)values, (void)e;
    rows *r = user;
    if (n > r->most) r->most = n;
    return DI_OK;
}

/* The rows of a score's step, whose buffers are bounded by the memory, too; closes the engine. */
static rows score_rows(di_engine *engine) {
    assert_non_null(engine);
    int32_t ids[N] = {0};
    for (int i = 1; i < N; i++) ids[i] = 3 + i;
    rows r = {0, {0}};
    di_score_sink sink = {&r, keep_logprobs, NULL, count_rows};
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    assert_int_equal(di_sequence_score(sequence, ids, N, &sink, &error), DI_OK);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
    return r;
}

static void test_memory_bounds_the_buffers(void **state) {
    (void)state;
    di_engine *engine = open_with_memory(0);
    const di_config *config = di_model_config(engine->model);
    uint64_t row = di_score_row_bytes(config, engine->backend), least = least_memory();
    uint64_t streams = (uint64_t)config->hc_mult * (uint64_t)config->hidden_size;
    assert_true(row >= (uint64_t)config->vocab_size * 4 +
                           (uint64_t)config->num_hidden_layers * streams * 2 + streams * 4);
    rows plenty = score_rows(engine);
    assert_int_equal(plenty.most, CHUNK);
    static const struct {
        int64_t more_rows, more_bytes, want;
    } cases[] = {{0, 0, 1}, {1, -1, 1}, {1, 0, 2}, {7, 0, 8}, {CHUNK - 1, 0, CHUNK}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t memory =
            least + (uint64_t)(cases[i].more_rows * (int64_t)row) + (uint64_t)cases[i].more_bytes;
        rows got = score_rows(open_with_memory(memory));
        assert_int_equal(got.most, cases[i].want);
        /* Position 0 is no number. */
        assert_memory_equal(got.logprobs + 1, plenty.logprobs + 1, (N - 1) * sizeof(float));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_sampling),
        cmocka_unit_test(test_sink_can_stop),
        cmocka_unit_test(test_damaged_weights),
        cmocka_unit_test(test_memory_bounds_the_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
