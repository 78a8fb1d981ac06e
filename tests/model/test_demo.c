/* The demo model's golden continuations (models/demo/golden.json), `--numerics float`: token for
 * token with the twins; the fast path and a GPU may part only where the stored margin between the
 * two best logits is under 0.05, and then go on from the stored token. Under `release` a GPU is
 * compared with the CPU's fast path, and that with the twins.
 */
/* ctest: slow gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "support/device.h"
#include "support/golden.h"

static int32_t *id_list(const di_json *list, int32_t *n) {
    assert_non_null(list);
    *n = (int32_t)list->length;
    int32_t *ids = malloc((list->length + 1) * sizeof *ids), *at = ids;
    assert_non_null(ids);
    for (const di_json *item = list->first; item; item = item->next) {
        int64_t id;
        assert_true(di_json_int64(item, &id));
        *at++ = (int32_t)id;
    }
    return ids;
}

static double second_margin(const di_json *top) {
    const di_json *logits = di_json_get(top, "logits");
    double first, second;
    assert_true(di_json_double(logits->first, &first));
    assert_true(di_json_double(logits->first->next, &second));
    return first - second;
}

/* Largest distance from the logits of the stored candidates. They were computed in float32 and
 * stored with 5 digits: a cache value that tips the other way moves them, so this is reported and
 * bounded loosely. */
static double top5_distance(const float *logits, const di_json *top) {
    double worst = 0;
    const di_json *id = di_json_get(top, "ids")->first;
    for (const di_json *l = di_json_get(top, "logits")->first; l; l = l->next, id = id->next) {
        int64_t at;
        double want = 0;
        assert_true(di_json_int64(id, &at) && di_json_double(l, &want));
        worst = fmax(worst, fabs(logits[at] - want));
    }
    return worst;
}

static int32_t best_of(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

static void check_case(test_model *m, const di_json *item, bool exact) {
    int32_t n_prompt, n_greedy, parted = 0;
    int32_t *prompt = id_list(di_json_get(item, "prompt_ids"), &n_prompt);
    int32_t *greedy = id_list(di_json_get(item, "greedy_ids"), &n_greedy);
    const di_json *top = di_json_get(item, "top5")->first;
    int32_t last = n_prompt - 1;
    double distance = 0;
    di_context_reset(m->context, 0);
    float *logits = test_feed(m, 0, prompt, n_prompt, &last, 1);
    for (int32_t i = 0; i < n_greedy; i++, top = top->next) {
        assert_non_null(top);
        distance = fmax(distance, top5_distance(logits, top));
        int32_t best = best_of(logits, m->config->vocab_size);
        if (best != greedy[i]) {
            parted++;
            if (exact || second_margin(top) >= 0.05) {
                fail_msg("%s, token %d: %d, want %d (margin %.4f)", di_json_get(item, "name")->text,
                         i, best, greedy[i], second_margin(top));
            }
        }
        free(logits);
        logits = test_feed_all(m, 0, &greedy[i], 1);
    }
    print_message("  %s: %d tokens, parted at %d, stored logits within %.2g\n",
                  di_json_get(item, "name")->text, n_greedy, parted, distance);
    assert_true(distance < (exact ? 1e-3 : 1.0));
    free(logits);
    free(prompt);
    free(greedy);
}

typedef struct golden {
    char *text;
    di_arena arena;
    const di_json *cases;
} golden;

static void open_golden(golden *g) {
    uint64_t size;
    di_error error;
    const di_json *root;
    *g = (golden){.arena = DI_ARENA_EMPTY};
    assert_int_equal(di_file_read(DI_SOURCE_DIR "/models/demo/golden.json", 1 << 22, &g->text,
                                  &size, &error),
                     DI_OK);
    assert_int_equal(di_json_parse(g->text, size, "golden.json", &g->arena, &root, &error), DI_OK);
    g->cases = di_json_get(root, "cases");
    assert_int_equal(g->cases->length, 3);
}

static void close_golden(golden *g) {
    di_arena_free(&g->arena);
    free(g->text);
}

static void open_demo(test_model *m, test_backend backend, di_numerics numerics) {
    di_context_options context = {.n_slots = 1,
                                  .max_context = 2048,
                                  .max_rows = 1536,
                                  .max_out = 32};
    test_model_open(m, "models/demo", &(test_model_options){backend, numerics, 2, context});
}

static void check(test_backend backend) {
    golden g;
    test_model m;
    open_golden(&g);
    open_demo(&m, backend, DI_NUMERICS_FLOAT);
    for (const di_json *item = g.cases->first; item; item = item->next) {
        check_case(&m, item, backend == TEST_REF);
    }
    test_model_close(&m);
    close_golden(&g);
}

/* ---- `release` ---- */

/* Both compute the same roundings of sums that differ in their last bits, so that now and then a
 * value lies on the other side of a rounding, in bf16, in what the caches store or in a selection,
 * and moves what follows. How much that is was measured on two that are known to be right, the
 * CPU's fast path and the twins: over these 192 steps the margin between the two best logits moves
 * by 0.20 in the median and by 0.73 in nine of ten; where it is below 1, by 0.07 and by 0.37. They
 * part at 6 steps, of margins up to 0.26. Twice that is what is allowed, at one step in ten. */
static const double release_margin = 0.5;
enum { RELEASE_PARTED = 10 };

static double margin_of(const float *logits, int32_t n, int32_t best) {
    double second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (i != best) second = fmax(second, (double)logits[i]);
    }
    return (double)logits[best] - second;
}

