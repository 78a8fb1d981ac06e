/* DSpark at the model's interface against the oracle's vectors: tokens, logits and confidences of
 * drafts before the first greedy steps of every prompt; and that drafting leaves no trace.
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

enum { DRAFTS = 6, SLOTS = 4 };

static void open_model(test_model *m, const char *name, test_backend backend, bool drafts) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/golden/%s/model", name);
    di_context_options context = {.n_slots = SLOTS,
                                  .max_context = 1024,
                                  .max_rows = 768,
                                  .max_out = 768,
                                  .drafts = drafts};
    test_model_open(m, path, &(test_model_options){backend, DI_NUMERICS_FLOAT, 2, context});
}

static di_safetensors *open_golden(const char *name) {
    char path[1024];
    di_error error;
    di_safetensors *file;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, name);
    assert_int_equal(di_safetensors_open(path, &file, &error), DI_OK);
    return file;
}

static int32_t *read_ids(const di_safetensors *file, const char *name, int64_t *n) {
    int64_t *wide = golden_int(file, name, n);
    int32_t *ids = malloc((size_t)*n * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < *n; i++) ids[i] = (int32_t)wide[i];
    free(wide);
    return ids;
}

typedef struct draft {
    int32_t tokens[SLOTS * 8];
    float confidence[SLOTS * 8];
    float *logits; /* [block][n][V] */
} draft;

static void make_drafts(test_model *m, const int32_t *slots, const int32_t *anchors, int32_t n,
                        draft *out) {
    di_error error;
    size_t count = (size_t)m->config->dspark_block_size * (size_t)n * (size_t)m->config->vocab_size;
    out->logits = malloc(count * sizeof *out->logits);
    assert_non_null(out->logits);
    di_context_keep_draft_logits(m->context, out->logits);
    di_draft_step step = {.slots = slots, .n = n, .anchors = anchors};
    if (di_draft(m->context, &step, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_context_read_drafts(m->context, out->tokens, out->confidence, &error),
                     DI_OK);
    di_context_keep_draft_logits(m->context, NULL);
}

static double margin(const float *row, int64_t n) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (row[i] > first) {
            second = first;
            first = row[i];
        } else if (row[i] > second) {
            second = row[i];
        }
    }
    return (double)first - (double)second;
}

/* Rows of all drafts of a prompt that can be compared. */
typedef struct compared {
    float *logits, *want_logits;         /* [n][V] */
    float *confidence, *want_confidence; /* [n] */
    int64_t n;
} compared;

static compared compared_room(int64_t rows, int64_t vocab) {
    size_t n = (size_t)rows, row = (size_t)vocab * sizeof(float);
    compared c = {malloc(n * row), malloc(n * row), malloc(n * 4), malloc(n * 4), 0};
    assert_true(c.logits && c.want_logits && c.confidence && c.want_confidence);
    return c;
}

static void compared_free(compared *c) {
    free(c->logits);
    free(c->want_logits);
    free(c->confidence);
    free(c->want_confidence);
}

/* One draft beside the stored one. The fast path may part where the two best logits of a step are
 * close, and what follows in the block depends on it: that is not compared. */
static void take_draft(const test_model *m, const draft *got, const int64_t *ids,
                       const float *logits, const float *confidence, bool twins, compared *c) {
    int64_t vocab = m->config->vocab_size;
    size_t row = (size_t)vocab * sizeof(float);
    for (int32_t k = 0; k < m->config->dspark_block_size; k++) {
        memcpy(c->logits + c->n * vocab, got->logits + k * vocab, row);
        memcpy(c->want_logits + c->n * vocab, logits + k * vocab, row);
        c->confidence[c->n] = got->confidence[k];
        c->want_confidence[c->n++] = confidence[k];
        if (got->tokens[k] == ids[k + 1]) continue;
        if (twins || margin(logits + k * vocab, vocab) >= 0.1) {
            fail_msg("token %d of the draft: %d, want %ld", k, got->tokens[k], (long)ids[k + 1]);
        }
        break;
    }
}

static void judge(const compared *c, const char *prompt, int64_t n, int64_t vocab, bool twins) {
    deviation bounds = deviation_bounds(n, twins);
    deviation logits = deviation_of(c->logits, c->want_logits, c->n, vocab);
    deviation confidence = deviation_of(c->confidence, c->want_confidence, c->n, 1);
    print_message("  %-5s %ld drafted tokens: logits %.2g, %.2g, %.2g; confidence %.2g, %.2g, "
                  "%.2g (median, 90 %%, largest)\n",
                  prompt, (long)c->n, logits.median, logits.most, logits.largest, confidence.median,
                  confidence.most, confidence.largest);
    assert_true(deviation_within(&logits, &bounds));
    assert_true(deviation_within(&confidence, &bounds));
}

