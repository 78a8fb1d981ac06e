/* Replay at the model's interface: the decoder-side cut and lost windows against the oracle's
 * vectors, and the promises of design: entries never depend on the cut, nor do results on chunks.
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

#include "model/network.h"
#include "support/deviation.h"
#include "support/golden.h"

typedef struct vectors {
    di_safetensors *file;
    int32_t *ids;
    int64_t n, n_positions, n_logits, vocab;
    int64_t *positions;
    const float *logits;
} vectors;

static void open_vectors(vectors *v, const char *model, const char *name) {
    char path[1024];
    di_error error;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, model);
    assert_int_equal(di_safetensors_open(path, &v->file, &error), DI_OK);
    snprintf(path, sizeof path, "%s/ids", name);
    int64_t *wide = golden_int(v->file, path, &v->n);
    v->ids = malloc((size_t)v->n * sizeof *v->ids);
    assert_non_null(v->ids);
    for (int64_t i = 0; i < v->n; i++) v->ids[i] = (int32_t)wide[i];
    free(wide);
    snprintf(path, sizeof path, "%s/positions", name);
    v->positions = golden_int(v->file, path, &v->n_positions);
    snprintf(path, sizeof path, "%s/logits", name);
    v->logits = golden_f32(v->file, path, &v->n_logits);
    v->vocab = golden_tensor(v->file, path)->shape[1];
}

static void close_vectors(vectors *v) {
    free(v->ids);
    free(v->positions);
    di_safetensors_close(v->file);
}

static void open_model(test_model *m, const char *name, test_backend backend) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/golden/%s/model", name);
    di_context_options context = {.n_slots = 3,
                                  .max_context = 512,
                                  .max_rows = 512,
                                  .max_out = 512,
                                  .replay = true};
    test_model_open(m, path, &(test_model_options){backend, DI_NUMERICS_FLOAT, 2, context});
}

/* Rows of slot in steps of `chunk`, logits of the positions from `wanted` on, [n - wanted][V]. */
static float *feed(test_model *m, int32_t slot, const int32_t *ids, int64_t from, int64_t n,
                   int64_t wanted, int32_t chunk) {
    size_t vocab = (size_t)m->config->vocab_size;
    float *logits = malloc((size_t)(n - wanted) * vocab * sizeof *logits);
    assert_non_null(logits);
    for (int64_t at = from; at < n; at += chunk) {
        int32_t rows = (int32_t)(n - at < chunk ? n - at : chunk), out[512], n_out = 0;
        int64_t first = at > wanted ? at : wanted;
        for (int64_t p = first; p < at + rows; p++) out[n_out++] = (int32_t)(p - at);
        float *part = test_feed(m, slot, ids + at, rows, out, n_out);
        if (n_out) {
            memcpy(logits + (size_t)(first - wanted) * vocab, part,
                   (size_t)n_out * vocab * sizeof *part);
        }
        free(part);
    }
    return logits;
}

/* Rows of logits against the stored ones, by the README's bounds for p300. */
static void check_logits(const char *name, const float *got, const float *want, int64_t n,
                         int64_t vocab, bool twins) {
    const deviation d = deviation_of(got, want, n, vocab), bounds = deviation_bounds(300, twins);
    print_message("  %s: median %.2g, 90 %% %.2g, largest %.2g\n", name, d.median, d.most,
                  d.largest);
    assert_true(deviation_within(&d, &bounds));
}

/* Whether rows pass for the stored ones by the widest bounds that are used here. */
static bool passes(const float *got, const vectors *v, int64_t vocab) {
    const deviation d = deviation_of(got, v->logits, v->n_positions, vocab),
                    bounds = deviation_bounds(300, false);
    return deviation_within(&d, &bounds);
}

/* The stored rows are those of the last positions, without a gap. */
static void check_positions(const vectors *v, int64_t first) {
    assert_int_equal(v->n, 300);
    assert_int_equal(v->n_positions, v->n - first);
    assert_int_equal(v->n_logits, v->n_positions * v->vocab);
    for (int64_t i = 0; i < v->n_positions; i++) assert_int_equal(v->positions[i], first + i);
}

