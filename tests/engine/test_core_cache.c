/* What is found and how much runs again: hits, the three modes of replay, window snapshots, forks,
 * tenants. That the answers stay the same is test_core_property's business, and here only of what
 * its schedules cannot show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "support/core_run.h"

static test_model model; /* tiny-a: W 32, 8 layers, 5 below the cut */
static run runs[6];
static int32_t text[RUN_MAX_PROMPT];

enum { W = 32, EXACT = 8 * (W - 1), STABLE = 5 * (W - 1) };

static int open_model(void **state) {
    (void)state;
    run_open_model(&model, "tests/data/golden/tiny-a/model", TEST_CPU, DI_NUMERICS_FLOAT, 1);
    assert_int_equal(model.config->sliding_window, W);
    assert_int_equal(model.config->num_hidden_layers, 8);
    assert_int_equal(di_model_cut_layer(model.config), 5);
    run_fill_text(text);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    test_model_close(&model);
    return 0;
}

static di_core *core_of(di_replay replay, uint64_t window_bytes) {
    di_core_options options = run_options();
    options.replay = replay;
    options.window_cache_bytes = window_bytes;
    return run_core(&model, &options);
}

/* Runs text[0 .. n) to its end; tokens of its prompt that were not computed again. */
static int64_t cached(di_core *core, run *r, int64_t n, int64_t n_answer) {
    run_make(r, text, n, n_answer);
    run_submit(r, core);
    run_to_end(core);
    assert_int_equal(r->choices[0].n, n_answer);
    return r->choices[0].result.n_cached;
}

/* ---- Replay without snapshots ---- */

static void test_replay_lengths(void **state) {
    (void)state;
    assert_true(EXACT < 320);
    di_core *core = core_of(DI_REPLAY_EXACT, 0);
    assert_int_equal(cached(core, &runs[0], 330, 2), 0);
    assert_int_equal(cached(core, &runs[1], 330, 2), 320 - EXACT);
    assert_int_equal(cached(core, &runs[2], 200, 2), 0); /* 192 - EXACT < 0: shared, but run */
    assert_int_equal(di_core_get_stats(core).kv.hit_pages, 5 + 3);
    assert_int_equal(di_core_get_stats(core).replayed_rows, EXACT + 192);
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "exact");
    run_core_destroy(core);

    core = core_of(DI_REPLAY_STABLE, 0);
    assert_int_equal(cached(core, &runs[0], 330, 2), 0);
    assert_int_equal(cached(core, &runs[1], 330, 2), 330 - W - STABLE); /* the hit is behind it */
    assert_int_equal(cached(core, &runs[2], 400, 2), 320 - STABLE);     /* the hit is before it */
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "stable");
    run_core_destroy(core);

    core = core_of(DI_REPLAY_BOUNDED, 0);
    assert_int_equal(cached(core, &runs[0], 330, 2), 0);
    assert_int_equal(cached(core, &runs[1], 330, 2), 320 - W);
    assert_int_equal(cached(core, &runs[2], 50, 2), 0);
    run_core_destroy(core);
}

/* Pages written behind a bounded replay are found by the next one, never by the plain chain. */
static void test_lineage(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_BOUNDED, 0);
    di_kv_name names[5];
    cached(core, &runs[0], 200, 2);                            /* 3 pages, plain */
    assert_int_equal(cached(core, &runs[1], 300, 2), 192 - W); /* a 4th, behind a replay */
    assert_int_equal(cached(core, &runs[2], 310, 2), 256 - W); /* all 4 are found */
    di_kv_name root = di_kv_name_root(&(di_kv_root){core->fingerprint, "float", "test", NULL, 0});
    di_kv_name_chain(&root, text, NULL, 5, names);
    di_kv_prompt plain = {.root = root, .names = names, .n_pages = 5, .ids = text};
    assert_int_equal(di_kv_find(core->kv, &plain, 5).n_pages, 3);
    plain.follow_replays = true;
    assert_int_equal(di_kv_find(core->kv, &plain, 5).n_pages, 4);
    run_core_destroy(core);
}