static void check_prompt(test_model *m, const di_safetensors *golden, const char *prompt,
                         bool twins) {
    char key[64];
    int64_t n, n_ids, n_logits, n_confidence;
    snprintf(key, sizeof key, "%s/ids", prompt);
    int32_t *ids = read_ids(golden, key, &n);
    snprintf(key, sizeof key, "%s/draft_ids", prompt);
    int64_t *draft_ids = golden_int(golden, key, &n_ids);
    snprintf(key, sizeof key, "%s/draft_logits", prompt);
    const float *logits = golden_f32(golden, key, &n_logits);
    snprintf(key, sizeof key, "%s/draft_confidence", prompt);
    const float *confidence = golden_f32(golden, key, &n_confidence);
    int64_t block = m->config->dspark_block_size, vocab = m->config->vocab_size;
    assert_int_equal(n_ids, DRAFTS * (block + 1));
    assert_int_equal(n_logits, DRAFTS * block * vocab);
    assert_int_equal(n_confidence, DRAFTS * block);
    compared c = compared_room(DRAFTS * block, vocab);
    const int32_t slot = 0;
    di_context_reset(m->context, 0);
    test_feed(m, 0, ids, (int32_t)n, NULL, 0);
    for (int64_t i = 0; i < DRAFTS; i++) {
        int32_t anchor = (int32_t)draft_ids[i * (block + 1)];
        draft d;
        make_drafts(m, &slot, &anchor, 1, &d);
        take_draft(m, &d, draft_ids + i * (block + 1), logits + i * block * vocab,
                   confidence + i * block, twins, &c);
        free(d.logits);
        test_feed(m, 0, &anchor, 1, NULL, 0);
    }
    if (twins) assert_int_equal(c.n, DRAFTS * block);
    judge(&c, prompt, n, vocab, twins);
    compared_free(&c);
    free(draft_ids);
    free(ids);
}

static void check_vectors(const char *name, test_backend backend) {
    static const char *const prompts[] = {"p1", "p2", "p7", "p33", "p130", "p300", "p750"};
    test_model m;
    open_model(&m, name, backend, true);
    di_safetensors *golden = open_golden(name);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        check_prompt(&m, golden, prompts[i], backend == TEST_REF);
    }
    di_safetensors_close(golden);
    test_model_close(&m);
}

static void test_twins(void **state) {
    (void)state;
    check_vectors("tiny-a", TEST_REF);
    check_vectors("tiny-b", TEST_REF);
}

static void test_fast(void **state) {
    (void)state;
    check_vectors("tiny-a", TEST_CPU);
    check_vectors("tiny-b", TEST_CPU);
}

/* The bounds themselves, at their edges. */
static void test_bounds(void **state) {
    (void)state;
    float want[20] = {0}, got[20] = {0};
    const deviation twins = deviation_bounds(750, true), close = deviation_bounds(33, false),
                    far = deviation_bounds(300, false), farthest = deviation_bounds(750, false);
    deviation d = deviation_of(got, want, 10, 2);
    assert_true(deviation_within(&d, &twins));
    got[7] = 1.1e-5f;
    d = deviation_of(got, want, 10, 2);
    assert_false(deviation_within(&d, &twins));
    assert_true(deviation_within(&d, &close));
    got[7] = 2; /* one row of ten */
    d = deviation_of(got, want, 10, 2);
    assert_false(deviation_within(&d, &close));
    assert_true(deviation_within(&d, &far));
    got[9] = 0.06f; /* two of ten */
    d = deviation_of(got, want, 10, 2);
    assert_false(deviation_within(&d, &far));
    assert_true(deviation_within(&d, &farthest));
    for (int i = 0; i < 20; i++) got[i] = 0.11f;
    d = deviation_of(got, want, 10, 2);
    assert_false(deviation_within(&d, &farthest));
    for (int i = 0; i < 20; i++) got[i] = i == 7 ? NAN : 0;
    d = deviation_of(got, want, 10, 2);
    assert_false(deviation_within(&d, &farthest));
    assert_false(deviation_within(&d, &twins));
}

/* Behind another token, or without the last one of the prompt, a draft is not the stored one. */
static void test_others_differ(void **state) {
    (void)state;
    test_model m;
    int64_t n, n_ids, n_logits;
    open_model(&m, "tiny-a", TEST_REF, true);
    di_safetensors *golden = open_golden("tiny-a");
    int32_t *ids = read_ids(golden, "p33/ids", &n);
    int64_t *draft_ids = golden_int(golden, "p33/draft_ids", &n_ids);
    const float *want = golden_f32(golden, "p33/draft_logits", &n_logits);
    const deviation close = deviation_bounds(n, false);
    const int32_t block = m.config->dspark_block_size, slots[3] = {0, 1, 2};
    const int32_t right = (int32_t)draft_ids[0], anchors[3] = {right, right, (right + 1) % 300};
    for (int32_t slot = 0; slot < 3; slot++) {
        draft d;
        test_feed(&m, slot, ids, (int32_t)n - (slot == 1), NULL, 0);
        make_drafts(&m, &slots[slot], &anchors[slot], 1, &d);
        deviation off = deviation_of(d.logits, want, block, m.config->vocab_size);
        assert_int_equal(deviation_within(&off, &close), slot == 0);
        free(d.logits);
    }
    free(draft_ids);
    free(ids);
    di_safetensors_close(golden);
    test_model_close(&m);
}

