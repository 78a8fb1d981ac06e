/* Sampling values: what is accepted, what generation_config.json says, what is never sampled. */
#include "deepinfer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/temp.h"

#define DEMO DI_SOURCE_DIR "/models/demo"
#define TINY DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"

static di_error error;

static di_engine *try_engine(const char *directory, const di_engine_options *options,
                             di_status want) {
    di_engine *engine = NULL;
    di_engine_options o = *options;
    o.context = 64;
    di_status status = di_engine_open(directory, &o, &engine, &error);
    if (status == DI_ERR_UNSUPPORTED) {
        o.backend = "ref";
        status = di_engine_open(directory, &o, &engine, &error);
    }
    if (status != want) fail_msg("%s: %d, %s", directory, status, error.message);
    return engine;
}

static di_engine *open_engine(const char *directory) {
    di_engine_options options = di_engine_options_defaults();
    return try_engine(directory, &options, DI_OK);
}

static void test_checks(void **state) {
    (void)state;
    static const struct {
        size_t offset;
        float value;
        const char *message;
    } cases[] = {
        {offsetof(di_sampling, temperature), NAN, "temperature: nan is no number from 0 to 100"},
        {offsetof(di_sampling, temperature), INFINITY,
         "temperature: inf is no number from 0 to 100"},
        {offsetof(di_sampling, temperature), -1, "temperature: -1 is no number from 0 to 100"},
        {offsetof(di_sampling, top_p), 1.5f, "top_p: 1.5 is no number from 0 to 1"},
        {offsetof(di_sampling, min_p), -INFINITY, "min_p: -inf is no number from 0 to 1"},
        {offsetof(di_sampling, repetition_penalty), 0.0099f,
         "repetition_penalty: 0.0099 is no number from 0.01 to 100"},
        {offsetof(di_sampling, presence_penalty), 101,
         "presence_penalty: 101 is no number from -100 to 100"},
        {offsetof(di_sampling, frequency_penalty), NAN,
         "frequency_penalty: nan is no number from -100 to 100"},
    };
    di_sampling s = di_sampling_defaults();
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_OK);
    s.repetition_penalty = 0.01f;
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s = di_sampling_defaults();
        memcpy((char *)&s + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        assert_int_equal(di_sampling_check(&s, 100, &error), DI_ERR_USAGE);
        /* The sign of a NaN is not ours. */
        char *message = error.message, *minus = strstr(message, "-nan");
        if (minus) memmove(minus, minus + 1, strlen(minus));
        assert_string_equal(message, cases[i].message);
    }
    s = di_sampling_defaults();
    s.top_k = -1;
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_ERR_USAGE);
    di_token_bias bias = {100, 0};
    s = di_sampling_defaults();
    s.biases = &bias;
    s.n_biases = 1;
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "logit bias: there is no token 100, ids are 0 to 99");
    bias = (di_token_bias){99, NAN};
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_ERR_USAGE);
    s.biases = NULL;
    assert_int_equal(di_sampling_check(&s, 100, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "biases is NULL, but n_biases is 1");
}

