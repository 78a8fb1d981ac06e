/* What the caches hold: the compressed entries and index keys of p33, decoded from the pages as
 * stored, against the oracle; that rewinding leaves no trace; and that no row is kept anywhere but
 * where the design says.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"
#include "model/network.h"
#include "support/golden.h"

static int32_t *prompt_ids(const char *name, const char *prompt, int64_t *n) {
    char path[1024];
    di_error error;
    di_safetensors *golden;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, name);
    assert_int_equal(di_safetensors_open(path, &golden, &error), DI_OK);
    snprintf(path, sizeof path, "%s/ids", prompt);
    int64_t *wide = golden_int(golden, path, n);
    int32_t *ids = malloc((size_t)*n * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < *n; i++) ids[i] = (int32_t)wide[i];
    free(wide);
    di_safetensors_close(golden);
    return ids;
}

static void open_tiny(test_model *m, const char *name, test_backend backend) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/golden/%s/model", name);
    test_model_open(m, path, &(test_model_options){backend, DI_NUMERICS_FLOAT, 1, {0}});
}

static uint8_t *read_device(test_model *m, di_ptr from, uint64_t bytes) {
    di_error error;
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    m->backend->download(m->backend->stream, copy, from, bytes);
    assert_int_equal(di_backend_sync(m->backend, &error), DI_OK);
    return copy;
}

/* Entry j, channel i of a source's latents or index keys, from slot 0's pages. */
static double entry_value(const test_model *m, const uint8_t *pool, int32_t layer, bool key,
                          int64_t j, int64_t i) {
    const di_context *context = m->context;
    int64_t per_page = DI_PAGE_TOKENS / m->config->roles[layer].ratio, place = j % per_page;
    int64_t width = key ? m->config->index_head_dim : m->config->head_dim;
    const struct di_page_part *part = &context->page_part[layer];
    const uint8_t *page = pool + (uint64_t)(j / per_page) * context->page_bytes;
    const uint8_t *codes = page + (key ? part->key_codes : part->codes) + place * width / 2;
    const uint8_t *scales = page + (key ? part->key_scales : part->scales);
    uint8_t code = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    double scale = key ? di_e8m0_decode(scales[place * width / 32 + i / 32])
                       : di_e4m3_decode(scales[place * width / 16 + i / 16]);
    return di_e2m1_decode(code) * scale;
}

static void check_pages(const char *name) {
    test_model m;
    int64_t n, n_want;
    di_error error;
    di_safetensors *golden;
    char path[1024];
    open_tiny(&m, name, TEST_REF);
    int32_t *ids = prompt_ids(name, "p33", &n);
    test_feed(&m, 0, ids, (int32_t)n, NULL, 0);
    uint64_t bytes = (uint64_t)m.context->pages_per_slot * m.context->page_bytes;
    uint8_t *pool = read_device(&m, m.context->at.page_pool, bytes);
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, name);
    assert_int_equal(di_safetensors_open(path, &golden, &error), DI_OK);
    for (int32_t s = 0; s < m.config->n_kv_sources; s++) {
        int32_t layer = m.config->kv_source_layer_ids[s];
        for (int key = 0; key < 2; key++) {
            snprintf(path, sizeof path, "p33/%s.layer%d", key ? "index_keys" : "compressed_kv",
                     layer);
            const float *want = golden_f32(golden, path, &n_want);
            int64_t width = key ? m.config->index_head_dim : m.config->head_dim;
            assert_int_equal(n_want / width, n / m.config->roles[layer].ratio);
            for (int64_t i = 0; i < n_want; i++) {
                double got = entry_value(&m, pool, layer, key, i / width, i % width);
                if (got != want[i]) fail_msg("%s[%ld]: %g, want %g", path, (long)i, got, want[i]);
            }
        }
    }
    di_safetensors_close(golden);
    free(pool);
    free(ids);
    test_model_close(&m);
}

static void test_pages_tiny_a(void **state) {
    (void)state;
    check_pages("tiny-a");
}

static void test_pages_tiny_b(void **state) {
    (void)state;
    check_pages("tiny-b");
}