/* Both models read the prompt and then the tokens that the first one finds most likely. */
static void compare_case(test_model m[2], const di_json *item, int32_t *n_steps,
                         int32_t *n_parted) {
    int32_t n_prompt, n_greedy, parted = 0, vocab = m[0].config->vocab_size;
    int32_t *prompt = id_list(di_json_get(item, "prompt_ids"), &n_prompt);
    int32_t *greedy = id_list(di_json_get(item, "greedy_ids"), &n_greedy); /* only how many */
    int32_t last = n_prompt - 1;
    float *logits[2];
    double widest = 0;
    for (int k = 0; k < 2; k++) {
        di_context_reset(m[k].context, 0);
        logits[k] = test_feed(&m[k], 0, prompt, n_prompt, &last, 1);
    }
    for (int32_t i = 0; i < n_greedy; i++) {
        int32_t best = best_of(logits[0], vocab), other = best_of(logits[1], vocab);
        double gap = margin_of(logits[0], vocab, best);
        if (best != other) {
            parted++;
            widest = fmax(widest, gap);
            if (gap >= release_margin) {
                fail_msg("%s, token %d: %d, want %d (margin %.4f)", di_json_get(item, "name")->text,
                         i, other, best, gap);
            }
        }
        for (int k = 0; k < 2; k++) {
            free(logits[k]);
            logits[k] = test_feed_all(&m[k], 0, &best, 1);
        }
    }
    print_message("  %s: %d tokens, parted at %d, margins up to %.3f\n",
                  di_json_get(item, "name")->text, n_greedy, parted, widest);
    *n_steps += n_greedy;
    *n_parted += parted;
    for (int k = 0; k < 2; k++) free(logits[k]);
    free(prompt);
    free(greedy);
}

static void compare(test_backend one, test_backend other) {
    golden g;
    test_model m[2];
    int32_t n_steps = 0, n_parted = 0;
    open_golden(&g);
    open_demo(&m[0], one, DI_NUMERICS_RELEASE);
    open_demo(&m[1], other, DI_NUMERICS_RELEASE);
    for (const di_json *item = g.cases->first; item; item = item->next) {
        compare_case(m, item, &n_steps, &n_parted);
    }
    assert_true(n_steps > 100 && n_parted * RELEASE_PARTED <= n_steps);
    test_model_close(&m[0]);
    test_model_close(&m[1]);
    close_golden(&g);
}

static void test_twins(void **state) {
    (void)state;
    check(TEST_REF);
}

static void test_fast(void **state) {
    (void)state;
    check(TEST_CPU);
}

static void test_release(void **state) {
    (void)state;
    compare(TEST_CPU, TEST_REF);
}

static void test_cuda(void **state) {
    (void)state;
    test_need_cuda();
    check(TEST_CUDA);
}

static void test_cuda_release(void **state) {
    (void)state;
    test_need_cuda();
    compare(TEST_CPU, TEST_CUDA);
}

/* Activations of two types: they cross as float32. */
static void test_split_cuda_release(void **state) {
    (void)state;
    test_need_cuda();
    compare(TEST_CPU, TEST_SPLIT_CUDA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_release),      cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_cuda_release), cmocka_unit_test(test_split_cuda_release),
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
