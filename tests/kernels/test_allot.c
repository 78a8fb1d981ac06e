/* The choice of drafts: against a definition that sorts every draft of every block, and its edges.
 * On the twins and on the CPU. */
/* ctest: gpu */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device.h"
#include "support/spec_support.h"

enum { MAX_N = 5, MAX_BLOCK = 4, SLOTS = 8, MAX_ROWS = MAX_N * (MAX_BLOCK + 1) };

typedef struct world {
    int32_t n, block, n_columns, n_drafts;
    di_block blocks[MAX_N];
    int32_t next_token[SLOTS], drafts[MAX_BLOCK * MAX_N];
    float confidence[MAX_BLOCK * MAX_N], temperatures[DI_LAWS * MAX_BLOCK];
} world;

typedef struct result {
    int32_t n_rows[MAX_N];
    di_row rows[MAX_ROWS];
    int32_t which[MAX_ROWS], slot[MAX_ROWS], param_of[MAX_ROWS], extra_at[MAX_ROWS];
    int32_t n_extra[MAX_ROWS];
} result;

/* ---- Running ---- */

static device open_backend(const char *name) {
    device d;
    di_limits limits = {.max_rows = MAX_ROWS,
                        .max_out = MAX_ROWS,
                        .width = 32,
                        .hc = 1,
                        .vocab = 32,
                        .n_heads = 1,
                        .head_dim = 32,
                        .index_dim = 32,
                        .max_entries = 64,
                        .max_k = 32};
    if (!device_open(&d, name, DI_NUMERICS_FLOAT, 1)) skip();
    device_prepare(&d, &limits);
    return d;
}

static result run(device *d, const world *w) {
    int32_t total = w->n + w->n_drafts, cells = w->block * w->n_columns;
    result r = {0};
    int32_t *ints[] = {r.which, r.slot, r.param_of, r.extra_at, r.n_extra};
    di_ptr out[5], n_rows = device_take(d, (uint64_t)w->n * 4);
    di_ptr rows = device_take(d, (uint64_t)total * sizeof(di_row));
    for (int i = 0; i < 5; i++) out[i] = device_take(d, (uint64_t)total * 4);
    bool none = w->n_drafts == 0; /* these are then not read */
    di_allot_args args = {.n_blocks = w->n,
                          .n_drafts = w->n_drafts,
                          .block = w->block,
                          .n_columns = w->n_columns,
                          .blocks = device_put(d, w->blocks, (uint64_t)w->n * sizeof w->blocks[0]),
                          .next_token = device_put(d, w->next_token, sizeof w->next_token),
                          .drafts = none ? DI_NONE : device_put(d, w->drafts, (uint64_t)cells * 4),
                          .confidence = none ? DI_NONE : device_put_f(d, w->confidence, cells),
                          .temperatures = none ? DI_NONE
                                               : device_put(d, w->temperatures,
                                                            (uint64_t)(DI_LAWS * w->block) * 4),
                          .n_rows = n_rows,
                          .rows = rows,
                          .which = out[0],
                          .slot = out[1],
                          .param_of = out[2],
                          .extra_at = out[3],
                          .n_extra = out[4]};
    d->backend->ops->allot(d->backend->stream, &args);
    device_get(d, n_rows, r.n_rows, (uint64_t)w->n * 4);
    device_get(d, rows, r.rows, (uint64_t)total * sizeof(di_row));
    for (int i = 0; i < 5; i++) device_get(d, out[i], ints[i], (uint64_t)total * 4);
    assert_int_equal(device_reset(d), 0);
    return r;
}

