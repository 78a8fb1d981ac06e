/* Engram's derived constants and the rotary frequencies against the oracle and the spec's values.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/engram.h"
#include "model/rope.h"
#include "support/golden.h"

static void load_config(const char *name, di_config *config) {
    char path[1024];
    di_error error;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/model/config.json", DI_SOURCE_DIR, name);
    assert_int_equal(di_config_load(path, config, &error), DI_OK);
}

static void equal_rows(const di_safetensors *golden, const char *name, const int64_t *got,
                       int64_t stride, int64_t rows, int64_t columns) {
    int64_t n;
    int64_t *want = golden_int(golden, name, &n);
    assert_int_equal(n, rows * columns);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(got[i / columns * stride + i % columns], want[i]);
    }
    free(want);
}

static void equal_frequencies(const di_safetensors *golden, const di_config *config,
                              bool compressed) {
    const char *name =
        compressed ? "rope/inverse_frequencies_compress" : "rope/inverse_frequencies_main";
    int64_t n;
    const float *want = golden_f32(golden, name, &n);
    assert_int_equal(n, config->qk_rope_head_dim / 2);
    float got[64];
    di_rope_frequencies(config, compressed, got);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}

static void check_constants(const char *name) {
    di_config config;
    di_engram engram;
    di_error error;
    di_safetensors *golden;
    di_tokenizer *tokenizer;
    char path[1024];
    load_config(name, &config);
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, name);
    assert_int_equal(di_safetensors_open(path, &golden, &error), DI_OK);
    assert_int_equal(di_engram_derive(&config, &engram, &error), DI_OK);
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/model/tokenizer.json", DI_SOURCE_DIR,
             name);
    assert_int_equal(di_tokenizer_load(path, &tokenizer, &error), DI_OK);
    assert_int_equal(di_engram_map_from_tokenizer(&config, tokenizer, path, &engram, &error),
                     DI_OK);
    int64_t layers = config.n_engram_layers, columns = engram.n_columns, n;
    equal_rows(golden, "engram/multipliers", engram.multipliers[0], DI_MAX_NGRAM, layers,
               config.engram_max_ngram_size);
    equal_rows(golden, "engram/primes", engram.primes[0], DI_MAX_ENGRAM_COLUMNS, layers, columns);
    equal_rows(golden, "engram/offsets", engram.offsets[0], DI_MAX_ENGRAM_COLUMNS, layers, columns);
    int64_t *map = golden_int(golden, "engram/token_map", &n);
    assert_int_equal(n, config.vocab_size);
    for (int64_t i = 0; i < n; i++) assert_int_equal(engram.token_map[i], map[i]);
    assert_int_equal(engram.pad_class, map[config.engram_pad_token_id]);
    equal_frequencies(golden, &config, false);
    equal_frequencies(golden, &config, true);
    free(map);
    di_engram_free(&engram);
    di_tokenizer_destroy(tokenizer);
    di_safetensors_close(golden);
}

static void test_tiny_a(void **state) {
    (void)state;
    check_constants("tiny-a");
}

static void test_tiny_b(void **state) {
    (void)state;
    check_constants("tiny-b");
}

/* The released constants of model.md 5.2 and the frequencies of 9e. */
static void test_released(void **state) {
    (void)state;
    size_t size;
    const char *json = di_config_released(&size);
    di_config config;
    di_engram engram;
    di_error error;
    assert_int_equal(di_config_parse(json, size, "released", &config, &error), DI_OK);
    assert_int_equal(di_engram_derive(&config, &engram, &error), DI_OK);
    static const int64_t multipliers[2][4] = {{76632096046245, 4839876093313, 35959672319349,
                                               73987337458391},
                                              {67716810739261, 51510806800915, 30921347202721,
                                               82619226485591}};
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(engram.multipliers[i], multipliers[i], sizeof multipliers[i]);
    }
    assert_int_equal(engram.primes[0][0], 16000057);
    assert_int_equal(engram.primes[0][23], 16000463);
    assert_int_equal(engram.primes[1][0], 16000477);
    assert_int_equal(engram.primes[1][23], 16000889);
    float freq[32];
    di_rope_frequencies(&config, true, freq);
    assert_true(fabs(freq[1] - 0.687656045) < 1e-9);
    assert_true(fabs(freq[20] - 2.96977785e-4) < 1e-12);
    assert_true(fabs(freq[31] - 5.6805294e-7) < 1e-14);
    di_rope_frequencies(&config, false, freq);
    assert_true(fabs(freq[15] - 0.0133352149) < 1e-10);
    di_engram_free(&engram);
}

/* model.md 9d: other layer ids, sizes and bounds than the release's. */
static void test_other_multipliers(void **state) {
    (void)state;
    static const int64_t want[4] = {29662608052400909, 1873410163432121, 13919202536988139,
                                    28638879857136817};
    int64_t got[4];
    di_numpy_integers(10007, (uint64_t)(INT64_MAX / 256 / 2), 4, got);
    for (int i = 0; i < 4; i++) assert_int_equal(2 * got[i] + 1, want[i]);
}

static void test_wrong_table_size(void **state) {
    (void)state;
    di_config config;
    di_engram engram;
    di_error error;
    load_config("tiny-a", &config);
    config.engram_num_embeddings[1]++;
    assert_int_equal(di_engram_derive(&config, &engram, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "config.json: engram_num_embeddings[1] is 2149, but "
                                       "engram_vocab_size 300 gives 2148 rows");
}

static void test_wrong_tokenizer(void **state) {
    (void)state;
    di_config config;
    di_engram engram = {0};
    di_error error;
    di_tokenizer *tokenizer;
    char path[1024];
    load_config("tiny-a", &config);
    snprintf(path, sizeof path, "%s/models/demo/tokenizer.json", DI_SOURCE_DIR);
    assert_int_equal(di_tokenizer_load(path, &tokenizer, &error), DI_OK);
    assert_int_equal(di_engram_map_from_tokenizer(&config, tokenizer, "t.json", &engram, &error),
                     DI_ERR_INVALID);
    assert_string_equal(error.message,
                        "t.json has 2560 ids, but config.json says vocab_size 384; the "
                        "tokenizer belongs to another model");
    config.vocab_size = 2560;
    assert_int_equal(di_engram_map_from_tokenizer(&config, tokenizer, "t.json", &engram, &error),
                     DI_ERR_INVALID);
    assert_string_equal(error.message,
                        "t.json: its Engram map has 2152 classes, config.json says 339 "
                        "(engram_compressed_vocab_size); the tokenizer belongs to another model");
    di_engram_free(&engram);
    di_tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_a),           cmocka_unit_test(test_tiny_b),
        cmocka_unit_test(test_released),         cmocka_unit_test(test_other_multipliers),
        cmocka_unit_test(test_wrong_table_size), cmocka_unit_test(test_wrong_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