/* Scored prompts run whole, and every mode scores the same. */
static void test_scores_run_whole(void **state) {
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        di_core *core = core_of((di_replay)mode, 1 << 20);
        cached(core, &runs[3], 150, 2);
        run_make(&runs[mode], text, 150, 3);
        runs[mode].request.prompt_logprobs = true;
        run_submit(&runs[mode], core);
        run_to_end(core);
        assert_int_equal(runs[mode].choices[0].n_scores, 150);
        assert_int_equal(runs[mode].choices[0].result.n_cached, 0);
        run_expect_same(&runs[mode].choices[0], &runs[0].choices[0], "scores");
        run_core_destroy(core);
    }
}

/* ---- Snapshots ---- */

static void test_snapshots_exact(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_EXACT, 4 << 20);
    assert_int_equal(cached(core, &runs[0], 150, 20), 0);
    assert_int_equal(di_core_get_stats(core).snapshots, 2); /* prompt, answer */
    assert_int_equal(cached(core, &runs[1], 150, 20), 149); /* the same again */
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "again");
    assert_int_equal(cached(core, &runs[2], 170, 5), 150); /* a longer one */
    /* The next turn: prompt, answer and more. The last token of the answer was never computed. */
    int32_t kept[30];
    memcpy(kept, text + 150, sizeof kept);
    memcpy(text + 150, runs[0].choices[0].ids, 20 * sizeof *text);
    assert_int_equal(cached(core, &runs[3], 180, 5), 169);
    memcpy(text + 150, kept, sizeof kept);
    assert_int_equal(di_core_get_stats(core).snapshot_hits, 3);
    assert_int_equal(di_core_get_stats(core).replayed_rows, 0);
    /* At a page's end the last token lies in a named page: replay instead. */
    assert_int_equal(cached(core, &runs[4], 128, 2), 0);
    assert_int_equal(cached(core, &runs[5], 128, 2), 0);
    run_core_destroy(core);
}

/* The prompt text[0 .. same) and others up to n; the answer is that of a core without a cache. */
static int64_t cached_behind(di_core *core, int64_t same, int64_t n) {
    di_core *cold = core_of(DI_REPLAY_EXACT, 0);
    for (int64_t i = same; i < n; i++) text[i]++;
    int64_t found = cached(core, &runs[1], n, 12);
    assert_int_equal(cached(cold, &runs[2], n, 12), 0);
    for (int64_t i = same; i < n; i++) text[i]--;
    run_expect_same(&runs[1].choices[0], &runs[2].choices[0], "taken back");
    run_core_destroy(cold);
    return found;
}

/* A prompt that goes another way near the end of one that was read, as a conversation does whose
 * thought is left out when it goes on. */
static void test_snapshots_taken_back(void **state) {
    (void)state;
    int32_t margin = di_config_rollback(model.config);
    di_core *core = core_of(DI_REPLAY_EXACT, 4 << 20);
    assert_true(margin >= 2 && margin < 150 - 128);
    cached(core, &runs[0], 150, 1);
    assert_int_equal(cached_behind(core, 149, 170), 149);
    assert_int_equal(cached_behind(core, 150 - margin, 160), 150 - margin);
    assert_int_equal(cached_behind(core, 150 - margin - 1, 160), 0); /* the rings end */
    /* shorter than what was read */
    assert_int_equal(cached_behind(core, 147, 147), 146);
    cached(core, &runs[0], 130, 1);
    assert_int_equal(cached_behind(core, 128, 140), 128);
    assert_int_equal(cached_behind(core, 127, 140), 0); /* in a named page */
    run_core_destroy(core);
}

static void test_snapshots_stable(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_STABLE, 4 << 20);
    assert_int_equal(cached(core, &runs[0], 330, 2), 0);
    assert_int_equal(cached(core, &runs[1], 330, 2), 329);
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "the same prompt");
    /* Less than W tokens more: windows above the cut would have begun elsewhere. */
    assert_int_equal(cached(core, &runs[2], 340, 2), 340 - W - STABLE);
    assert_int_equal(cached(core, &runs[3], 330 + W, 2), 330); /* its lower windows only */
    run_core_destroy(core);
}