/* The rows follow from n_rows. */
static void check_rows(const world *w, const result *r) {
    int32_t t = 0;
    for (int32_t b = 0; b < w->n; b++) {
        int32_t begin = t;
        for (int32_t k = 0; k < r->n_rows[b]; k++, t++) {
            const di_block *block = &w->blocks[b];
            int32_t token = w->next_token[block->slot];
            if (k > 0) token = w->drafts[(k - 1) * w->n_columns + block->column];
            assert_int_equal(r->rows[t].token, k > 0 && token < 0 ? 0 : token);
            assert_int_equal(r->rows[t].slot, block->slot);
            assert_int_equal(r->rows[t].offset, k);
            assert_int_equal(r->which[t], t);
            assert_int_equal(r->slot[t], block->slot);
            assert_int_equal(r->param_of[t], b);
            assert_int_equal(r->n_extra[t], k);
            assert_int_equal(r->extra_at[t], begin + 1);
        }
    }
    assert_int_equal(t, w->n + w->n_drafts);
}

/* ---- A second definition ---- */

typedef struct candidate {
    double survival;
    int32_t b, k;
} candidate;

static int by_survival(const void *x, const void *y) {
    const candidate *a = x, *b = y;
    if (a->survival != b->survival) return a->survival > b->survival ? -1 : 1;
    return a->k != b->k ? a->k - b->k : a->b - b->b;
}

