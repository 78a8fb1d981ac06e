/* Opening an engine: what is refused and how it is told, memory, and a model without a tokenizer.
 */
#include "deepinfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/temp.h"

#define DEMO DI_SOURCE_DIR "/models/demo"
#define TINY DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"

static di_error error;

static void refuses(const char *directory, const di_engine_options *options, di_status want,
                    const char *message) {
    di_engine *engine = (di_engine *)&error;
    di_status status = di_engine_open(directory, options, &engine, &error);
    if (status != want || strcmp(error.message, message) != 0) {
        fail_msg("%s: %d, %s", directory, status, error.message);
    }
    assert_null(engine);
}

static void test_options(void **state) {
    (void)state;
    di_engine_options o = di_engine_options_defaults();
    o.backend = "gpu";
    refuses(TINY, &o, DI_ERR_USAGE, "backend 'gpu' is unknown; there are auto, cpu, cuda and ref");
    o = di_engine_options_defaults();
    o.numerics = "exact";
    refuses(TINY, &o, DI_ERR_USAGE, "numerics 'exact' is unknown; there are float and release");
    o = di_engine_options_defaults();
    o.backend = NULL;
    refuses(TINY, &o, DI_ERR_USAGE, "backend is NULL; begin with di_engine_options_defaults()");
    o = di_engine_options_defaults();
    o.numerics = NULL;
    refuses(TINY, &o, DI_ERR_USAGE, "numerics is NULL; begin with di_engine_options_defaults()");
    o = di_engine_options_defaults();
    o.n_threads = -1;
    refuses(TINY, &o, DI_ERR_USAGE, "n_threads: -1 is out of range, 0 to 1024 are accepted");
    o = di_engine_options_defaults();
    o.chunk = 0;
    refuses(TINY, &o, DI_ERR_USAGE, "chunk: 0 is out of range, 1 to 65536 are accepted");
    o = di_engine_options_defaults();
    o.context = -5;
    refuses(TINY, &o, DI_ERR_USAGE, "context: -5 is out of range, 0 to 2147483647 are accepted");
    o = di_engine_options_defaults();
    o.context = 32769;
    o.backend = "ref";
    refuses(DEMO, &o, DI_ERR_USAGE,
            "a context of 32769 tokens was asked for, the model takes at most 32768");
}

static void test_directories(void **state) {
    (void)state;
    di_engine_options o = di_engine_options_defaults();
    char *directory = temp_dir_create(), *message;
    message = temp_printf("cannot open %s/config.json: No such file or directory", directory);
    refuses(directory, &o, DI_ERR_IO, message);
    free(message);
    char *absent = temp_printf("%s/absent", directory);
    message = temp_printf("cannot open the model directory %s: No such file or directory", absent);
    refuses(absent, &o, DI_ERR_IO, message);
    free(message);
    free(absent);
    temp_dir_destroy(directory);
    refuses(TINY "/config.json", &o, DI_ERR_USAGE,
            TINY "/config.json is no directory; a model is the directory that holds config.json");
}

static di_engine *open_with_memory(uint64_t memory, di_status *status) {
    di_engine_options o = di_engine_options_defaults();
    o.backend = "ref";
    o.context = 512;
    o.chunk = 32;
    o.memory = memory;
    di_engine *engine = NULL;
    *status = di_engine_open(DEMO, &o, &engine, &error);
    return engine;
}

/* From too little to plenty: refused, layer by layer, all at once, in this order and never back. */
static void test_memory(void **state) {
    (void)state;
    di_status status;
    di_engine *engine = open_with_memory(UINT64_C(4) << 20, &status);
    assert_int_equal(status, DI_ERR_MEMORY);
    assert_null(engine);
    unsigned need = 0, program = 0, weights = 0, context = 0;
    assert_int_equal(sscanf(error.message,
                            "not enough memory: %u MiB are needed (program and tokenizer %u MiB, "
                            "weights %u MiB at a time, a context of 512 tokens %u MiB), 4 MiB are "
                            "allowed; allow more, or ask for a smaller context or chunk",
                            &need, &program, &weights, &context),
                     4);
    assert_non_null(strstr(error.message, "or ask for a smaller context or chunk"));
    assert_true(need <= program + weights + context && need + 3 > program + weights + context);
    int stage = 0;
    for (uint64_t mib = 4; mib < 80; mib++) {
        engine = open_with_memory(mib << 20, &status);
        int now = !engine ? 0 : di_engine_get_info(engine).releases_layers ? 1 : 2;
        if (!engine) assert_int_equal(status, DI_ERR_MEMORY);
        assert_true(now >= stage);
        assert_int_equal(now > 0, mib >= need);
        if (engine) assert_true(di_engine_get_info(engine).state_bytes < mib << 20);
        stage = now;
        di_engine_close(engine);
    }
    assert_int_equal(stage, 2);
}