static void test_generation_config(void **state) {
    (void)state;
    char *directory = temp_dir_create();
    temp_copy_dir(TINY, directory);
    char *path = temp_printf("%s/generation_config.json", directory);
    static const struct {
        const char *json;
        di_status status;
        float temperature, top_p, repetition;
        int32_t top_k;
        const char *message; /* what its end must be */
    } cases[] = {
        {"{}", DI_OK, 1, 0.95f, 1, 0, ""},
        {"{\"temperature\": 0.6, \"top_p\": 1, \"top_k\": 20, \"repetition_penalty\": 1.1}", DI_OK,
         0.6f, 1, 1.1f, 20, ""},
        {"{\"do_sample\": false, \"temperature\": 0.6}", DI_OK, 0, 0.95f, 1, 0, ""},
        {"{\"do_sample\": null}", DI_OK, 1, 0.95f, 1, 0, ""},
        {"{\"do_sample\": \"no\"}", DI_ERR_INVALID, 0, 0, 0, 0,
         "do_sample is neither true nor false"},
        {"{\"temperature\": null}", DI_OK, 1, 0.95f, 1, 0, ""},
        {"{\"temperature\": \"hot\"}", DI_ERR_INVALID, 0, 0, 0, 0, "temperature is no number"},
        {"{\"temperature\": -2}", DI_ERR_INVALID, 0, 0, 0, 0,
         "temperature: -2 is no number from 0 to 100"},
        {"{\"top_k\": 1e40}", DI_ERR_INVALID, 0, 0, 0, 0,
         "top_k: 1e+40 is no number from 0 to 2.14748e+09"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temp_write(path, cases[i].json, strlen(cases[i].json));
        di_engine_options options = di_engine_options_defaults();
        di_engine *engine = try_engine(directory, &options, cases[i].status);
        if (engine) {
            di_sampling s = di_engine_sampling(engine);
            assert_true(s.temperature == cases[i].temperature && s.top_p == cases[i].top_p);
            assert_true(s.repetition_penalty == cases[i].repetition && s.top_k == cases[i].top_k);
        } else {
            size_t n = strlen(error.message), m = strlen(cases[i].message);
            assert_true(n > m);
            assert_string_equal(error.message + n - m, cases[i].message);
            assert_int_equal(strncmp(error.message, path, strlen(path)), 0);
        }
        di_engine_close(engine);
    }
    free(path);
    temp_dir_destroy(directory);
}

static int32_t first_token(di_engine *engine, const di_sampling *sampling) {
    static const int32_t ids[] = {0, 40};
    di_sequence *sequence;
    di_token token;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    assert_int_equal(di_sequence_prompt(sequence, ids, 2, NULL, &error), DI_OK);
    assert_int_equal(di_sequence_next(sequence, sampling, &token, &error), DI_OK);
    di_sequence_destroy(sequence);
    return token.id;
}

/* A bias of 1000 makes sure of any token but those that must never come. */
static void test_never_sampled(void **state) {
    (void)state;
    di_engine *engine = open_engine(DEMO);
    const di_tokenizer *tokenizer = di_engine_tokenizer(engine);
    int32_t image = di_tokenizer_added_id(tokenizer, "<｜deepseek_image｜>");
    assert_true(image > 0);
    for (int greedy = 0; greedy < 2; greedy++) {
        di_token_bias bias = {image, 1000};
        di_sampling sampling = di_sampling_defaults();
        sampling.biases = &bias;
        sampling.n_biases = 1;
        if (greedy) sampling.temperature = 0;
        assert_int_not_equal(first_token(engine, &sampling), image);
        bias.token = di_tokenizer_added_id(tokenizer, "<think>");
        assert_int_equal(first_token(engine, &sampling), bias.token);
        bias.token = 77;
        assert_int_equal(first_token(engine, &sampling), 77);
    }
    di_engine_close(engine);
    /* tiny-a has ids without a token: 384 rows, of which the tokenizer names fewer. */
    engine = open_engine(TINY);
    tokenizer = di_engine_tokenizer(engine);
    int32_t vocab = di_engine_get_info(engine).vocab_size, nameless = -1;
    for (int32_t id = 0; id < vocab; id++) {
        if (!di_tokenizer_spelling(tokenizer, id)) nameless = id;
    }
    if (nameless >= 0) {
        di_token_bias bias = {nameless, 1000};
        di_sampling sampling = di_sampling_defaults();
        sampling.biases = &bias;
        sampling.n_biases = 1;
        assert_int_not_equal(first_token(engine, &sampling), nameless);
    }
    di_engine_close(engine);
}

/* top_p 0 is the likeliest token, not none; temperature 0 is greedy whatever the others say. */
static void test_greedy_ways(void **state) {
    (void)state;
    di_engine *engine = open_engine(TINY);
    di_sampling greedy = di_sampling_defaults();
    greedy.temperature = 0;
    int32_t best = first_token(engine, &greedy);
    for (uint64_t seed = 0; seed < 20; seed++) {
        di_sampling s = di_sampling_defaults();
        s.seed = seed;
        s.temperature = 5;
        s.top_p = 0;
        assert_int_equal(first_token(engine, &s), best);
        s.top_p = 1;
        s.top_k = 1;
        assert_int_equal(first_token(engine, &s), best);
        s.top_k = 0;
        s.min_p = 1;
        assert_int_equal(first_token(engine, &s), best);
    }
    di_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checks),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_never_sampled),
        cmocka_unit_test(test_greedy_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