static void expected(const world *w, int32_t *n_rows) {
    candidate all[MAX_N * MAX_BLOCK];
    int32_t n = 0;
    for (int32_t b = 0; b < w->n; b++) {
        double survival = 1;
        n_rows[b] = 1;
        for (int32_t k = 0; k < w->blocks[b].most; k++) {
            int32_t cell = k * w->n_columns + w->blocks[b].column;
            double x = (double)w->confidence[cell];
            x /= (double)w->temperatures[w->blocks[b].law * w->block + k];
            bool unknown = k > 0 && w->drafts[cell - w->n_columns] < 0;
            survival *= isnan(x) || unknown ? 0 : 1 / (1 + exp(-x));
            all[n++] = (candidate){survival, b, k};
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_survival);
    for (int32_t i = 0; i < w->n_drafts; i++) n_rows[all[i].b]++;
}

static world random_world(uint64_t seed) {
    spec_random random = {.seed = seed};
    world w = {.n = 1 + spec_below(&random, MAX_N), .block = 1 + spec_below(&random, MAX_BLOCK)};
    int32_t most = 0, way = spec_below(&random, 8);
    w.n_columns = w.n;
    for (int32_t s = 0; s < SLOTS; s++) w.next_token[s] = 100 + s;
    for (int32_t b = 0; b < w.n; b++) {
        w.blocks[b] = (di_block){.slot = (b * 3 + 2) % SLOTS,
                                 .most = spec_below(&random, w.block + 1),
                                 .column = w.n - 1 - b,
                                 .law = spec_below(&random, DI_LAWS)};
        most += w.blocks[b].most;
    }
    for (int32_t i = 0; i < w.block * w.n_columns; i++) {
        w.drafts[i] = spec_below(&random, 90) - (way == 1 ? 30 : 0);
        w.confidence[i] = (float)(3 * spec_normal(&random));
        if (way == 2) w.confidence[i] = (float)spec_below(&random, 2); /* ties */
        if (way == 3 && spec_below(&random, 4) == 0) w.confidence[i] = NAN;
        if (way == 4) w.confidence[i] = spec_below(&random, 2) ? INFINITY : -INFINITY;
    }
    for (int32_t i = 0; i < DI_LAWS * w.block; i++)
        w.temperatures[i] = way < 4 ? 1 : (float)exp2(4 * spec_uniform(&random) - 2);
    w.n_drafts = spec_below(&random, most + 1);
    return w;
}

static device d; /* of the property that runs */

static void check_choice(uint64_t seed) {
    world w = random_world(seed);
    int32_t want[MAX_N];
    result r = run(&d, &w);
    expected(&w, want);
    for (int32_t b = 0; b < w.n; b++) SPEC_REQUIRE(r.n_rows[b] == want[b]);
    check_rows(&w, &r);
}

/* Whether draft k of a block is verified does not hang on the confidences behind it. */
static void check_no_look_ahead(uint64_t seed) {
    world w = random_world(seed);
    spec_random random = {.seed = seed + 1000000};
    result before = run(&d, &w);
    int32_t b = spec_below(&random, w.n), k = spec_below(&random, w.block);
    for (int32_t j = k + 1; j < w.block; j++)
        w.confidence[j * w.n_columns + w.blocks[b].column] = (float)(9 * spec_normal(&random));
    result after = run(&d, &w);
    SPEC_REQUIRE((before.n_rows[b] > k + 1) == (after.n_rows[b] > k + 1));
}

static void test_properties(void **state) {
    d = open_backend(*state);
    spec_each_seed(1500, check_choice);
    spec_each_seed(500, check_no_look_ahead);
    device_close(&d);
}

/* ---- Known answers ---- */

static const world two = {.n = 2,
                          .block = 3,
                          .n_columns = 2,
                          .blocks = {{.slot = 4, .most = 3, .column = 1, .law = 1},
                                     {.slot = 0, .most = 3, .column = 0, .law = 1}},
                          .next_token = {70, 71, 72, 73, 74},
                          .drafts = {10, 20, 11, 21, 12, 22},
                          .confidence = {0, 1, 0, 1, 0, 1},
                          .temperatures = {9, 9, 9, 1, 1, 1, 9, 9, 9}};

static void assert_lengths(world w, int32_t n_drafts, int32_t first, int32_t second) {
    w.n_drafts = n_drafts;
    result r = run(&d, &w);
    check_rows(&w, &r);
    assert_int_equal(r.n_rows[0], 1 + first);
    assert_int_equal(r.n_rows[1], 1 + second);
}

static void test_known(void **state) {
    d = open_backend(*state);
    world w = two; /* survivals 0.73, 0.53, 0.39 and 0.5, 0.25, 0.125 */
    const int32_t lengths[7][2] = {{0, 0}, {1, 0}, {2, 0}, {2, 1}, {3, 1}, {3, 2}, {3, 3}};
    for (int32_t k = 0; k <= 6; k++) assert_lengths(w, k, lengths[k][0], lengths[k][1]);

    w.confidence[3] = 50; /* a later draft that is sure: after the one before it, no sooner */
    w.confidence[1] = -5;
    assert_lengths(w, 3, 0, 3);
    assert_lengths(w, 4, 1, 3);

    w = two;
    w.blocks[0].most = 1;
    assert_lengths(w, 3, 1, 2);
    w.blocks[1].most = 0;
    w.blocks[1].column = -1; /* unused */
    assert_lengths(w, 1, 1, 0);

    w = two; /* equal survivals: position by position, the lower block first */
    for (int i = 0; i < 6; i++) w.confidence[i] = INFINITY;
    for (int32_t k = 0; k <= 6; k++) assert_lengths(w, k, (k + 1) / 2, k / 2);

    w = two; /* NaN is 0, also for all behind it; drafts are given all the same when asked for */
    w.confidence[1] = NAN;
    assert_lengths(w, 3, 0, 3);
    assert_lengths(w, 6, 3, 3);

    w = two; /* draft 0 of block 0 is none: what stands behind it is not known */
    w.drafts[1] = -2;
    assert_lengths(w, 4, 1, 3);
    assert_lengths(w, 6, 3, 3);

    w = two; /* the law's temperatures */
    w.blocks[0].law = 2;
    assert_lengths(w, 2, 1, 1); /* 0.73^(1/9): 0.528, 0.279 */
    device_close(&d);
}

int main(void) {
    static char ref[] = "ref", cpu[] = "cpu", cuda[] = "cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_properties, ref),
        cmocka_unit_test_prestate(test_known, ref),
        cmocka_unit_test_prestate(test_properties, cpu),
        cmocka_unit_test_prestate(test_known, cpu),
        {"test_properties_cuda", test_properties, NULL, NULL, cuda},
        {"test_known_cuda", test_known, NULL, NULL, cuda},
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