static void test_info(void **state) {
    (void)state;
    di_engine_options o = di_engine_options_defaults();
    o.backend = "ref";
    o.numerics = "float";
    o.context = 100;
    di_engine *engine;
    assert_int_equal(di_engine_open(DEMO, &o, &engine, &error), DI_OK);
    di_engine_info info = di_engine_get_info(engine);
    assert_string_equal(info.backend, "ref");
    assert_string_equal(info.numerics, "float");
    assert_int_equal(info.vocab_size, 2560);
    assert_int_equal(info.n_layers, 10);
    assert_int_equal(info.n_streams, 4);
    assert_int_equal(info.hidden_size, 256);
    assert_int_equal(info.bos_token, 0);
    assert_int_equal(info.eos_token, 1);
    assert_int_equal(info.context, 100);
    assert_int_equal(info.context_model, 32768);
    assert_true(info.weight_bytes > 14000000 && info.weight_bytes < 15238682);
    assert_false(info.releases_layers);
    assert_true(di_engine_sampling(engine).top_p == 0.95f);
    di_engine_close(engine);
    di_engine_close(NULL);
}

static bool stop_loading(void *user, di_phase phase, int64_t done, int64_t total) {
    (void)total;
    assert_int_equal(phase, DI_PHASE_LOAD);
    *(int64_t *)user = done;
    return false;
}

static void test_loading_can_be_stopped(void **state) {
    (void)state;
    int64_t done = -1;
    di_engine_options o = di_engine_options_defaults();
    o.backend = "ref";
    o.progress = stop_loading;
    o.user = &done;
    refuses(DEMO, &o, DI_ERR_CANCELLED, "loading was stopped");
    assert_true(done >= 0);
}

/* The sketch at the head of deepinfer.h. */
static void test_from_directory_to_text(void **state) {
    (void)state;
    di_engine_options o = di_engine_options_defaults();
    o.backend = "ref";
    o.context = 256;
    di_engine *engine;
    assert_int_equal(di_engine_open(DEMO, &o, &engine, &error), DI_OK);
    const di_tokenizer *tokenizer = di_engine_tokenizer(engine);
    di_prompt_options chat = di_prompt_options_defaults();
    chat.thinking = false;
    di_ids ids = {0};
    bool thinking = true;
    assert_int_equal(di_prompt_from_messages(
                         tokenizer, "[{\"role\": \"user\", \"content\": \"What is 12 + 13?\"}]",
                         NULL, &chat, &ids, &thinking, &error),
                     DI_OK);
    assert_false(thinking);
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    assert_int_equal(di_sequence_prompt(sequence, ids.data, ids.size, NULL, &error), DI_OK);
    di_sampling sampling = di_engine_sampling(engine);
    sampling.temperature = 0;
    di_token token = {-1, 0};
    size_t n_prompt = ids.size, n;
    int32_t eos = di_engine_get_info(engine).eos_token;
    for (int i = 0; i < 50 && token.id != eos; i++) {
        assert_int_equal(di_sequence_next(sequence, &sampling, &token, &error), DI_OK);
    }
    const int32_t *all = di_sequence_ids(sequence, &n);
    char *text;
    size_t size;
    assert_int_equal(di_tokenizer_text(tokenizer, all + n_prompt, n - n_prompt, true, &text, &size,
                                       &error),
                     DI_OK);
    assert_string_equal(text, "12 + 13 = 25");
    assert_int_equal(size, 12);
    di_free(text);
    di_ids_free(&ids);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
}

static void test_prompts(void **state) {
    (void)state;
    di_tokenizer *tokenizer;
    assert_int_equal(di_tokenizer_open(DEMO "/tokenizer.json", &tokenizer, &error), DI_OK);
    di_prompt_options options = di_prompt_options_defaults();
    di_ids ids = {0};
    bool thinking = false;
    const char *hi = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    assert_int_equal(di_prompt_from_messages(tokenizer, hi, NULL, &options, &ids, &thinking,
                                             &error),
                     DI_OK);
    assert_true(thinking);
    assert_int_equal(ids.data[0], 0);
    assert_int_equal(ids.data[ids.size - 1], di_tokenizer_added_id(tokenizer, "<think>"));
    options.effort = "none";
    assert_int_equal(di_prompt_from_messages(tokenizer, hi, NULL, &options, &ids, &thinking,
                                             &error),
                     DI_OK);
    assert_false(thinking);
    options.effort = "101";
    assert_int_equal(di_prompt_from_messages(tokenizer, hi, NULL, &options, &ids, NULL, &error),
                     DI_ERR_USAGE);
    options.effort = NULL;
    assert_int_equal(di_prompt_from_messages(tokenizer, hi, NULL, &options, &ids, NULL, &error),
                     DI_ERR_USAGE);
    assert_string_equal(error.message, "effort is NULL; begin with di_prompt_options_defaults()");
    options = di_prompt_options_defaults();
    assert_int_equal(di_prompt_from_messages(tokenizer, "[{]", NULL, &options, &ids, NULL, &error),
                     DI_ERR_INVALID);
    assert_int_equal(strncmp(error.message, "messages: line 1", 16), 0);
    assert_int_equal(
        di_prompt_from_messages(tokenizer,
                                "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
                                "\"image_url\": {\"url\": \"data:x\"}}]}]",
                                NULL, &options, &ids, NULL, &error),
        DI_ERR_UNSUPPORTED);
    di_ids_free(&ids);
    di_tokenizer_destroy(tokenizer);
    di_tokenizer_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_loading_can_be_stopped),
        cmocka_unit_test(test_from_directory_to_text),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