static void check_decoder(const char *name, test_backend backend) {
    test_model m;
    vectors v;
    di_error error;
    int64_t n_greedy;
    open_model(&m, name, backend);
    open_vectors(&v, name, "replay_decoder");
    int64_t vocab = m.config->vocab_size, from = v.n - m.config->sliding_window;
    check_positions(&v, from);
    assert_int_equal(di_context_cut(m.context, 0, from, &error), DI_OK);
    float *logits = feed(&m, 0, v.ids, 0, v.n, from, 512);
    check_logits("decoder side", logits, v.logits, v.n_positions, vocab, backend == TEST_REF);
    /* any chunking, the cut counted from the prompt's end: the same bits */
    for (int32_t chunk = 1; chunk < 200; chunk = chunk * 3 + 1) {
        di_context_reset(m.context, 1);
        assert_int_equal(di_context_cut(m.context, 1, from, &error), DI_OK);
        float *again = feed(&m, 1, v.ids, 0, v.n, from, chunk);
        assert_memory_equal(again, logits, (size_t)(v.n_positions * vocab) * sizeof *again);
        free(again);
    }
    int64_t *greedy = golden_int(v.file, "replay_decoder/greedy_ids", &n_greedy);
    const float *row = logits + (v.n_positions - 1) * vocab;
    assert_int_equal(n_greedy, 8);
    float *owned = NULL;
    for (int64_t i = 0; i < n_greedy; i++) {
        int64_t best = 0;
        for (int64_t t = 1; t < vocab; t++) best = row[t] > row[best] ? t : best;
        assert_int_equal(best, greedy[i]);
        int32_t id = (int32_t)greedy[i];
        free(owned);
        row = owned = test_feed_all(&m, 0, &id, 1);
    }
    free(owned);
    free(greedy);
    free(logits);
    close_vectors(&v);
    test_model_close(&m);
}

static uint8_t *read_pages(test_model *m, int32_t slot) {
    di_error error;
    uint64_t bytes = (uint64_t)m->context->pages_per_slot * m->context->page_bytes;
    uint8_t *pages = malloc(bytes);
    assert_non_null(pages);
    di_ptr from = di_ptr_at(m->context->at.page_pool, (uint64_t)slot * bytes);
    m->backend->download(m->backend->stream, pages, from, bytes);
    assert_int_equal(di_backend_sync(m->backend, &error), DI_OK);
    return pages;
}

static void check_encoder(const char *name, test_backend backend) {
    test_model m;
    vectors v;
    di_error error;
    int64_t n;
    open_model(&m, name, backend);
    open_vectors(&v, name, "replay_encoder");
    int64_t *cut = golden_int(v.file, "replay_encoder/cut", &n);
    int64_t vocab = m.config->vocab_size, from = cut[0] - m.config->sliding_window;
    uint64_t bytes = (uint64_t)m.context->pages_per_slot * m.context->page_bytes;
    /* the prompt up to the cut; then its windows are lost and W tokens are replayed */
    free(feed(&m, 0, v.ids, 0, cut[0], cut[0], 512));
    uint8_t *before = read_pages(&m, 0);
    assert_int_equal(di_context_resume(m.context, 0, v.ids, from, cut[0], &error), DI_OK);
    free(feed(&m, 0, v.ids, from, cut[0], cut[0], 512));
    uint8_t *after = read_pages(&m, 0);
    assert_memory_equal(before, after, bytes); /* closed groups are never rewritten */
    check_positions(&v, cut[0]);
    assert_int_equal(cut[0] % DI_PAGE_TOKENS, 0);
    float *logits = feed(&m, 0, v.ids, cut[0], v.n, cut[0], 512);
    check_logits("encoder side", logits, v.logits, v.n_positions, vocab, backend == TEST_REF);
    /* the same bits, however the replayed rows and the rest are chunked */
    for (int32_t chunk = 3; backend == TEST_CPU && chunk < 200; chunk = chunk * 3 + 1) {
        di_context_reset(m.context, 1);
        free(feed(&m, 1, v.ids, 0, cut[0], cut[0], 512));
        assert_int_equal(di_context_resume(m.context, 1, v.ids, from, cut[0], &error), DI_OK);
        float *again = feed(&m, 1, v.ids, from, v.n, cut[0], chunk);
        assert_memory_equal(again, logits, (size_t)(v.n_positions * vocab) * sizeof *again);
        free(again);
    }
    free(before);
    free(after);
    free(logits);
    free(cut);
    close_vectors(&v);
    test_model_close(&m);
}

/* Neither vector is met by a prompt that simply runs, nor by the cut or the loss one token off: what
 * is reproduced is the replay. */