static void test_snapshots_bounded(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_BOUNDED, 4 << 20);
    cached(core, &runs[0], 330, 2);
    assert_int_equal(cached(core, &runs[1], 340, 2), 330); /* taken as it is */
    run_core_destroy(core);
}

/* The budget holds: the least recently used goes. */
static void test_snapshot_budget(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_EXACT, 0);
    uint64_t one = core->snapshots.entry_bytes;
    run_core_destroy(core);
    core = core_of(DI_REPLAY_EXACT, 2 * one + one / 2);
    assert_int_equal(core->snapshots.n_max, 2);
    cached(core, &runs[0], 100, 1);
    cached(core, &runs[1], 100, 1);
    assert_int_equal(runs[1].choices[0].result.n_cached, 99);
    text[0]++; /* two others push it out */
    cached(core, &runs[2], 100, 9);
    text[0]--;
    assert_int_equal(cached(core, &runs[3], 100, 1), 0);
    assert_int_equal(core->snapshots.n, 2);
    run_core_destroy(core);
}

/* ---- Sharing ---- */

static void test_choices(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_EXACT, 4 << 20);
    run *r = &runs[0];
    run_make(r, text, 200, 12);
    r->request.n = 4;
    r->request.sampling.temperature = 1;
    r->request.sampling.seed = 5;
    run_submit(r, core);
    run_to_end(core);
    di_core_stats stats = di_core_get_stats(core);
    assert_int_equal(stats.prompt_rows, 199); /* once, and each its last row */
    assert_int_equal(stats.rows, 199 + 4 * 12);
    assert_int_equal(stats.kv.n_cached, 3); /* named once, shared by all */
    for (int i = 1; i < 4; i++) {
        assert_int_equal(r->choices[i].n, 12);
        assert_memory_not_equal(r->choices[i].ids, r->choices[0].ids, 12 * sizeof(int32_t));
    }
    run_core_destroy(core);
}

/* More choices than slots: the others come when there is room, and find the prompt. */
static void test_more_choices_than_slots(void **state) {
    (void)state;
    di_core_options options = run_options();
    options.max_batch = 2;
    di_core *core = run_core(&model, &options);
    run *r = &runs[0];
    run_make(r, text, 200, 12);
    r->request.n = 4;
    run_submit(r, core);
    run_to_end(core);
    assert_int_equal(di_core_get_stats(core).prompt_rows, 199);
    for (int i = 1; i < 4; i++) run_expect_same(&r->choices[i], &r->choices[0], "greedy choice");
    run_core_destroy(core);
}

static void test_tenants(void **state) {
    (void)state;
    di_core *core = core_of(DI_REPLAY_EXACT, 4 << 20);
    for (int i = 0; i < 4; i++) {
        run_make(&runs[i], text, 150, 2);
        runs[i].request.salt = i % 2 ? "a" : "b";
        runs[i].request.salt_bytes = 1;
        run_submit(&runs[i], core);
        run_to_end(core);
        assert_int_equal(runs[i].choices[0].result.n_cached, i < 2 ? 0 : 149);
    }
    run_core_destroy(core);
}

static void test_no_prefix_cache(void **state) {
    (void)state;
    di_core_options options = run_options();
    options.prefix_cache = false;
    di_core *core = run_core(&model, &options);
    assert_int_equal(cached(core, &runs[0], 150, 2), 0);
    assert_int_equal(cached(core, &runs[1], 150, 2), 0);
    assert_int_equal(di_core_get_stats(core).snapshots, 0);
    assert_int_equal(di_core_get_stats(core).kv.n_free, 64);
    run_core_destroy(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_lengths),
        cmocka_unit_test(test_lineage),
        cmocka_unit_test(test_scores_run_whole),
        cmocka_unit_test(test_snapshots_exact),
        cmocka_unit_test(test_snapshots_taken_back),
        cmocka_unit_test(test_snapshots_stable),
        cmocka_unit_test(test_snapshots_bounded),
        cmocka_unit_test(test_snapshot_budget),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_more_choices_than_slots),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_no_prefix_cache),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