/* The released layout: 11,392 bytes at ratio 2, 22,784 at ratio 1, 56,960 in all; 890 a token. */
static void test_released_page(void **state) {
    (void)state;
    size_t size;
    const char *json = di_config_released(&size);
    di_config config;
    di_error error;
    assert_int_equal(di_config_parse(json, size, "released", &config, &error), DI_OK);
    di_backend *backend;
    assert_int_equal(di_backend_create_ref(DI_NUMERICS_FLOAT, &backend, &error), DI_OK);
    di_context *context = calloc(1, sizeof *context);
    assert_non_null(context);
    di_context_bytes bytes;
    di_context_options options = di_context_options_defaults(&config);
    di_context_lay_out(&config, backend, &options, context, &bytes);
    assert_int_equal(context->page_bytes, 56960);
    assert_int_equal(di_config_page_bytes(&config), 56960);
    assert_int_equal(context->page_part[8].codes, 11392);
    assert_int_equal(context->page_part[20].codes, 3 * 11392);
    assert_int_equal(56960 / 64, 890);
    assert_int_equal(context->ring_slots, 140);
    assert_int_equal(context->compress_slots, 16);
    free(context);
    backend->destroy(backend);
}

/* Wrong tokens, taken back, then the right ones: logits as if nothing had happened, bit by bit. */
static void check_rewind(const char *name, test_backend backend) {
    test_model m;
    int64_t n;
    di_error error;
    open_tiny(&m, name, backend);
    int32_t *ids = prompt_ids(name, backend == TEST_REF ? "p33" : "p130", &n);
    int32_t vocab = m.config->vocab_size, rollback = di_config_rollback(m.config);
    float *want = test_feed_all(&m, 0, ids, (int32_t)n);
    for (int32_t at = 1; at < (int32_t)n; at = at * 2 + 1) {
        for (int32_t back = 1; back <= rollback; back += back < 3 ? 1 : 3) {
            int32_t wrong[64];
            for (int32_t i = 0; i < back; i++) wrong[i] = (ids[i] * 7 + i + 5) % vocab;
            di_context_reset(m.context, 0);
            test_feed(&m, 0, ids, at, NULL, 0);
            test_feed(&m, 0, wrong, back, NULL, 0);
            assert_int_equal(di_context_rewind(m.context, 0, back, &error), DI_OK);
            assert_int_equal(di_context_length(m.context, 0), at);
            float *got = test_feed_all(&m, 0, ids + at, (int32_t)n - at);
            assert_memory_equal(got, want + (int64_t)at * vocab,
                                (size_t)(n - at) * (size_t)vocab * sizeof *got);
            free(got);
        }
    }
    free(want);
    free(ids);
    test_model_close(&m);
}

static void test_rewind_tiny_a(void **state) {
    (void)state;
    check_rewind("tiny-a", TEST_REF);
    check_rewind("tiny-a", TEST_CPU);
}

static void test_rewind_tiny_b(void **state) {
    (void)state;
    check_rewind("tiny-b", TEST_REF);
    check_rewind("tiny-b", TEST_CPU);
}

static void test_rewind_limits(void **state) {
    (void)state;
    test_model m;
    int64_t n;
    di_error error;
    open_tiny(&m, "tiny-a", TEST_REF);
    int32_t *ids = prompt_ids("tiny-a", "p33", &n);
    assert_int_equal(di_context_rewind(m.context, 0, 1, &error), DI_ERR_LIMIT);
    assert_string_equal(error.message, "cannot take back 1 tokens of slot 0: the margin is 0");
    test_feed(&m, 0, ids, (int32_t)n, NULL, 0);
    assert_int_equal(di_context_margin(m.context, 0), 12);
    assert_int_equal(di_context_rewind(m.context, 0, 13, &error), DI_ERR_LIMIT);
    assert_int_equal(di_context_rewind(m.context, 0, 8, &error), DI_OK);
    assert_int_equal(di_context_rewind(m.context, 0, 5, &error), DI_ERR_LIMIT);
    test_feed(&m, 0, ids, 3, NULL, 0);
    assert_int_equal(di_context_rewind(m.context, 0, 7, &error), DI_OK);
    free(ids);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_tiny_a),  cmocka_unit_test(test_pages_tiny_b),
        cmocka_unit_test(test_released_page), cmocka_unit_test(test_rewind_tiny_a),
        cmocka_unit_test(test_rewind_tiny_b), cmocka_unit_test(test_rewind_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