static void check_others_differ(const char *name) {
    test_model m;
    vectors v;
    di_error error;
    int64_t n;
    open_model(&m, name, TEST_CPU);
    int64_t vocab = m.config->vocab_size, window = m.config->sliding_window;
    open_vectors(&v, name, "replay_decoder");
    float *plain = feed(&m, 0, v.ids, 0, v.n, v.n - window, 512);
    assert_false(passes(plain, &v, vocab));
    assert_int_equal(di_context_cut(m.context, 1, v.n - window - 1, &error), DI_OK);
    float *early = feed(&m, 1, v.ids, 0, v.n, v.n - window, 512);
    assert_false(passes(early, &v, vocab));
    free(plain);
    free(early);
    close_vectors(&v);
    open_vectors(&v, name, "replay_encoder");
    int64_t *cut = golden_int(v.file, "replay_encoder/cut", &n);
    di_context_reset(m.context, 0);
    plain = feed(&m, 0, v.ids, 0, v.n, cut[0], 512);
    assert_false(passes(plain, &v, vocab));
    free(feed(&m, 2, v.ids, 0, cut[0], cut[0], 512));
    assert_int_equal(di_context_resume(m.context, 2, v.ids, cut[0] - window - 1, cut[0], &error),
                     DI_OK);
    early = feed(&m, 2, v.ids, cut[0] - window - 1, v.n, cut[0], 512);
    assert_false(passes(early, &v, vocab));
    free(plain);
    free(early);
    free(cut);
    close_vectors(&v);
    test_model_close(&m);
}

/* The cut leaves the pages as they are without it. */
static void check_same_pages(const char *name, test_backend backend) {
    test_model m;
    vectors v;
    di_error error;
    open_model(&m, name, backend);
    open_vectors(&v, name, "replay_decoder");
    uint64_t bytes = (uint64_t)m.context->pages_per_slot * m.context->page_bytes;
    free(feed(&m, 0, v.ids, 0, v.n, v.n, 100));
    uint8_t *whole = read_pages(&m, 0);
    assert_int_equal(di_context_cut(m.context, 1, v.n - m.config->sliding_window, &error), DI_OK);
    free(feed(&m, 1, v.ids, 0, v.n, v.n, 77));
    uint8_t *cut = read_pages(&m, 1);
    assert_memory_equal(whole, cut, bytes);
    free(whole);
    free(cut);
    close_vectors(&v);
    test_model_close(&m);
}

static void test_twins(void **state) {
    (void)state;
    check_decoder("tiny-a", TEST_REF);
    check_decoder("tiny-b", TEST_REF);
    check_encoder("tiny-a", TEST_REF);
    check_encoder("tiny-b", TEST_REF);
}

static void test_fast(void **state) {
    (void)state;
    check_decoder("tiny-a", TEST_CPU);
    check_decoder("tiny-b", TEST_CPU);
    check_encoder("tiny-a", TEST_CPU);
    check_encoder("tiny-b", TEST_CPU);
}

static void test_others_differ(void **state) {
    (void)state;
    check_others_differ("tiny-a");
    check_others_differ("tiny-b");
}

static void test_pages(void **state) {
    (void)state;
    check_same_pages("tiny-a", TEST_CPU);
    check_same_pages("tiny-b", TEST_REF);
}

/* A cut may be moved as long as no row has come so far, forth and back. */
static void test_moved_cut(void **state) {
    (void)state;
    test_model m;
    di_error error;
    int32_t ids[120];
    for (int32_t i = 0; i < 120; i++) ids[i] = i * 29 % 320;
    open_model(&m, "tiny-b", TEST_CPU);
    assert_int_equal(di_context_cut(m.context, 0, 60, &error), DI_OK);
    float *want = feed(&m, 0, ids, 0, 120, 60, 40);
    const int64_t first_cuts[] = {50, 100};
    for (int32_t slot = 1; slot < 3; slot++) {
        assert_int_equal(di_context_cut(m.context, slot, first_cuts[slot - 1], &error), DI_OK);
        free(feed(&m, slot, ids, 0, 45, 45, 40));
        assert_int_equal(di_context_cut(m.context, slot, 60, &error), DI_OK);
        float *got = feed(&m, slot, ids, 45, 120, 60, 40);
        assert_memory_equal(got, want, 60 * (size_t)m.config->vocab_size * sizeof *got);
        free(got);
    }
    free(want);
    test_model_close(&m);
}

static void test_refusals(void **state) {
    (void)state;
    test_model m;
    di_error error;
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out = 0;
    open_model(&m, "tiny-a", TEST_REF);
    assert_int_equal(di_context_cut(m.context, 0, 4, &error), DI_OK);
    di_row row = {1, 0, 0};
    di_step step = {.rows = &row, .n_rows = 1, .out_rows = &out, .n_out = 1};
    assert_int_equal(di_forward(m.context, &step, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "out_rows[0]: row 0 lies below the cut and has no logits");
    test_feed(&m, 0, ids, 8, NULL, 0);
    assert_int_equal(di_context_cut(m.context, 0, 4, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "a cut at 4 in slot 0, which has 8 tokens already");
    assert_int_equal(di_context_resume(m.context, 0, ids, 5, 4, &error), DI_ERR_USAGE);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),         cmocka_unit_test(test_fast),
        cmocka_unit_test(test_others_differ), cmocka_unit_test(test_pages),
        cmocka_unit_test(test_moved_cut),     cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
