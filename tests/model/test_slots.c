/* Shared pages and snapshots: the same bits whichever pages a sequence lies in, and after its state
 * was saved, the slot used for something else, and brought back elsewhere.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "support/golden.h"

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

enum { TOKENS = 200, PAGES = 20 };

static void open_model(test_model *m, const char *directory, test_backend backend) {
    di_context_options context = {.n_slots = 3,
                                  .max_context = 512,
                                  .max_rows = 256,
                                  .max_out = 256,
                                  .replay = true,
                                  .drafts = true,
                                  .n_pages = PAGES};
    test_model_open(m, directory, &(test_model_options){backend, DI_NUMERICS_FLOAT, 1, context});
}

static void make_ids(const test_model *m, int32_t *ids, int32_t n, uint64_t seed) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t words[4];
        di_philox(seed, (uint64_t)i, 0, words);
        ids[i] = (int32_t)(words[0] % (uint32_t)m->config->vocab_size);
    }
}

static void set_pages(test_model *m, int32_t slot, const int32_t *pages, int32_t n) {
    di_error error;
    if (di_context_set_pages(m->context, slot, 0, pages, n, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
}

static void same(const test_model *m, const float *a, const float *b, int32_t n) {
    assert_memory_equal(a, b, (size_t)n * (size_t)m->config->vocab_size * sizeof *a);
}

static void check(const char *directory, test_backend backend) {
    static const int32_t scattered[4] = {17, 3, 11, 8}, other[4] = {0, 5, 1, 2};
    static const int32_t back[4] = {13, 7, 14, 9};
    test_model m;
    int32_t ids[TOKENS], noise[TOKENS];
    di_error error;
    open_model(&m, directory, backend);
    make_ids(&m, ids, TOKENS, 1);
    make_ids(&m, noise, TOKENS, 2);
    set_pages(&m, 0, other, 4);
    float *want = test_feed_all(&m, 0, ids, TOKENS);
    size_t vocab = (size_t)m.config->vocab_size;
    for (int32_t cut = 1; cut < TOKENS; cut += 37) {
        di_context_reset(m.context, 1);
        set_pages(&m, 1, scattered, 4);
        float *head = test_feed_all(&m, 1, ids, cut);
        same(&m, head, want, cut);
        void *host = malloc(di_context_snapshot_bytes(m.context));
        assert_non_null(host);
        di_context_save(m.context, 1, host);
        assert_int_equal(di_context_wait(m.context, &error), DI_OK);
        /* the slot and its unfinished page go to another sequence; whole pages stay */
        di_context_reset(m.context, 1);
        di_context_reset(m.context, 0);
        set_pages(&m, 1, (const int32_t[]){cut < 64 ? 17 : cut < 128 ? 3 : 11, 18, 19, 16}, 4);
        test_feed(&m, 1, noise, 150, NULL, 0);
        /* back in another slot, its unfinished page in another place */
        int32_t whole = cut / 64, pages[4];
        for (int32_t i = 0; i < 4; i++) pages[i] = i < whole ? scattered[i] : back[i];
        set_pages(&m, 2, pages, 4);
        di_context_restore(m.context, 2, host);
        free(host);
        assert_int_equal(di_context_length(m.context, 2), cut);
        float *tail = test_feed_all(&m, 2, ids + cut, TOKENS - cut);
        same(&m, tail, want + (size_t)cut * vocab, TOKENS - cut);
        free(head);
        free(tail);
    }
    free(want);
    test_model_close(&m);
}

static void test_snapshots(void **state) {
    (void)state;
    check(TINY_A, TEST_CPU);
    check(TINY_B, TEST_CPU);
    check(TINY_A, TEST_REF);
    check(TINY_B, TEST_LATE);
    check(TINY_A, TEST_QUEUE);
}

/* Two sequences share their whole pages; the unfinished one is copied. */
static void test_fork(void **state) {
    (void)state;
    static const int32_t first[4] = {4, 6, 9, 10}, second[4] = {4, 6, 12, 13};
    test_model m;
    int32_t ids[TOKENS];
    di_error error;
    open_model(&m, TINY_A, TEST_CPU);
    make_ids(&m, ids, TOKENS, 1);
    set_pages(&m, 0, first, 4);
    test_feed(&m, 0, ids, 150, NULL, 0);
    void *host = malloc(di_context_snapshot_bytes(m.context));
    assert_non_null(host);
    di_context_save(m.context, 0, host);
    assert_int_equal(di_context_wait(m.context, &error), DI_OK);
    set_pages(&m, 1, second, 4);
    di_context_copy_page(m.context, 12, 9);
    di_context_restore(m.context, 1, host);
    float *a = test_feed_all(&m, 0, ids + 150, 40), *b = test_feed_all(&m, 1, ids + 150, 40);
    same(&m, a, b, 40);
    free(a);
    free(b);
    free(host);
    test_model_close(&m);
}

static void test_refusals(void **state) {
    (void)state;
    static const int32_t pages[2] = {3, 20};
    test_model m;
    di_error error;
    open_model(&m, TINY_A, TEST_REF);
    assert_int_equal(di_context_set_pages(m.context, 0, 0, pages, 2, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "page 1 of slot 0: number 20, the pool has 20");
    assert_int_equal(di_context_set_pages(m.context, 0, 7, pages, 2, &error), DI_ERR_USAGE);
    set_pages(&m, 0, pages, 1);
    di_row rows[65];
    for (int32_t i = 0; i < 65; i++) rows[i] = (di_row){1, 0, i};
    di_step step = {.rows = rows, .n_rows = 65};
    assert_int_equal(di_forward(m.context, &step, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "row 64: no page is set for position 64 of slot 0");
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