static void equal_drafts(const test_model *m, const draft *a, const draft *b, int32_t at,
                         int32_t n) {
    int32_t block = m->config->dspark_block_size;
    size_t vocab = (size_t)m->config->vocab_size;
    assert_memory_equal(a->tokens, b->tokens + at * block, (size_t)block * 4);
    assert_memory_equal(a->confidence, b->confidence + at * block, (size_t)block * 4);
    for (int32_t k = 0; k < block; k++) {
        assert_memory_equal(a->logits + (size_t)k * vocab, b->logits + (size_t)(k * n + at) * vocab,
                            vocab * sizeof(float));
    }
}

/* A draft depends on its own sequence alone, however that was fed, alone or among others. */
static void check_company(const char *name, test_backend backend) {
    test_model m;
    int64_t n;
    open_model(&m, name, backend, true);
    di_safetensors *golden = open_golden(name);
    int32_t *ids = read_ids(golden, "p130/ids", &n);
    const int32_t slots[SLOTS] = {2, 0, 3, 1}, anchors[SLOTS] = {5, 6, 7, 8};
    test_feed(&m, 0, ids, 100, NULL, 0);
    test_feed(&m, 1, ids + 7, 23, NULL, 0);
    for (int32_t i = 0; i < 60; i += 20) test_feed(&m, 2, ids + i, 20, NULL, 0);
    test_feed(&m, 3, ids, 1, NULL, 0);
    draft together, alone;
    make_drafts(&m, slots, anchors, SLOTS, &together);
    for (int32_t i = 0; i < SLOTS; i++) {
        make_drafts(&m, &slots[i], &anchors[i], 1, &alone);
        equal_drafts(&m, &alone, &together, i, SLOTS);
        free(alone.logits);
    }
    free(together.logits);
    free(ids);
    di_safetensors_close(golden);
    test_model_close(&m);
}

static void test_row_invariance(void **state) {
    (void)state;
    check_company("tiny-a", TEST_CPU);
    check_company("tiny-b", TEST_CPU);
    check_company("tiny-b", TEST_LATE);
    check_company("tiny-b", TEST_QUEUE);
}

/* Drafting, then wrong rows that are rewound: the next logits and drafts as if nothing had been. */
static void test_no_trace(void **state) {
    (void)state;
    static const test_backend backends[] = {TEST_REF, TEST_CPU};
    for (int b = 0; b < 2; b++) {
        test_model plain, m;
        di_error error;
        int64_t n;
        open_model(&plain, "tiny-a", backends[b], false);
        open_model(&m, "tiny-a", backends[b], true);
        di_safetensors *golden = open_golden("tiny-a");
        int32_t *ids = read_ids(golden, "p130/ids", &n);
        const int32_t slot = 0, anchor = ids[90];
        float *want = test_feed_all(&plain, 0, ids, (int32_t)n);
        test_feed(&m, 0, ids, 90, NULL, 0);
        draft first, again;
        make_drafts(&m, &slot, &anchor, 1, &first);
        for (int32_t wrong = 1; wrong <= 6; wrong++) {
            int32_t tokens[6] = {anchor, 9, 8, 7, 6, 5};
            test_feed(&m, 0, tokens, wrong, NULL, 0);
            assert_int_equal(di_context_rewind(m.context, 0, wrong, &error), DI_OK);
            make_drafts(&m, &slot, &anchor, 1, &again);
            equal_drafts(&m, &again, &first, 0, 1);
            free(again.logits);
        }
        float *got = test_feed_all(&m, 0, ids + 90, (int32_t)n - 90);
        size_t vocab = (size_t)m.config->vocab_size;
        assert_memory_equal(got, want + 90 * vocab, (size_t)(n - 90) * vocab * sizeof *got);
        free(first.logits);
        free(got);
        free(want);
        free(ids);
        di_safetensors_close(golden);
        test_model_close(&m);
        test_model_close(&plain);
    }
}

static void test_refusals(void **state) {
    (void)state;
    test_model m;
    di_error error;
    const int32_t slots[2] = {1, 1}, anchor = 1000;
    open_model(&m, "tiny-a", TEST_REF, false);
    di_draft_step step = {.slots = slots, .n = 1};
    assert_int_equal(di_draft(m.context, &step, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "this context was made without drafts");
    test_model_close(&m);
    open_model(&m, "tiny-a", TEST_REF, true);
    step.n = 2;
    assert_int_equal(di_draft(m.context, &step, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "slots[1] = 1: not a slot, or twice");
    step = (di_draft_step){.slots = slots, .n = 1, .anchors = &anchor};
    assert_int_equal(di_draft(m.context, &step, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "anchors[0]: token id 1000, the vocabulary has 384");
    step.n = 200;
    assert_int_equal(di_draft(m.context, &step, &error), DI_ERR_LIMIT);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),         cmocka_unit_test(test_others_differ),
        cmocka_unit_test(test_twins),          cmocka_unit_test(test_fast),
        cmocka_unit_test(test_row_invariance), cmocka_unit_test(test_no_trace),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
